"""The undirected adjacency of the live pairs: built whole, or advanced by what changed."""

import numpy as np
from numba import njit
from numpy.typing import NDArray

from stream.snapshots.delta import Csr, Float32, Int32, Int64
from stream.snapshots.pairs import KEY_BITS

_REBUILD_SHARE = 4
"""Above one changed pair in so many, building anew is faster than advancing (both give equal arrays)."""


def next_adjacency(before: Csr, num_nodes: int, keys: Int64, weight: Float32, changed: Int64) -> Csr:
    """Adjacency after a snapshot.

    Args:
        before: Adjacency before it.
        num_nodes: Rows of the new one.
        keys: int64 (n,) ascending keys of the live pairs after it.
        weight: float32 (n,).
        changed: int64 (c,) keys of added, refreshed and removed pairs.
    """
    if len(changed) * _REBUILD_SHARE > len(keys):
        return Csr(*build_adjacency(num_nodes, keys, weight))
    entries = np.unique(np.concatenate([changed, _swap(changed)]))
    present, combined = _combine(entries, keys, weight)
    return Csr(
        *_advance(before.indptr, before.indices, before.weights, num_nodes, entries, present, combined)
    )


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


@njit(cache=True, nogil=True)
def _combine(entries: Int64, keys: Int64, weight: Float32) -> tuple[NDArray[np.bool_], Float32]:
    """Whether an undirected entry is live after the snapshot, and its weight over both directions."""
    mask = (np.int64(1) << KEY_BITS) - 1
    present = np.zeros(len(entries), np.bool_)
    combined = np.zeros(len(entries), np.float32)
    i = 0
    for e in range(len(entries)):
        key = entries[e]
        swapped = ((key & mask) << KEY_BITS) | (key >> KEY_BITS)
        if key == swapped:
            continue
        i += np.searchsorted(keys[i:], key)
        if i < len(keys) and keys[i] == key:
            present[e] = True
            combined[e] = weight[i]
        j = np.searchsorted(keys, swapped)
        if j < len(keys) and keys[j] == swapped:
            combined[e] = np.float32(combined[e] + weight[j]) if present[e] else weight[j]
            present[e] = True
    return present, combined


@njit(cache=True, nogil=True)
def _advance(
    indptr: Int64,
    indices: Int32,
    weights: Float32,
    num_nodes: int,
    entries: Int64,
    present: NDArray[np.bool_],
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
