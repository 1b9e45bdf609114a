"""The whole undirected adjacency in sorted rows: built from pairs or from rows, or advanced."""

import numpy as np

from stream.arrays.kinds import Bool, Float32, Int32, Int64
from stream.kernels import njit
from stream.kernels.node_sets import distinct
from stream.snapshots.delta import Csr, Rows
from stream.snapshots.pair_index import SEEN, WEIGHT, find
from stream.snapshots.pairs import KEY_BITS

_REBUILD_SHARE = 4
"""Above one changed pair in this many, building is faster than advancing (both give equal arrays)."""

_RECORD = np.int64(0xFFFFFFFF)


def worth_advancing(changed: int, whole: Csr) -> bool:
    """Whether advancing an adjacency is faster than building it, for a number of changed pairs."""
    return changed * 2 * _REBUILD_SHARE <= len(whole.indices)


def advance_adjacency(
    before: Csr, num_nodes: int, changed: Int64, table: Int64, bits: int, records: Int32, weights: Float32
) -> Csr:
    """Adjacency some snapshots later.

    Args:
        before: The earlier adjacency.
        num_nodes: Rows of the new one.
        changed: int64 (c,) keys of the added, refreshed and removed pairs, in any order.
        table: Of ``PairIndex``, as are the next three.
        bits: See there.
        records: See there.
        weights: See there.
    """
    entries = distinct(changed, _swap(changed))
    present, combined = _combine(entries, table, bits, records, weights)
    arrays = before.indptr, before.indices, before.weights
    return Csr(*_advance(*arrays, num_nodes, entries, present, combined))


@njit(cache=True, nogil=True)
def sorted_rows(rows: Rows, entries: Int32, records: Int32, weights: Float32) -> tuple[Int64, Int32, Float32]:
    """Sorted adjacency of unsorted rows: both directions, weights of directions added.

    Visits nodes in order and appends each to its neighbours' rows.

    Args:
        rows: Of N nodes.
        entries: int32, record of each entry.
        records: int32 (capacity, 8) of ``PairIndex``.
        weights: float32, the same bytes.

    Returns:
        indptr int64 (N + 1,), indices int32 (entries,), weights float32 (entries,).
    """
    nodes = len(rows.start)
    indptr = np.zeros(nodes + 1, np.int64)
    for v in range(nodes):
        indptr[v + 1] = indptr[v] + rows.end[v] - rows.start[v]
    indices = np.empty(indptr[-1], np.int32)
    combined = np.empty(indptr[-1], np.float32)
    filled = indptr[:-1].copy()
    for v in range(nodes):
        for k in range(rows.start[v], rows.end[v]):
            u = rows.indices[k]
            indices[filled[u]] = v
            combined[filled[u]] = _both(entries[k], records, weights)
            filled[u] += 1
    return indptr, indices, combined


@njit(cache=True, nogil=True)
def build_adjacency(num_nodes: int, keys: Int64, weight: Float32) -> tuple[Int64, Int32, Float32]:
    """Adjacency of pairs sorted by key: both directions, self-loops dropped, weights of directions added.

    Returns:
        indptr int64 (num_nodes + 1,), indices int32 (entries,), weights float32 (entries,).
    """
    mask = (np.int64(1) << KEY_BITS) - 1
    n = len(keys)
    forward = np.zeros(num_nodes + 1, np.int64)
    backward = np.zeros(num_nodes + 1, np.int64)
    for i in range(n):
        forward[(keys[i] >> KEY_BITS) + 1] += 1
        backward[(keys[i] & mask) + 1] += 1
    for v in range(num_nodes):
        forward[v + 1] += forward[v]
        backward[v + 1] += backward[v]
    incoming = np.empty(n, np.int64)  # rows of pairs by dst, then src: a stable counting sort
    fill = backward[:-1].copy()
    for i in range(n):
        dst = keys[i] & mask
        incoming[fill[dst]] = i
        fill[dst] += 1
    indptr = np.zeros(num_nodes + 1, np.int64)
    indices = np.empty(2 * n, np.int32)
    weights = np.empty(2 * n, np.float32)
    m = 0
    for v in range(num_nodes):
        i, end_i, j, end_j = forward[v], forward[v + 1], backward[v], backward[v + 1]
        while i < end_i or j < end_j:
            out = (keys[i] & mask) if i < end_i else mask
            into = (keys[incoming[j]] >> KEY_BITS) if j < end_j else mask
            total = np.float32(0)
            if out <= into:
                total = weight[i]
                i += 1
            if into <= out:
                total = weight[incoming[j]] if into < out else np.float32(total + weight[incoming[j]])
                j += 1
            if min(out, into) != v:
                indices[m], weights[m] = min(out, into), total
                m += 1
        indptr[v + 1] = m
    return indptr, indices[:m].copy(), weights[:m].copy()


def _swap(keys: Int64) -> Int64:
    return ((keys & ((1 << KEY_BITS) - 1)) << KEY_BITS) | (keys >> KEY_BITS)


@njit(cache=True, nogil=True, inline="always")
def _both(record: int, records: Int32, weights: Float32) -> np.float32:
    """Sum of the weights of a record's live directions."""
    there = weights[record, WEIGHT] if records[record, SEEN] >= 0 else np.float32(0)
    back = weights[record, WEIGHT + 1] if records[record, SEEN + 1] >= 0 else np.float32(0)
    return np.float32(there + back)


@njit(cache=True, nogil=True)
def _combine(
    entries: Int64, table: Int64, bits: int, records: Int32, weights: Float32
) -> tuple[Bool, Float32]:
    """Whether an undirected entry is live now, and its weight over both directions."""
    mask = (np.int64(1) << KEY_BITS) - 1
    present = np.zeros(len(entries), np.bool_)
    combined = np.zeros(len(entries), np.float32)
    for e in range(len(entries)):
        u, v = entries[e] >> KEY_BITS, entries[e] & mask
        place = find(table, bits, records, min(u, v), max(u, v)) if u != v else np.int64(-1)
        if place >= 0:
            present[e] = True
            combined[e] = _both(table[place] & _RECORD, records, weights)
    return present, combined


@njit(cache=True, nogil=True)
def _advance(
    indptr: Int64,
    indices: Int32,
    weights: Float32,
    num_nodes: int,
    entries: Int64,
    present: Bool,
    combined: Float32,
) -> tuple[Int64, Int32, Float32]:
    """Merge changed entries, sorted by (row, column), into the rows of an adjacency."""
    mask = (np.int64(1) << KEY_BITS) - 1
    new_indptr = np.zeros(num_nodes + 1, np.int64)
    new_indices = np.empty(len(indices) + len(entries), np.int32)
    new_weights = np.empty(len(indices) + len(entries), np.float32)
    m = e = 0
    old_nodes = len(indptr) - 1
    for v in range(num_nodes):
        i = indptr[v] if v < old_nodes else 0
        end = indptr[v + 1] if v < old_nodes else 0
        while e < len(entries) and (entries[e] >> KEY_BITS) == v:
            column = entries[e] & mask
            while i < end and indices[i] < column:
                new_indices[m], new_weights[m] = indices[i], weights[i]
                m += 1
                i += 1
            if i < end and indices[i] == column:
                i += 1
            if present[e]:
                new_indices[m], new_weights[m] = column, combined[e]
                m += 1
            e += 1
        while i < end:
            new_indices[m], new_weights[m] = indices[i], weights[i]
            m += 1
            i += 1
        new_indptr[v + 1] = m
    return new_indptr, new_indices[:m].copy(), new_weights[:m].copy()
