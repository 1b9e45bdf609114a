"""The need cover's state of all nodes: read at the start of a snapshot, written at its end.

Every loop in between works on arrays of the snapshot's size. Rows of all nodes are prefetched, because each is a cache miss;
values that are read and written together are one record.
"""

import numpy as np
from numpy.typing import NDArray

from stream.arrays.kinds import Bool, Float32, Int8, Int16, Int32, Int64, Words
from stream.kernels import njit
from stream.kernels.bits import lowest_bit
from stream.partition.interface import Why
from stream.snapshots.prefetch import AHEAD, prefetch

NODE = np.dtype(
    [("need", "f4"), ("at_home", "f4"), ("at_other", "f4"), ("other", "i2"), ("shared", "?")], align=True
)
"""A node: its need, the weight of its neighbours at home and in the candidate part, that part or −1, and whether it is shared;
16 bytes."""

Nodes = NDArray[np.void]

_NEW, _MOVED, _REPLICATED, _DEMOTED = int(Why.NEW), int(Why.MOVED), int(Why.REPLICATED), int(Why.DEMOTED)
REASONS = 8
"""A change is ``(node · P + part) · REASONS + why``, so that sorting orders changes."""

_NONE = np.uint64(0)


@njit(cache=True, nogil=True)
def read_nodes(
    ids: Int64, home: Int32, nodes: Nodes, unit: Float32
) -> tuple[Int16, Bool, Float32, Float32, Int16, Float32]:
    """Read the snapshot's nodes, with weights in units of one of its edges.

    Args:
        ids: int64 (n,).
        home: int32 (N,).
        nodes: ``NODE`` (N,).
        unit: float32 scalar, stored weight of an edge of this snapshot.

    Returns:
        Home (as int16), shared, need, at_home, other and at_other of these nodes.
    """
    n = len(ids)
    homes, shared, others = np.empty(n, np.int16), np.empty(n, np.bool_), np.empty(n, np.int16)
    needs, inside, outside = np.empty(n, np.float32), np.empty(n, np.float32), np.empty(n, np.float32)
    for i in range(n):
        ahead = ids[min(i + AHEAD, n - 1)]
        prefetch(home, ahead)
        prefetch(nodes, ahead)
        v = np.uint64(ids[i])
        node = nodes[v]
        homes[i], shared[i], others[i] = home[v], node.shared, node.other
        needs[i], inside[i], outside[i] = node.need / unit, node.at_home / unit, node.at_other / unit
    return homes, shared, needs, inside, others, outside


@njit(cache=True, nogil=True)
def open_masks(ids: Int64, masks: Words, home: Int16, kept: Bool) -> Words:
    """Parts of the snapshot's nodes before its edges are assigned, uint64 (n, words).

    Args:
        ids: int64 (n,).
        masks: uint64 (N, words).
        home: int16 (n,) new homes.
        kept: bool (n,) nodes that were and stay shared: they keep their parts, others are at home only.
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
    """Note the changes of a node's home and parts, given in row i of ``new_masks``, from row r on; returns their end."""
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
    new_shared: Bool,
    new_masks: Words,
    new_need: Float32,
    inside: Float32,
    others: Int16,
    outside: Float32,
    unit: Float32,
    home: Int32,
    masks: Words,
    nodes: Nodes,
    local: Int32,
    placements: Int64,
    rows: Int64,
) -> tuple[int, int, int]:
    """Write the snapshot's nodes back, and note the changes of their parts.

    Args:
        ids: int64 (n,).
        new_home: int16 (n,).
        new_shared: bool (n,).
        new_masks: uint64 (n, words).
        new_need: float32 (n,).
        inside: float32 (n,).
        others: int16 (n,).
        outside: float32 (n,).
        unit: As in ``read_nodes``.
        home: int32 (N,), written to, as are the other arrays of all nodes.
        masks: uint64 (N, words).
        nodes: ``NODE`` (N,).
        local: int32 (N,), reset to −1.
        placements: int64 (P,) nodes in each part; updated.
        rows: int64, written: changes, by node in the order of ``ids``.

    Returns:
        Numbers of rows, of nodes that moved, and of nodes in several parts.
    """
    n, r, moved, several, words = len(ids), 0, 0, 0, masks.shape[1]
    flat = masks.reshape(-1)
    for i in range(n):
        ahead = ids[min(i + AHEAD, n - 1)]
        prefetch(home, ahead)
        prefetch(flat, words * ahead)
        prefetch(nodes, ahead)
        prefetch(local, ahead)
        v = np.uint64(ids[i])
        former = home[v]
        r = _changes(ids[i], former, np.int32(new_home[i]), masks, new_masks, i, placements, rows, r)
        moved += former >= 0 and former != new_home[i]
        held = 0
        for w in range(words):
            word = new_masks[i, w]
            held += (word != _NONE) + (word & (word - np.uint64(1)) != _NONE)
            masks[v, w] = word
        several += held > 1
        home[v], local[v] = new_home[i], -1
        node = nodes[v]
        node.other, node.shared = others[i], new_shared[i]
        node.need, node.at_home, node.at_other = new_need[i] * unit, inside[i] * unit, outside[i] * unit
    return r, moved, several


@njit(cache=True, nogil=True)
def send_home(
    ids: Int64, home: Int32, masks: Words, nodes: Nodes, placements: Int64, rows: Int64, r: int
) -> int:
    """Unshare nodes, so that they keep only their home; notes as in ``write_nodes`` from row r on; returns their end."""
    only = np.empty((1, masks.shape[1]), np.uint64)
    for i in range(len(ids)):
        v = ids[i]
        only[0, :] = _NONE
        only[0, home[v] >> 6] = np.uint64(1) << np.uint64(home[v] & 63)
        r = _changes(v, home[v], home[v], masks, only, 0, placements, rows, r)
        masks[v, :] = only[0, :]
        nodes[v].shared = False
    return r


@njit(cache=True, nogil=True)
def not_named(ids: Int64, local: Int32) -> Int64:
    """The nodes without a number in ``local``, int32 (N,), in their order."""
    out = np.empty(len(ids), np.int64)
    n = 0
    for i in range(len(ids)):
        prefetch(local, ids[min(i + AHEAD, len(ids) - 1)])
        out[n] = ids[i]
        n += local[np.uint64(ids[i])] < 0
    return out[:n].copy()


@njit(cache=True, nogil=True)
def read_changes(rows: Int64, parts: int) -> tuple[Int64, Int32, Int8]:
    """Node, part and reason of sorted rows."""
    node, part = np.empty(len(rows), np.int64), np.empty(len(rows), np.int32)
    why = np.empty(len(rows), np.int8)
    for r in range(len(rows)):
        place, why[r] = rows[r] >> 3, rows[r] & 7
        node[r] = place // parts
        part[r] = place - node[r] * parts
    return node, part, why
