"""The Arrow files of a lane snapshot: arrays to record batches and back. Record batch k is part k."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from schemas.store import FileRef
from stream.arrays.kinds import Float32, Int8, Int32, Int64
from stream.snapshots.pairs import pair_keys, split_keys
from stream.store.errors import RESTORE, CorruptError
from stream.store.files.arrow_bounds import open_bounded, require_whole, whole_or_corrupt
from stream.store.files.data import open_table
from stream.store.lane.diff import PairRows, SegmentRows
from stream.store.places.place import Place

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
    """Record batches of a file with several named tables."""
    batches = []
    for name, table in tables.items():
        sink = pa.BufferOutputStream()
        schema = table.schema if isinstance(table, pa.Table) else table[0].schema
        with pa.ipc.new_file(sink, schema) as writer:
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
            held = field.type.value_type if pa.types.is_large_list(field.type) else field.type
            if not pa.types.is_primitive(held):
                raise CorruptError(
                    f"{root / reference.path} has {field.type} in column {field.name} of {name}, which no release writes"
                )
        tables[name] = pa.Table.from_batches(
            [_batch(reader, k, root, reference) for k in range(reader.num_record_batches)], reader.schema
        )
    return tables


def read_changes(root: Place, files: tuple[FileRef, FileRef, FileRef], selection: Selection) -> LaneChanges:
    """The files (assignment, edges, segments) of a lane snapshot, for some parts.

    Raises:
        CorruptError: A file doesn't match its record or the lane.
    """
    return _changes(root, [(open_table(root, reference), reference) for reference in files], selection)


def read_base(root: Place, base: FileRef, selection: Selection) -> LaneChanges:
    """A base in the form of ``read_changes``: from nothing to the full state at a snapshot."""
    tables = open_bundle(root, base)
    missing = {"assignment", "edges", "segments"} - tables.keys()
    if missing:
        raise CorruptError(
            f"{root / base.path} lacks {', '.join(sorted(missing))}, so it is not a base{RESTORE}"
        )
    return _changes(root, [(tables[name], base) for name in ("assignment", "edges", "segments")], selection)


def read_event_parts(root: Place, reference: FileRef) -> Int32:
    """The part of every edge event of a snapshot: int32, −1 for a discarded one or a delete; a view of the file."""
    reader = open_table(root, reference)
    _expect_schema(reader, EVENT_PARTS_SCHEMA, root, reference)
    part: Int32 = np.asarray(_batch(reader, 0, root, reference).column("part"))
    return part


def _changes(
    root: Place, readers: list[tuple[pa.ipc.RecordBatchFileReader, FileRef]], selection: Selection
) -> LaneChanges:
    segments = segments_schema(selection.width)
    schemas = (ASSIGNMENT_SCHEMA, EDGES_SCHEMA, segments)
    stored = (1, selection.stored_edge_batches, selection.stored_parts)
    for (reader, reference), schema, expected in zip(readers, schemas, stored, strict=True):
        _expect_schema(reader, schema, root, reference)
        if reader.num_record_batches != expected:
            raise CorruptError(
                f"{root / reference.path} has {reader.num_record_batches} record batches, "
                f"the lane needs {expected}, one per part"
            )
    (placed, placed_file), (pairs, pairs_file), (features, features_file) = readers
    node, part, why = (np.asarray(column) for column in _batch(placed, 0, root, placed_file).columns)
    (op, src, dst, weight), pair_rows = _columns(
        pairs, selection.edge_batches, EDGES_SCHEMA, root, pairs_file
    )
    (segment_node, segment, values), segment_rows = _columns(
        features, selection.parts, segments, root, features_file
    )
    for ids, file in (
        (node, placed_file),
        (src, pairs_file),
        (dst, pairs_file),
        (segment_node, features_file),
    ):
        _expect_range(ids, "node", 0, selection.num_nodes, root, file)
    if selection.whole_pairs and (op != 1).any():
        raise CorruptError(f"{root / pairs_file.path} has leaving pairs, but should list all pairs{RESTORE}")
    _expect_range(part, "part", -1, selection.stored_parts, root, placed_file)
    _expect_range(segment, "segment", 0, selection.segments, root, features_file)
    return LaneChanges(
        node=node,
        part=part,
        why=why,
        op=op,
        keys=pair_keys(src, dst),
        weight=weight,
        segment_node=segment_node,
        segment=segment,
        values=values.reshape(-1, max(selection.width, 1)),
        pair_rows=pair_rows,
        segment_rows=segment_rows,
        whole_pairs=selection.whole_pairs,
    )


def _columns(
    reader: pa.ipc.RecordBatchFileReader, wanted: Sequence[int], schema: pa.Schema, root: Place, file: FileRef
) -> tuple[list[Any], Int64]:
    """The wanted batches' columns, one after the other, and the number of rows per batch."""
    batches = [_batch(reader, k, root, file) for k in wanted]
    columns = []
    for index, field in enumerate(schema):
        arrays = [batch.column(index) for batch in batches if batch.num_rows]
        if pa.types.is_fixed_size_list(field.type):
            arrays, kind = [array.flatten() for array in arrays], field.type.value_type
        else:
            kind = field.type
        filled = [np.asarray(array) for array in arrays] or [np.asarray(pa.array([], kind))]
        columns.append(filled[0] if len(filled) == 1 else np.concatenate(filled))
    return columns, np.array([batch.num_rows for batch in batches], np.int64)


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
