"""Sealed snapshots as files: the same events give the same bytes, however they reached the writer."""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa

from schemas.events import MAX_ID_BYTES, Op, event_schema, log_event_schema, node_schema
from schemas.store import LogHeader, SealedSnapshot
from stream.arrays.kinds import Int64
from stream.snapshots.dictionary import IdDictionary
from stream.store.log.canonical import canonical_batches
from stream.store.log.layout import events_name, nodes_name
from stream.store.places.staging import Staging

MAX_BATCH_ROWS = 1 << 22
_BESIDE_ROWS = 1 << 16
"""From this many events on, dense ids are looked up on one core while columns are gathered on another."""
_MAX_INDEX = (1 << 31) - 1


def sealable(seal: Iterable[tuple[int, pa.Table]], through: int | None) -> Iterator[tuple[int, pa.Table]]:
    """The given snapshots, each checked: it may be sealed after its predecessor, the first after τ = ``through``."""
    for tau, table in seal:
        if through is not None and tau <= through:
            raise ValueError(f"snapshot {tau} cannot be sealed after {through}")
        if table.num_rows == 0:
            raise ValueError(f"snapshot {tau} has no events: empty intervals have no snapshot")
        through = tau
        yield tau, table


def stage_snapshot(
    staging: Staging, header: LogHeader, dictionary: IdDictionary, tau: int, table: pa.Table
) -> SealedSnapshot:
    """Write one snapshot's ``events.arrow`` and ``nodes.arrow``, and give its new ids dense ones.

    Args:
        staging: Files of the current commit.
        header: Header of the log.
        dictionary: Ids so far; the snapshot's new ones are added.
        tau: Interval index.
        table: Its events in order, with at least the columns of ``event_schema``; one row or more.

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


def batch_rows(header: LogHeader) -> int:
    """Rows of a record batch, such that no Arrow array overflows its 32-bit offsets: all but huge snapshots have one."""
    width = max(header.node_features, header.edge_features, MAX_ID_BYTES)
    return min(MAX_BATCH_ROWS, _MAX_INDEX // width)
