"""Loops of ``byte-lp`` beside its search: shedding nodes from parts above their capacity, and the cost of a placement.

For ``known`` see ``annealing``: a node's part and half.
"""

import numpy as np

from stream.arrays.kinds import Bool, Float32, Float64, Int32, Int64
from stream.kernels import njit
from stream.snapshots.delta import Rows


def shed(
    rows: Rows,
    known: Float32,
    uses: float,
    before: Int32,
    count: Int64,
    move_cost: float,
    capacity: int,
) -> Int64:
    """Take nodes out of parts above their capacity, those with the smallest loss first, until every part holds.

    Losses are computed before the first node leaves; it goes to its best part with room (the lower one of equals). Equal losses
    leave in the order of the ids.

    Args:
        rows: The live graph.
        known: Parts and halves; parts are written to.
        uses: w, number of trainings on a snapshot.
        before: int32 (≥ N,) part at the previous snapshot, −1 for none.
        count: int64 (K,) nodes per part; written to.
        move_cost: Cost of a node away from its previous part.
        capacity: Most nodes of a part; K·capacity ≥ the live nodes.

    Returns:
        Nodes that left their part, int64, distinct.
    """
    crowded = count > capacity
    if not crowded.any():
        return np.empty(0, np.int64)
    # The last entry is for nodes without a part.
    nodes = np.flatnonzero(np.append(crowded, False)[known[:, 0].astype(np.int64)])
    loss = losses(rows, known, uses, nodes, before, crowded, move_cost)
    order = nodes[np.argsort(loss, kind="stable")]
    left: Int64 = _move_out(rows, known, uses, order, before, count, move_cost, capacity)
    return left


@njit(cache=True, nogil=True)
def losses(
    rows: Rows, known: Float32, uses: float, nodes: Int64, before: Int32, crowded: Bool, move_cost: float
) -> Float64:
    """Loss of each node if it goes to its best part that is not crowded, float64 of the shape of ``nodes``."""
    inside = np.zeros(len(crowded), np.float64)
    loss = np.empty(len(nodes), np.float64)
    for i in range(len(nodes)):
        v = nodes[i]
        _worths(rows, known, uses, before[v], v, move_cost, inside)
        best = -np.inf
        for p in range(len(crowded)):
            if not crowded[p] and inside[p] > best:
                best = inside[p]
        loss[i] = inside[int(known[v, 0])] - best
    return loss


@njit(cache=True, nogil=True)
def _move_out(
    rows: Rows,
    known: Float32,
    uses: float,
    order: Int64,
    before: Int32,
    count: Int64,
    move_cost: float,
    capacity: int,
) -> Int64:
    inside = np.zeros(len(count), np.float64)
    left = np.empty(len(order), np.int64)
    size = 0
    for v in order:
        k = int(known[v, 0])
        if count[k] <= capacity:
            continue
        _worths(rows, known, uses, before[v], v, move_cost, inside)
        best = -1
        for p in range(len(count)):
            if count[p] < capacity and (best < 0 or inside[p] > inside[best]):
                best = p
        known[v, 0] = best
        count[k] -= 1
        count[best] += 1
        left[size] = v
        size += 1
    return left[:size].copy()


@njit(cache=True, nogil=True)
def _worths(
    rows: Rows, known: Float32, uses: float, home: int, v: int, move_cost: float, inside: Float64
) -> None:
    inside[:] = 0.0
    own = np.float64(known[v, 1])
    for i in range(rows.start[v], rows.end[v]):
        u = rows.indices[i]
        inside[int(known[u, 0])] += uses * (np.float64(known[u, 1]) + own)
    if home >= 0:
        inside[:] -= move_cost
        inside[home] += move_cost


@njit(cache=True, nogil=True)
def traffic(rows: Rows, known: Float32, uses: float, before: Int32, move_cost: float) -> float:
    """Vectors that a placement sends: those fetched across parts in ``uses`` uses, and those of moved nodes."""
    fetched, moved = 0.0, 0
    for v in range(len(rows.start)):
        k = int(known[v, 0])
        if k < 0:
            continue
        moved += before[v] >= 0 and before[v] != k
        own = np.float64(known[v, 1])
        for i in range(rows.start[v], rows.end[v]):
            u = rows.indices[i]
            if v < u and int(known[u, 0]) != k:
                fetched += uses * (own + np.float64(known[u, 1]))
    return fetched + move_cost * moved
