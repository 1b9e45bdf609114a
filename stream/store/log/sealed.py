"""The files of a commit: sealed snapshots, and the open tail.

The same events give the same bytes, however they reached the writer. Arrow does not define the values under nulls, the last
bits of a sliced validity bitmap, or bytes beyond a sliced buffer. Here the first two are zero (or absent), and there are no
such bytes.

The tail has the accepted events of open snapshots, durable in a bounded number of files. A commit writes its new open events
to one file and leaves older files alone, until eight of about the same size are at the end: then the new file absorbs their
open events. So a day-long snapshot with a commit every 10 s has a few tens of tail files, and each event is rewritten at most
once per factor of 8 in size. A file stays named while one of its events is open.
"""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from freshet_graph.schemas.events import (
    ARRIVAL_SCHEMA,
    IdKind,
    Op,
    event_schema,
    log_event_schema,
    node_schema,
)
from freshet_graph.schemas.store import FileRef, LogHeader, SealedSnapshot
from freshet_graph.stream.arrays.kinds import Int32, Int64
from freshet_graph.stream.snapshots.dictionary import IdDictionary
from freshet_graph.stream.store.files.data import read_table, require_schema
from freshet_graph.stream.store.log.layout import arrivals_name, batch_rows, events_name, nodes_name
from freshet_graph.stream.store.places.interface import Staging
from freshet_graph.stream.store.places.place import Place

_OFFSET_BYTES = 4


def canonical_batches(table: pa.Table, rows: int) -> list[pa.RecordBatch]:
    """A table as record batches of canonical bytes; buffers that are canonical already are not copied.

    Args:
        table: Any table.
        rows: Rows of every batch but the last.

    Returns:
        At least one batch.
    """
    starts = range(0, max(len(table), 1), rows)
    return [_canonical_batch(table.slice(start, rows)) for start in starts]


def _canonical_batch(piece: pa.Table) -> pa.RecordBatch:
    columns = [
        pa.nulls(len(column), column.type) if column.null_count == len(column) else _canonical(_one(column))
        for column in piece.columns
    ]
    return pa.RecordBatch.from_arrays(columns, schema=piece.schema)


def _one(column: pa.ChunkedArray) -> pa.Array:
    if column.num_chunks == 1:
        return column.chunk(0)
    chunks = column.chunks
    if pa.types.is_list(column.type) and _is_numeric(column.type.value_type):
        filled = [k for k, chunk in enumerate(chunks) if chunk.null_count < len(chunk)]
        if len(filled) == 1 and _is_compact(chunks[filled[0]]):
            return _among_nulls(chunks, filled[0])
    return pa.concat_arrays(chunks)


def _among_nulls(chunks: list[pa.Array], filled: int) -> pa.Array:
    """One array of lists that all lie in one chunk, such as vectors before or after edges; values are not copied."""
    lists = chunks[filled]
    begin = sum(len(chunk) for chunk in chunks[:filled])
    end, length = begin + len(lists), sum(len(chunk) for chunk in chunks)
    offsets, valid = np.zeros(length + 1, np.int32), np.zeros(length, np.bool_)
    offsets[begin : end + 1] = np.frombuffer(lists.buffers()[1], np.int32)
    offsets[end:] = offsets[end]
    valid[begin:end] = _validity(lists)
    buffers = [_bitmap(valid), pa.py_buffer(offsets)]
    return pa.Array.from_buffers(lists.type, length, buffers, children=[lists.values])


