"""Sealing: from open events in order of arrival to snapshots in the log's order."""

import numpy as np
import pyarrow as pa

from stream.snapshots.delta import Int64

_PROVENANCE = frozenset({"topic", "partition", "offset", "tau"})


def source_ranks(topic: pa.ChunkedArray, partition: pa.ChunkedArray) -> Int64:
    """One number a row that orders topic partitions by topic name, then partition number.

    Args:
        topic: Dictionary-encoded names, shape (E,); chunks may have different dictionaries.
        partition: int32, shape (E,).

    Returns:
        int64 of shape (E,).
    """
    names = sorted({name for chunk in topic.chunks for name in chunk.dictionary.to_pylist()})
    rank = {name: i for i, name in enumerate(names)}
    pieces = [np.empty(0, np.int64)]
    for chunk in topic.chunks:
        of_code = np.array([rank[name] for name in chunk.dictionary.to_pylist()], np.int64)
        pieces.append(of_code[chunk.indices.to_numpy()] if len(chunk) else np.empty(0, np.int64))
    ranks = np.concatenate(pieces)
    ranks <<= 32
    ranks += partition.to_numpy()
    return ranks


def sealed_order(tau: Int64, t: Int64, source: Int64) -> Int64:
    """Order of events in the log: by (τ, t, topic partition, offset, row).

    Args:
        tau: Snapshot of each event, shape (E,).
        t: Its time, microseconds.
        source: Its topic partition, as ``source_ranks``.

    Returns:
        int64 permutation of shape (E,). Events of one topic partition arrive in order of offset and row, so a
        stable sort keeps that order among equal (τ, t, topic partition).
    """
    one_source = len(source) == 0 or bool((source == source[0]).all())
    if one_source and _ascending(tau, t):
        return np.arange(len(t))
    return np.lexsort((t, tau) if one_source else (source, t, tau)).astype(np.int64, copy=False)


def _ascending(tau: Int64, t: Int64) -> bool:
    same = tau[1:] == tau[:-1]
    return bool(((tau[1:] > tau[:-1]) | (same & (t[1:] >= t[:-1]))).all())


def split_snapshots(rows: pa.Table, through: int) -> list[tuple[int, pa.Table]]:
    """The snapshots up to τ = ``through``, each with its events in the log's order.

    Args:
        rows: Open events in order of arrival, with ``t``, ``topic``, ``partition``, ``offset`` and ``tau``.
        through: Last τ to seal.

    Returns:
        (τ, events) for every τ that has events, ascending; without the columns of provenance.
    """
    tau = rows["tau"].to_numpy()
    closing = np.flatnonzero(tau <= through)
    if not len(closing):
        return []
    t, source = rows["t"].to_numpy(), source_ranks(rows["topic"], rows["partition"])
    if len(closing) < len(tau):
        tau, t, source = tau[closing], t[closing], source[closing]
    order = sealed_order(tau, t, source)
    tau = tau[order]
    chosen = closing[order]
    names = [name for name in rows.column_names if name not in _PROVENANCE]
    given = [name for name in names if rows[name].null_count < len(rows)]
    columns = rows.select(given).combine_chunks()  # out of one chunk: 3 times faster
    starts = np.flatnonzero(np.concatenate(([True], tau[1:] != tau[:-1])))
    stops = np.append(starts[1:], len(tau))
    schema = pa.schema([rows.schema.field(name) for name in names])
    snapshots = []
    for a, b in zip(starts.tolist(), stops.tolist(), strict=True):
        picked = chosen[a:b]
        in_place = picked[-1] - picked[0] == b - a - 1 and bool((np.diff(picked) == 1).all())
        part = columns.slice(picked[0], b - a) if in_place else columns.take(pa.array(picked))
        filled = [part[name] if name in given else rows[name].slice(0, b - a) for name in names]
        snapshots.append((int(tau[a]), pa.table(filled, schema=schema)))
    return snapshots
