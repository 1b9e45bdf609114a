"""A log's base: the live graph at some moment as the fewest events that produce it.

It has one insert per live pair (the latest, unchanged) and one node event per node whose features aren't all zeros. It
replaces the snapshots that are no longer kept: a lane added later begins with it.
"""

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from schemas.events import IdKind, Op, log_event_schema
from schemas.store import LogHeader
from stream.arrays.kinds import Int64
from stream.snapshots.node_features import NodeFeatures
from stream.snapshots.pairs import pair_keys
from stream.store.log.sealed import batch_rows

CHUNK_EVENTS = 1 << 21
"""Events folded at a time; bounds the memory beside the live graph."""


def base_schema(ids: IdKind) -> pa.Schema:
    """Columns of a base: those of ``events.arrow``, and ``tau``, the snapshot of each event."""
    return log_event_schema(ids).append(pa.field("tau", pa.int64(), nullable=False))


def fold(
    header: LogHeader, base: pa.Table | None, snapshots: Iterable[tuple[int, pa.Table]], ids: pa.ChunkedArray
) -> pa.Table:
    """The base after more snapshots.

    Args:
        header: The log's.
        base: The base before them; None: they are the log's first.
        snapshots: (τ, events in order), ascending.
        ids: External ids by dense id.

    Returns:
        ``base_schema``: node events first, then inserts in log order. Deleted pairs are left out. The age of a pair doesn't
        matter, because edge lives belong to lanes.
    """
    schema = base_schema(header.ids)
    rows = schema.empty_table() if base is None else base
    features = NodeFeatures(header.node_features, 1)
    features.grow(len(ids))
    features.apply(rows)
    rows = rows.filter(pa.array(rows["op"].to_numpy() == Op.INSERT))
    last = None
    for chunk in _chunks(snapshots, schema):
        features.apply(chunk)
        rows = _latest(pa.concat_tables([rows, chunk]))
        last = int(chunk["tau"][-1].as_py())
    if last is None:
        return schema.empty_table() if base is None else base
    return pa.concat_tables([_node_events(header, features, ids, last), rows])


def groups(base: pa.Table, edge_life: int | None) -> Iterator[tuple[int, pa.Table]]:
    """A base as snapshots for a live graph: one as of its last snapshot, or several by age if edges have a life.

    Args:
        base: ``base_schema``.
        edge_life: Intervals an edge lives; None: until deleted.

    Yields:
        (τ, events), ascending in τ.
    """
    if base.num_rows == 0:
        return
    tau = base["tau"].to_numpy()
    last = int(tau.max())
    events = base.drop_columns(["tau"])
    if edge_life is None:
        yield last, events
        return
    is_node = base["op"].to_numpy() == Op.NODE
    dense = np.where(is_node, max(last - edge_life + 1, int(tau[~is_node].min(initial=last))), tau)
    for value in np.unique(dense[dense > last - edge_life]).tolist():
        yield int(value), events.filter(pa.array(dense == value))


def _chunks(snapshots: Iterable[tuple[int, pa.Table]], schema: pa.Schema) -> Iterator[pa.Table]:
    pieces: list[pa.Table] = []
    held = 0
    for tau, events in snapshots:
        pieces.append(
            events.append_column(schema.field("tau"), pa.array(np.full(events.num_rows, tau, np.int64)))
        )
        held += events.num_rows
        if held >= CHUNK_EVENTS:
            yield pa.concat_tables(pieces)
            pieces, held = [], 0
    if held:
        yield pa.concat_tables(pieces)


def _latest(rows: pa.Table) -> pa.Table:
    """The last edge event of each pair if that is an insert, in order."""
    edges = np.flatnonzero(rows["op"].to_numpy() != Op.NODE)
    src, dst, op = (rows[name].to_numpy()[edges] for name in ("src_node", "dst_node", "op"))
    _, backwards = np.unique(pair_keys(src, dst)[::-1], return_index=True)
    last = len(edges) - 1 - backwards
    kept = edges[np.sort(last[op[last] == Op.INSERT])]
    return rows.take(pa.array(kept))


def _node_events(header: LogHeader, features: NodeFeatures, ids: pa.ChunkedArray, tau: int) -> pa.Table:
    schema = base_schema(header.ids)
    if header.node_features == 0:
        return schema.empty_table()
    nodes = np.flatnonzero(features.values[: len(ids)].any(axis=1))
    rows, everyone = batch_rows(header), ids.combine_chunks()
    pieces = [
        _described(header, nodes[start : start + rows], features, everyone, tau)
        for start in range(0, len(nodes), rows)
    ]
    return pa.concat_tables([schema.empty_table(), *pieces])


def _described(header: LogHeader, nodes: Int64, features: NodeFeatures, ids: pa.Array, tau: int) -> pa.Table:
    schema, n, width = base_schema(header.ids), len(nodes), header.node_features
    columns = {
        "op": np.full(n, int(Op.NODE), np.int8),
        "src": ids.take(pa.array(nodes)),
        "t": np.full(n, tau * header.interval_us, np.int64),
        "weight": np.ones(n, np.float32),
        "features": pa.ListArray.from_arrays(
            pa.array(np.arange(n + 1, dtype=np.int32) * width), pa.array(features.values[nodes].ravel())
        ),
        "src_node": nodes,
        "dst_node": np.full(n, -1, np.int64),
        "tau": np.full(n, tau, np.int64),
    }
    arrays = [
        pa.array(columns[field.name]) if field.name in columns else pa.nulls(n, field.type)
        for field in schema
    ]
    return pa.table([array.cast(f.type) for array, f in zip(arrays, schema, strict=True)], schema=schema)
