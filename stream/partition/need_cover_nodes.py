"""The need cover's state of all nodes: what a snapshot reads of it at first, and writes at last.

Every loop in between works on arrays of the snapshot's size. Rows of all nodes are fetched ahead, for each is a miss.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

from stream.partition.interface import Why
from stream.partition.part_sets import lowest_bit
from stream.snapshots.delta import Float32, Int32, Int64
from stream.snapshots.prefetch import AHEAD, prefetch

Bool = NDArray[np.bool_]
Words = NDArray[np.uint64]
Int16 = NDArray[np.int16]

_NEW, _MOVED, _REPLICATED, _DEMOTED = int(Why.NEW), int(Why.MOVED), int(Why.REPLICATED), int(Why.DEMOTED)
REASONS = 8
"""A row of changes is ``(node · P + part) · REASONS + why``, so that sorting puts it in order."""

_NONE = np.uint64(0)


@njit(cache=True, nogil=True)
def read_nodes(
    ids: Int64,
    home: Int32,
    is_shared: Bool,
    need: Float32,
    at_home: Float32,
    other: Int16,
    at_other: Float32,
    unit: Float32,
) -> tuple[Int16, Bool, Float32, Float32, Int16, Float32]:
    """Rows of the snapshot's nodes, weights in units of one of its edges.

    Args:
        ids: int64 (n,).
        home: int32 (N,).
        is_shared: bool (N,).
        need: float32 (N,).
        at_home: float32 (N,).
        other: int16 (N,).
        at_other: float32 (N,).
        unit: float32 scalar, stored weight of an edge of this snapshot.

    Returns:
        ``home`` (as int16) to ``at_other`` of these nodes.
    """
    n = len(ids)
    homes, shared, others = np.empty(n, np.int16), np.empty(n, np.bool_), np.empty(n, np.int16)
    needs, inside, outside = np.empty(n, np.float32), np.empty(n, np.float32), np.empty(n, np.float32)
    for i in range(n):
        ahead = ids[min(i + AHEAD, n - 1)]
        prefetch(home, ahead)
        prefetch(is_shared, ahead)
        prefetch(need, ahead)
        prefetch(at_home, ahead)
        prefetch(other, ahead)
        prefetch(at_other, ahead)
        v = np.uint64(ids[i])
        homes[i], shared[i], others[i] = home[v], is_shared[v], other[v]
        needs[i], inside[i], outside[i] = need[v] / unit, at_home[v] / unit, at_other[v] / unit
    return homes, shared, needs, inside, others, outside


@njit(cache=True, nogil=True)
def open_masks(ids: Int64, masks: Words, home: Int16, kept: Bool) -> Words:
    """Parts of the snapshot's nodes before its edges are assigned, uint64 (n, words).

    Args:
        ids: int64 (n,).
        masks: uint64 (N, words).
        home: int16 (n,) new homes.
        kept: bool (n,) nodes that were shared and still are: they keep their parts, others are at home only.
    """
    n, words = len(ids), masks.shape[1]
    flat = masks.reshape(-1)
    out = np.zeros((n, words), np.uint64)
    for i in range(n):
        prefetch(flat, words * ids[min(i + AHEAD, n - 1)])
        if kept[i]:
            for w in range(words):
                out[i, w] = masks[ids[i], w]
        out[i, home[i] >> 6] |= np.uint64(1) << np.uint64(home[i] & 63)
    return out


@njit(cache=True, nogil=True)
def _changes(
    node: int,
    before: int,
    home: int,
    masks: Words,
    new_masks: Words,
    i: int,
    placements: Int64,
    rows: Int64,
    r: int,
) -> int:
    """Note what a node's home and parts in row i of ``new_masks`` change, from row r; the end of its rows."""
    parts = len(placements)
    for w in range(masks.shape[1]):
        had, has = masks[node, w], new_masks[i, w]
        changed = had ^ has
        if home != before and home >> 6 == w:
            changed |= np.uint64(1) << np.uint64(home & 63)
        while changed != _NONE:
            bit = changed & (~changed + np.uint64(1))
            changed ^= bit
            part = 64 * w + lowest_bit(bit)
            was, now = had & bit != _NONE, has & bit != _NONE
            why = _REPLICATED if now else _DEMOTED
            if part == home and home != before:
                why = _NEW if before < 0 else _MOVED
            placements[part] += np.int64(now) - np.int64(was)
            rows[r] = (node * parts + part) * REASONS + why
            r += 1
    return r


@njit(cache=True, nogil=True)
def write_nodes(
    ids: Int64,
    new_home: Int16,
    new_masks: Words,
    new_need: Float32,
    inside: Float32,
    others: Int16,
    outside: Float32,
    unit: Float32,
    home: Int32,
    masks: Words,
    need: Float32,
    at_home: Float32,
    other: Int16,
    at_other: Float32,
    local: Int32,
    placements: Int64,
    rows: Int64,
) -> tuple[int, int]:
    """Write the snapshot's nodes back, and note what changed in their parts.

    Args:
        ids: int64 (n,).
        new_home: int16 (n,).
        new_masks: uint64 (n, words).
        new_need: float32 (n,).
        inside: float32 (n,).
        others: int16 (n,).
        outside: float32 (n,).
        unit: As in ``read_nodes``.
        home: int32 (N,), written to, as are the other arrays of all nodes.
        masks: uint64 (N, words).
        need: float32 (N,).
        at_home: float32 (N,).
        other: int16 (N,).
        at_other: float32 (N,).
        local: int32 (N,): back to −1.
        placements: int64 (P,) nodes in each part, kept current.
        rows: int64, written: changes, by node in the order of ``ids``.

    Returns:
        Rows, and nodes that moved.
    """
    n, r, moved, words = len(ids), 0, 0, masks.shape[1]
    flat = masks.reshape(-1)
    for i in range(n):
        ahead = ids[min(i + AHEAD, n - 1)]
        prefetch(home, ahead)
        prefetch(flat, words * ahead)
        prefetch(need, ahead)
        prefetch(at_home, ahead)
        prefetch(other, ahead)
        prefetch(at_other, ahead)
        prefetch(local, ahead)
        v = np.uint64(ids[i])
        former = home[v]
        r = _changes(ids[i], former, np.int32(new_home[i]), masks, new_masks, i, placements, rows, r)
        moved += former >= 0 and former != new_home[i]
        for w in range(words):
            masks[v, w] = new_masks[i, w]
        home[v], other[v], local[v] = new_home[i], others[i], -1
        need[v], at_home[v], at_other[v] = new_need[i] * unit, inside[i] * unit, outside[i] * unit
    return r, moved


@njit(cache=True, nogil=True)
def send_home(ids: Int64, home: Int32, masks: Words, placements: Int64, rows: Int64, r: int) -> int:
    """Take all parts but their home from these nodes; rows as of ``write_nodes`` from row r, and their end."""
    only = np.empty((1, masks.shape[1]), np.uint64)
    for i in range(len(ids)):
        v = ids[i]
        only[0, :] = _NONE
        only[0, home[v] >> 6] = np.uint64(1) << np.uint64(home[v] & 63)
        r = _changes(v, home[v], home[v], masks, only, 0, placements, rows, r)
        masks[v, :] = only[0, :]
    return r
