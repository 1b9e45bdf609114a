"""The Arrow files of a lane snapshot: arrays to record batches and back. Record batch k is part k."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from freshet_graph.schemas.store import FileRef
from freshet_graph.stream.arrays.kinds import Float32, Int8, Int32, Int64
from freshet_graph.stream.snapshots.pairs import pair_keys, split_keys
from freshet_graph.stream.store.errors import CorruptError, remedy
from freshet_graph.stream.store.files.data import open_bounded, open_table, require_whole, whole_or_corrupt
from freshet_graph.stream.store.lane.diff import PairRows, SegmentRows
from freshet_graph.stream.store.places.interface import COMPRESSED
from freshet_graph.stream.store.places.place import Place

T = TypeVar("T", bound=np.generic)
ASSIGNMENT_SCHEMA = pa.schema(
    [
        pa.field("node", pa.int64(), nullable=False),
        pa.field("part", pa.int32(), nullable=False),
        pa.field("why", pa.int8(), nullable=False),
    ]
)
EDGES_SCHEMA = pa.schema(
    [
        pa.field("op", pa.int8(), nullable=False),
        pa.field("src", pa.int64(), nullable=False),
        pa.field("dst", pa.int64(), nullable=False),
        pa.field("weight", pa.float32(), nullable=False),
    ]
)
EVENT_PARTS_SCHEMA = pa.schema([pa.field("part", pa.int32(), nullable=False)])
TABLES = ("assignment", "edges", "segments")
BUNDLE_SCHEMA = pa.schema(
    [pa.field("name", pa.string(), nullable=False), pa.field("content", pa.large_binary(), nullable=False)]
)
"""Several tables in one file: one record batch per table, whose content is itself an Arrow IPC file."""


@dataclass(frozen=True, slots=True)
class LaneChanges:
    """The stored changes of one snapshot for some parts; a base is the change from nothing.

    Attributes:
        node: int64 (a,), rows of the assignment, of all parts.
        part: int32 (a,).
        why: int8 (a,).
        op: int8 (e,), pair changes of the selected parts, part after part (see ``PairRows``).
        keys: int64 (e,).
        weight: float32 (e,).
        segment_node: int64 (s,), feature changes of the selected parts, part after part.
        segment: int32 (s,).
        values: float32 (s, W).
        pair_rows: int64 (batches,), rows of op, keys and weight per batch.
        segment_rows: int64 (parts,), rows of the feature changes per part.
        whole_pairs: The pairs are a list of all, op is 1 throughout, and other pairs are gone.
    """

    node: Int64
    part: Int32
    why: Int8
    op: Int8
    keys: Int64
    weight: Float32
    segment_node: Int64
    segment: Int32
    values: Float32
    pair_rows: Int64
    segment_rows: Int64
    whole_pairs: bool = False


@dataclass(frozen=True, slots=True)
class Selection:
    """The parts of a lane snapshot's files to read, and the form the files must have.

    Attributes:
        parts: Record batches of ``segments.arrow`` to read.
        edge_batches: Record batches of ``edges.arrow`` to read.
        stored_parts: Number of batches in ``segments.arrow``.
        stored_edge_batches: Number of batches in ``edges.arrow``.
        width: W, values of a stored segment.
        segments: S, the limit of segment numbers.
        num_nodes: The limit of node ids.
        whole_pairs: Whether ``edges.arrow`` lists all pairs.
    """

    parts: Sequence[int]
    edge_batches: Sequence[int]
    stored_parts: int
    stored_edge_batches: int
    width: int
    segments: int
    num_nodes: int
    whole_pairs: bool = False


def segments_schema(width: int) -> pa.Schema:
    """Schema of ``segments.arrow``; ``width`` is W, 0 without features (the file then has no rows)."""
    return pa.schema(
        [
            pa.field("node", pa.int64(), nullable=False),
            pa.field("segment", pa.int32(), nullable=False),
            pa.field("values", pa.list_(pa.float32(), max(width, 1)), nullable=False),
        ]
    )


def assignment_batches(node: Int64, part: Int32, why: Int8) -> list[pa.RecordBatch]:
    """The one record batch of ``assignment.arrow``."""
    return [pa.record_batch([pa.array(node), pa.array(part), pa.array(why)], schema=ASSIGNMENT_SCHEMA)]


def edge_batches(changes: PairRows) -> list[pa.RecordBatch]:
    """Record batches of ``edges.arrow``, one per part (and one of discarded pairs in edge lanes)."""
    src, dst = split_keys(changes.keys)
    columns = [pa.array(column) for column in (changes.op, src, dst, changes.weight)]
    whole = pa.record_batch(columns, schema=EDGES_SCHEMA)
    return _by_part(whole, changes.offsets)


def segment_batches(changes: SegmentRows, width: int) -> list[pa.RecordBatch]:
    """Record batches of ``segments.arrow``, one per part."""
    schema = segments_schema(width)
    values = pa.FixedSizeListArray.from_arrays(
        pa.array(np.ascontiguousarray(changes.values).reshape(-1)), type=schema.field("values").type
    )
    whole = pa.record_batch([pa.array(changes.node), pa.array(changes.segment), values], schema=schema)
    return _by_part(whole, changes.offsets)


def event_part_batches(part: Int32) -> list[pa.RecordBatch]:
    """The one record batch of ``event_parts.arrow``: a row per edge event of the snapshot, in log order."""
    return [pa.record_batch([pa.array(part)], schema=EVENT_PARTS_SCHEMA)]


def bundle_batches(tables: Mapping[str, pa.Table | list[pa.RecordBatch]]) -> list[pa.RecordBatch]:
    """Record batches of a file with several named tables, each compressed, so that one part can be read alone."""
    batches = []
    for name, table in tables.items():
        sink = pa.BufferOutputStream()
        schema = table.schema if isinstance(table, pa.Table) else table[0].schema
        with pa.ipc.new_file(sink, schema, options=COMPRESSED) as writer:
            for batch in table.to_batches() if isinstance(table, pa.Table) else table:
                writer.write_batch(batch)
        content = sink.getvalue()
        offsets = pa.py_buffer(np.array([0, content.size], np.int64))
        binary = pa.Array.from_buffers(pa.large_binary(), 1, [None, offsets, content])
        batches.append(pa.record_batch([pa.array([name]), binary], schema=BUNDLE_SCHEMA))
    return batches


def open_bundle(root: Place, reference: FileRef) -> dict[str, pa.ipc.RecordBatchFileReader]:
    """Readers of the tables of a bundle by name, views of the file.

    Raises:
        CorruptError: The file doesn't match its record, or isn't a bundle.
    """
    reader = open_table(root, reference)
    _expect_schema(reader, BUNDLE_SCHEMA, root, reference)
    tables = {}
    for k in range(reader.num_record_batches):
        row = _batch(reader, k, root, reference)
        with whole_or_corrupt(root / reference.path):
            content = row.column("content")[0].as_buffer()
            tables[row.column("name")[0].as_py()] = open_bounded(content)
    return tables


def read_bundle(root: Place, reference: FileRef) -> dict[str, pa.Table]:
    """The tables of a bundle by name; all columns are numbers or lists of numbers.

    Raises:
        CorruptError: The file doesn't match its record, isn't a bundle, or has other columns.
    """
    tables = {}
    for name, reader in open_bundle(root, reference).items():
        for field in reader.schema:
            item_type = field.type.value_type if pa.types.is_large_list(field.type) else field.type
            if not pa.types.is_primitive(item_type):
                raise CorruptError(
                    f"{root / reference.path} has {field.type} in column {field.name} of {name}, which no release writes"
                )
        tables[name] = pa.Table.from_batches(
            [_batch(reader, k, root, reference) for k in range(reader.num_record_batches)], reader.schema
        )
    return tables


class LaneTables:
    """The files of a lane snapshot, or its base: each is opened, and each part decompressed, when it is read.

    Args:
        root: The lane's folder.
        files: The files (assignment, edges, segments), or a base, which has all three.
        selection: The form that they must have.
    """

    def __init__(self, root: Place, files: Sequence[FileRef], selection: Selection) -> None:
        self._root, self._files, self._selection = root, files, selection
        self._readers: dict[str, pa.ipc.RecordBatchFileReader] = {}

    def changes(self) -> LaneChanges:
        """The rows of the selected parts, one part after the other; not copied for one part.

        Raises:
            CorruptError: A file doesn't match its record or the lane; as for the other methods.
        """
        selection = self._selection
        node, part, why = self.placed()
        pairs = [self.pairs(batch) for batch in selection.edge_batches]
        segments = [self.segments(chosen) for chosen in selection.parts]
        op, src, dst, weight = (_joined(column) for column in zip(*pairs, strict=True))
        segment_node, segment, values = (_joined(column) for column in zip(*segments, strict=True))
        return LaneChanges(
            node=node,
            part=part,
            why=why,
            op=op,
            keys=pair_keys(src, dst),
            weight=weight,
            segment_node=segment_node,
            segment=segment,
            values=values,
            pair_rows=np.array([len(rows[0]) for rows in pairs], np.int64),
            segment_rows=np.array([len(rows[0]) for rows in segments], np.int64),
            whole_pairs=selection.whole_pairs,
        )

    def placed(self) -> tuple[Int64, Int32, Int8]:
        """The assignment's columns: node, part and why, of all parts.

        Raises:
            CorruptError: The file doesn't match its record or the lane; as for the other methods.
        """
        node, part, why = (np.asarray(column) for column in self._batch("assignment", 0).columns)
        self._expect(node, "node", "assignment")
        _expect_range(part, "part", -1, self._selection.stored_parts, self._root, self._file("assignment"))
        return node, part, why

    def pairs(self, batch: int) -> tuple[Int8, Int64, Int64, Float32]:
        """The pair changes of a part: op, src, dst and weight, see ``PairRows``."""
        op, src, dst, weight = (np.asarray(column) for column in self._batch("edges", batch).columns)
        self._expect(src, "node", "edges")
        self._expect(dst, "node", "edges")
        if self._selection.whole_pairs and (op != 1).any():
            raise CorruptError(
                f"{self._root / self._file('edges').path} has leaving pairs, but should list all pairs{remedy(self._root)}"
            )
        return op, src, dst, weight

    def segments(self, part: int) -> tuple[Int64, Int32, Float32]:
        """The feature changes of a part: node, segment and values, see ``SegmentRows``."""
        node, segment, values = self._batch("segments", part).columns
        node, segment = np.asarray(node), np.asarray(segment)
        self._expect(node, "node", "segments")
        _expect_range(segment, "segment", 0, self._selection.segments, self._root, self._file("segments"))
        return node, segment, np.asarray(values.flatten()).reshape(len(node), max(self._selection.width, 1))

    def _expect(self, ids: Int64, what: str, table: str) -> None:
        _expect_range(ids, what, 0, self._selection.num_nodes, self._root, self._file(table))

    def _file(self, table: str) -> FileRef:
        return self._files[TABLES.index(table) if len(self._files) > 1 else 0]

    def _batch(self, table: str, batch: int) -> pa.RecordBatch:
        return _batch(self._reader(table), batch, self._root, self._file(table))

    def _reader(self, table: str) -> pa.ipc.RecordBatchFileReader:
        if table in self._readers:
            return self._readers[table]
        file, selection = self._file(table), self._selection
        if len(self._files) > 1:
            self._readers[table] = open_table(self._root, file)
        else:
            self._readers = open_bundle(self._root, file)
            if missing := set(TABLES) - self._readers.keys():
                raise CorruptError(
                    f"{self._root / file.path} lacks {', '.join(sorted(missing))}, so it is not a base{remedy(self._root)}"
                )
        reader, place = self._readers[table], TABLES.index(table)
        schema = (ASSIGNMENT_SCHEMA, EDGES_SCHEMA, segments_schema(selection.width))[place]
        expected = (1, selection.stored_edge_batches, selection.stored_parts)[place]
        _expect_schema(reader, schema, self._root, file)
        if reader.num_record_batches != expected:
            raise CorruptError(
                f"{self._root / file.path} has {reader.num_record_batches} record batches, "
                f"the lane needs {expected}, one per part"
            )
        return reader


def read_event_parts(root: Place, reference: FileRef) -> Int32:
    """The part of every edge event of a snapshot: int32, −1 for a discarded one or a delete; a view of the file."""
    reader = open_table(root, reference)
    _expect_schema(reader, EVENT_PARTS_SCHEMA, root, reference)
    part: Int32 = np.asarray(_batch(reader, 0, root, reference).column("part"))
    return part


def _joined(columns: tuple[NDArray[T], ...]) -> NDArray[T]:
    """Some parts' rows of a column; those of one part are not copied."""
    filled = [column for column in columns if len(column)] or [columns[0]]
    return filled[0] if len(filled) == 1 else np.concatenate(filled)


def _expect_range(
    values: NDArray[np.signedinteger], what: str, low: int, end: int, root: Place, file: FileRef
) -> None:
    if len(values) and (values.min() < low or values.max() >= end):
        wrong = values.min() if values.min() < low else values.max()
        raise CorruptError(f"{root / file.path} names {what} {wrong}, there are {what}s {low} to {end - 1}")


def _by_part(whole: pa.RecordBatch, offsets: Int64) -> list[pa.RecordBatch]:
    ends = zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)
    return [whole.slice(start, end - start) for start, end in ends]


def _batch(reader: pa.ipc.RecordBatchFileReader, k: int, root: Place, reference: FileRef) -> pa.RecordBatch:
    with whole_or_corrupt(root / reference.path):
        batch = reader.get_batch(k)
        require_whole(batch)
        return batch


def _expect_schema(
    reader: pa.ipc.RecordBatchFileReader, schema: pa.Schema, root: Place, reference: FileRef
) -> None:
    if not reader.schema.equals(schema):
        raise CorruptError(
            f"{root / reference.path} has the columns {', '.join(reader.schema.names)} of another schema, "
            f"expected {', '.join(schema.names)}"
        )
