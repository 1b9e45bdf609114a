"""DistDy's base partition (Alg. 1): placed nodes stay, others go where memory is free."""

import numpy as np

from stream.arrays.kinds import Int32, Int64
from stream.kernels import njit

REFERENCE_BYTES = 8
"""Bytes of a node in a snapshot that doesn't change it: a reference to its vector."""


def base_partition(
    new: Int64,
    before: Int32,
    known: Int32,
    extra: Int64,
    stay: Int64,
    full_bytes: int,
    free: Int64,
    held: Int64,
    most: int,
) -> tuple[Int64, int]:
    """Keep each node in its place if its change fits, put the others where most memory is free (DistDy Alg. 1).

    Beyond the paper, no server has more than ``most`` nodes as far as memory allows: other nodes go to servers below it first,
    then kept nodes beyond it are moved, the youngest first, where they fit. If all old nodes fit again, only new nodes and those
    beyond the limit are looked at.

    Args:
        new: int64 (m,), ascending: nodes without an owner.
        before: int32 (≥ N,) owner of each live node at the previous snapshot, −1 for none.
        known: int32 (≥ N, 2), first the server of each node, as in ``before``; written to.
        extra: int64 (≥ N,) bytes of changed segments.
        stay: int64 (K,) bytes of all nodes of each server if they stay.
        full_bytes: Bytes of a node away from its place.
        free: int64 (K,) free bytes per server; written to.
        held: int64 (K,) nodes per server, without the new ones; written to.
        most: Most nodes per server; K·most ≥ the number of live nodes.

    Returns:
        Nodes that did not stay, int64, distinct, and how many of them found no place because the next one fits nowhere.
    """
    waiting = new
    if (stay <= free).all():
        free -= stay
    else:
        waiting = np.sort(np.concatenate([new, _keep(before, known, extra, free, held)]))
    placed = _spread(waiting, known, full_bytes, free, held, most)
    if placed < len(waiting):
        return waiting, len(waiting) - placed
    left = _shed(before, known, extra, full_bytes, free, held, most)
    return np.concatenate([waiting, left]), 0


@njit(cache=True, nogil=True)
def _keep(before: Int32, known: Int32, extra: Int64, free: Int64, held: Int64) -> Int64:
    """Keep nodes in the order of their ids while their change fits; the others, int64, lose their server."""
    homeless = np.empty(len(before), np.int64)
    size = 0
    for v in range(len(before)):
        k = before[v]
        if k < 0:
            continue
        need = REFERENCE_BYTES + extra[v]
        if need <= free[k]:
            free[k] -= need
        else:
            known[v, 0] = -1
            held[k] -= 1
            homeless[size] = v
            size += 1
    return homeless[:size].copy()


@njit(cache=True, nogil=True)
def _spread(waiting: Int64, known: Int32, full_bytes: int, free: Int64, held: Int64, most: int) -> int:
    """Give nodes the server with most free memory, below the limit if possible; returns how many found one."""
    for i in range(len(waiting)):
        k = _roomiest(free, held, full_bytes, most)
        if k < 0:
            k = _roomiest(free, held, full_bytes, len(known))
        if k < 0:
            return i
        known[waiting[i], 0] = k
        free[k] -= full_bytes
        held[k] += 1
    return len(waiting)


@njit(cache=True, nogil=True)
def _shed(
    before: Int32, known: Int32, extra: Int64, full_bytes: int, free: Int64, held: Int64, most: int
) -> Int64:
    """Move the youngest kept nodes from servers above the limit; returns these nodes, int64."""
    over = 0
    for k in range(len(held)):
        over += max(held[k] - most, 0)
    left = np.empty(over, np.int64)
    size = 0
    for v in range(len(before) - 1, -1, -1):
        if size == over:
            break
        k = known[v, 0]
        if k < 0 or held[k] <= most or k != before[v]:
            continue
        m = _roomiest(free, held, full_bytes, most)
        if m < 0:
            break
        known[v, 0] = m
        free[k] += REFERENCE_BYTES + extra[v]
        free[m] -= full_bytes
        held[k] -= 1
        held[m] += 1
        left[size] = v
        size += 1
    return left[:size]


@njit(cache=True, nogil=True, inline="always")
def _roomiest(free: Int64, held: Int64, size: int, most: int) -> int:
    """Server with most free memory among those with fewer than ``most`` nodes and room for ``size``; −1 for none."""
    best = -1
    for k in range(len(free)):
        if held[k] < most and size <= free[k] and (best < 0 or free[k] > free[best]):
            best = k
    return best