def _canonical(column: pa.Array) -> pa.Array:
    if _is_numeric(column.type):
        if column.null_count == 0 and _fills(column.buffers()[1], column, column.type.bit_width // 8):
            return column
        return _canonical_numbers(column)
    if _is_listlike(column.type) and _is_compact(column):
        validity, *buffers = column.buffers()[:3]
        if column.null_count == 0 and validity is None:
            return column
        validity = None if column.null_count == 0 else _bitmap(_validity(column))
        children = [column.values] if pa.types.is_list(column.type) else None
        return pa.Array.from_buffers(
            column.type, len(column), [validity, *buffers[: 1 if children else 2]], children=children
        )
    return column.take(pa.array(np.arange(len(column))))  # new buffers of the exact length


def _canonical_numbers(column: pa.Array) -> pa.Array:
    values = np.array(column.fill_null(0) if column.null_count else column)
    validity = _bitmap(_validity(column)) if column.null_count else None
    return pa.Array.from_buffers(column.type, len(column), [validity, pa.py_buffer(values)])


def _is_numeric(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _is_listlike(kind: pa.DataType) -> bool:
    """Whether the type is lists of numbers or strings: 32-bit offsets into one buffer of values."""
    if pa.types.is_list(kind):
        return _is_numeric(kind.value_type)
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def _is_compact(column: pa.Array) -> bool:
    """Whether offsets and values fill their buffers, every value is in a list, and nulls have no values."""
    ends = column.buffers()[1]
    if ends is None or column.offset or ends.size != (len(column) + 1) * _OFFSET_BYTES:
        return False
    offsets = np.frombuffer(ends, np.int32)
    if pa.types.is_list(column.type):
        values = column.values
        filled = not values.null_count and _fills(
            values.buffers()[1], values, column.type.value_type.bit_width // 8
        )
        if not filled or offsets[0] or offsets[-1] != len(values):
            return False
    else:
        text = column.buffers()[2]
        if offsets[0] or offsets[-1] != (0 if text is None else text.size):
            return False
    return column.null_count == 0 or not np.diff(offsets)[~_validity(column)].any()


def _fills(buffer: pa.Buffer | None, column: pa.Array, width: int) -> bool:
    return buffer is not None and column.offset == 0 and buffer.size == len(column) * width


def _validity(column: pa.Array) -> NDArray[np.bool_]:
    return np.asarray(column.is_valid().to_numpy(zero_copy_only=False), np.bool_)


def _bitmap(valid: NDArray[np.bool_]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(valid, bitorder="little"))


_BESIDE_ROWS = 1 << 16
"""From this many events on, dense ids are looked up on one core while columns are gathered on another."""


def sealable(seal: Iterable[tuple[int, pa.Table]], through: int | None) -> Iterator[tuple[int, pa.Table]]:
    """The given snapshots, each checked: it may be sealed after its predecessor, the first after τ = ``through``."""
    for tau, table in seal:
        if through is not None and tau <= through:
            raise ValueError(f"snapshot {tau} cannot be sealed after {through}")
        if table.num_rows == 0:
            raise ValueError(f"snapshot {tau} has no events: empty intervals have no snapshot")
        through = tau
        yield tau, table


COMMIT = "commit"
"""Column with the number of the commit that an event came with; null: the one that is being made."""

UNKNOWN = -1
"""Number of the commit of an event that came before it was recorded."""


def commits_of(table: pa.Table, n: int) -> Int32:
    """The commit that each event of a table came with, int32 (E,): its column, or ``n``."""
    if COMMIT not in table.column_names:
        return np.full(len(table), n, np.int32)
    return np.asarray(table[COMMIT].fill_null(n).cast(pa.int32()))


def stage_snapshot(
    staging: Staging, header: LogHeader, dictionary: IdDictionary, tau: int, table: pa.Table, n: int
) -> SealedSnapshot:
    """Write one snapshot's ``events.arrow``, ``nodes.arrow`` and ``arrivals.arrow``, and give its new ids dense ones.

    Args:
        staging: Files of the current commit.
        header: Header of the log.
        dictionary: Ids so far; the snapshot's new ones are added.
        tau: Interval index.
        table: Its events in order, with at least the columns of ``event_schema``; one row or more. ``commit`` says which
            commits they came with, see ``commits_of``.
        n: Number of the current commit.

    Returns:
        The snapshot as in its commit record.
    """
    first_new, rows = dictionary.size, batch_rows(header)
    schema = event_schema(header.ids)
    events = table.select(schema.names).cast(schema)
    if len(events) < _BESIDE_ROWS:
        src_node, dst_node = dictionary.encode(table["src"], table["dst"])
        given = canonical_batches(events, rows)
    else:  # both work outside Python's lock
        with ThreadPoolExecutor(1) as beside:
            coming = beside.submit(canonical_batches, events, rows)
            src_node, dst_node = dictionary.encode(table["src"], table["dst"])
            given = coming.result()
    nodes = pa.table(
        [pa.array(np.arange(first_new, dictionary.size)), dictionary.ids(first_new)],
        schema=node_schema(header.ids),
    )
    ops = [batch.column("op").to_numpy() for batch in given]
    times = [batch.column("t").to_numpy() for batch in given]
    start = tau * header.interval_us
    return SealedSnapshot(
        tau=tau,
        events=staging.add_table(events_name(tau), _with_nodes(given, header, src_node, dst_node)),
        nodes=staging.add_table(nodes_name(tau), canonical_batches(nodes, rows)),
        arrivals=staging.add_table(
            arrivals_name(tau), pa.table([pa.array(commits_of(table, n))], schema=ARRIVAL_SCHEMA)
        ),
        num_events=len(events),
        num_inserts=sum(int(np.count_nonzero(op == Op.INSERT)) for op in ops),
        num_deletes=sum(int(np.count_nonzero(op == Op.DELETE)) for op in ops),
        num_late=sum(int(np.count_nonzero(t < start)) for t in times),
        num_nodes=dictionary.size,
        max_t_us=max(int(t.max()) for t in times),
    )


def _with_nodes(
    given: list[pa.RecordBatch], header: LogHeader, src_node: Int64, dst_node: Int64
) -> list[pa.RecordBatch]:
    batches, end = [], 0
    for batch in given:
        start, end = end, end + len(batch)
        nodes = [pa.array(column[start:end]) for column in (src_node, dst_node)]
        batches.append(
            pa.RecordBatch.from_arrays([*batch.columns, *nodes], schema=log_event_schema(header.ids))
        )
    return batches


FAN_IN = 8


def tail_schema(ids: IdKind) -> pa.Schema:
    """Schema of ``tail/<n>.arrow``, in order of arrival.

    The canonical event, its origin (``topic``, ``partition``, ``offset``), ``tau``, the snapshot that it was accepted
    for, which is a later one than its own if it came late, and the ``commit`` that it came with.
    """
    return pa.schema(
        [
            *event_schema(ids),
            pa.field("topic", pa.dictionary(pa.int16(), pa.string()), nullable=False),
            pa.field("partition", pa.int32(), nullable=False),
            pa.field("offset", pa.int64(), nullable=False),
            pa.field("tau", pa.int64(), nullable=False),
            pa.field(COMMIT, pa.int32()),  # null until it is written
        ]
    )


@dataclass(frozen=True, slots=True)
class TailFile:
    """One file of the open tail, not copied."""

    reference: FileRef
    table: pa.Table
    min_tau: int
    max_tau: int


def read_tail(root: Place, reference: FileRef, ids: IdKind, *, verify: bool = True) -> pa.Table:
    """The rows of a tail file: ``tail_schema``, from files of earlier releases with unknown commits.

    Raises:
        CorruptError: It doesn't match its commit.
    """
    schema = tail_schema(ids)
    table = read_table(root, reference, verify=verify)
    if table.schema.equals(schema.remove(len(schema) - 1)):
        unknown = pa.array(np.full(len(table), UNKNOWN, np.int32))
        return table.append_column(schema.field(COMMIT), unknown)
    require_schema(root, reference, table.schema, schema)
    return table


def load_tail_file(root: Place, reference: FileRef, ids: IdKind, *, verify: bool = True) -> TailFile:
    """Map one tail file.

    Raises:
        CorruptError: It doesn't match its commit.
    """
    table = read_tail(root, reference, ids, verify=verify)
    span = pc.min_max(table["tau"]).as_py()
    return TailFile(reference, table, span["min"], span["max"])


def open_rows(files: list[TailFile], sealed_through: int | None, ids: IdKind) -> pa.Table:
    """The events of tail files that are still open, in order of arrival."""
    tables = [tail_schema(ids).empty_table()]
    for file in files:
        if sealed_through is None or file.min_tau > sealed_through:
            tables.append(file.table)
        elif file.max_tau > sealed_through:
            tables.append(file.table.filter(pa.array(file.table["tau"].to_numpy() > sealed_through)))
    return pa.concat_tables(tables)


def count_open(files: list[TailFile], sealed_through: int | None) -> int:
    """Number of events of tail files that are still open."""
    return sum(
        file.table.num_rows
        if sealed_through is None or file.min_tau > sealed_through
        else int(np.count_nonzero(file.table["tau"].to_numpy() > sealed_through))
        for file in files
    )


def absorbed_from(sizes: list[int], new: int) -> int:
    """The tail files that the next one absorbs.

    Args:
        sizes: Bytes of the files, oldest first.
        new: Bytes of the new events, > 0.

    Returns:
        Index of the first absorbed file; ``len(sizes)`` for none. The rest follows, so that the order of arrival is kept.
    """
    start, total = len(sizes), new
    while True:
        run = start
        while run > 0 and _tier(sizes[run - 1]) <= _tier(total):
            run -= 1
        if start - run < FAN_IN - 1:
            return start
        total += sum(sizes[run:start])
        start = run


def _tier(size: int) -> int:
    return int(np.log2(max(size, 1))) // 3  # factors of 8


def encode_tail(table: pa.Table) -> pa.Table:
    """The table as record batches with one dictionary of topics, as the IPC file format requires."""
    return table.unify_dictionaries().combine_chunks()
