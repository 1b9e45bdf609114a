"""Sealed snapshots as files: the same events give the same bytes, however they reached the writer."""

import numpy as np
import pyarrow as pa

from schemas.events import MAX_ID_BYTES, Op, event_schema, log_event_schema, node_schema
from schemas.store import LogHeader, SealedSnapshot
from stream.snapshots.dictionary import IdDictionary
from stream.store.files.data import Staging
from stream.store.log.layout import events_name, nodes_name

MAX_BATCH_ROWS = 1 << 22
_MAX_INDEX = (1 << 31) - 1


def stage_snapshot(
    staging: Staging, header: LogHeader, dictionary: IdDictionary, tau: int, table: pa.Table
) -> SealedSnapshot:
    """Write one snapshot's ``events.arrow`` and ``nodes.arrow``, giving its new ids their dense ones.

    Args:
        staging: Files of the commit in the making.
        header: Header of the log.
        dictionary: Ids so far; the snapshot's new ones are added.
        tau: Interval index.
        table: Its events in order, with at least the columns of ``event_schema``; one row or more.

    Returns:
        The snapshot as its commit records it.
    """
    first_new = dictionary.size
    src_node, dst_node = dictionary.encode(table["src"], table["dst"])
    events = table.select(event_schema(header.ids).names)
    events = events.append_column("src_node", pa.array(src_node)).append_column(
        "dst_node", pa.array(dst_node)
    )
    events = events.cast(log_event_schema(header.ids))
    nodes = pa.table(
        [pa.array(np.arange(first_new, dictionary.size)), dictionary.ids(first_new)],
        schema=node_schema(header.ids),
    )
    ops = events["op"].to_numpy()
    times = events["t"].to_numpy()
    return SealedSnapshot(
        tau=tau,
        events=staging.add_table(events_name(tau), canonical_batches(events, batch_rows(header))),
        nodes=staging.add_table(nodes_name(tau), canonical_batches(nodes, batch_rows(header))),
        num_events=len(events),
        num_inserts=int(np.count_nonzero(ops == Op.INSERT)),
        num_deletes=int(np.count_nonzero(ops == Op.DELETE)),
        num_late=int(np.count_nonzero(times < tau * header.interval_us)),
        num_nodes=dictionary.size,
        max_t_us=int(times.max()),
    )


def batch_rows(header: LogHeader) -> int:
    """Rows of a record batch, so that no Arrow array of 32-bit offsets overflows: one batch in all but huge snapshots."""
    width = max(header.node_features, header.edge_features, MAX_ID_BYTES)
    return min(MAX_BATCH_ROWS, _MAX_INDEX // width)


def canonical_batches(table: pa.Table, rows: int) -> list[pa.RecordBatch]:
    """A table in record batches whose bytes depend on its values alone.

    Arrow leaves open what lies under a null, in the last bits of a validity bitmap that was sliced and after the
    end of a sliced buffer; here the first two are zero (or nothing) and there is no third.

    Args:
        table: Any table.
        rows: Rows of every batch but the last.

    Returns:
        At least one batch.
    """
    starts = range(0, max(len(table), 1), rows)
    return [_canonical_batch(table.slice(start, rows)) for start in starts]


def _canonical_batch(piece: pa.Table) -> pa.RecordBatch:
    everything = pa.array(np.arange(len(piece)))
    columns = [
        pa.nulls(len(column), column.type)
        if column.null_count == len(column)
        # New buffers of just the right length: those of a slice are written with some bytes after its end.
        else one
        if _is_canonical(one := _one(column))
        else one.take(everything)
        for column in piece.columns
    ]
    return pa.RecordBatch.from_arrays(columns, schema=piece.schema)


def _is_canonical(column: pa.Array) -> bool:
    """Whether a column of numbers is its buffer from end to end, with nothing under it or after it."""
    kind = column.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)) or column.null_count or column.offset:
        return False
    return bool(column.buffers()[1].size == len(column) * kind.bit_width // 8)


def _one(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)
