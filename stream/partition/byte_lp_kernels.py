"""Loops of ``byte-lp``: sweeps of label propagation under capacities, and what a placement costs.

What is known of a node is float32 (≥ N, 2): its part, −1 for none, and the chance ``min(d, f) / d`` that a given
neighbour of it is sampled. Side by side, a neighbour costs one cache miss instead of two.
"""

import numpy as np
from numba import njit

from stream.partition.node_sets import Marks, ascending
from stream.snapshots.delta import Float32, Float64, Int32, Int64, Rows


@njit(cache=True, nogil=True)
def sweep(
    rows: Rows,
    known: Float32,
    uses: float,
    before: Int32,
    count: Int64,
    first: Int64,
    move_cost: float,
    gamma: float,
    capacity: int,
    sweeps: int,
    marks: Marks,
    ever: Marks,
) -> tuple[int, int, Int64]:
    """Give nodes, one after the other, the part that is best for them, until none changes.

    Part p is worth Σ uses·(chance_u + chance_v) over the neighbours u in p, less ``move_cost`` where p is not the
    node's part of before, less ``gamma`` for each other node in p. A part that holds ``capacity`` nodes takes no
    more. Ties stay, then the lower part. After the first sweep only those are looked at to which a neighbour's change
    gave a reason to move: neighbours that are not in its new part. Every sweep goes in the order of the ids.

    Args:
        rows: The live graph.
        known: Parts and chances; parts are written to.
        uses: w, how often a snapshot is trained on.
        before: int32 (≥ N,) part at the snapshot before, −1 for none.
        count: int64 (K,) nodes a part; written to.
        first: int64, ascending: the nodes of the first sweep.
        move_cost: In units of a neighbour's vector.
        gamma: What a part is worth less with each node in it.
        capacity: Nodes.
        sweeps: At most so many.
        marks: bool (≥ N,), all false before and after.
        ever: Another one.

    Returns:
        Sweeps made, changes, and the nodes that changed at least once, int64, without repeats.
    """
    parts = len(count)
    inside = np.zeros(parts, np.float64)
    # Only as much of these is ever touched as there are changes.
    queue = np.empty(len(marks), np.int64)
    movers = np.empty(len(marks), np.int64)
    changes = num_movers = made = 0
    due = first
    for _ in range(sweeps):
        made += 1
        queued = changed = 0
        for v in due:
            inside[:] = 0.0
            own = np.float64(known[v, 1])
            for i in range(rows.start[v], rows.end[v]):
                u = rows.indices[i]
                inside[int(known[u, 0])] += uses * (np.float64(known[u, 1]) + own)
            k, home = int(known[v, 0]), before[v]
            best = k
            best_worth = inside[k] - gamma * (count[k] - 1)
            if home >= 0 and k != home:
                best_worth -= move_cost
            for p in range(parts):
                if p == k or count[p] >= capacity:
                    continue
                worth = inside[p] - gamma * count[p]
                if home >= 0 and p != home:
                    worth -= move_cost
                if worth > best_worth:
                    best, best_worth = p, worth
            if best == k:
                continue
            known[v, 0] = best
            count[k] -= 1
            count[best] += 1
            changed += 1
            if not ever[v]:
                ever[v] = True
                movers[num_movers] = v
                num_movers += 1
            for i in range(rows.start[v], rows.end[v]):
                u = rows.indices[i]
                if known[u, 0] != best and not marks[u]:
                    marks[u] = True
                    queue[queued] = u
                    queued += 1
        changes += changed
        due = ascending(queue, queued, marks)
        for v in due:
            marks[v] = False
        if changed == 0:
            break
    for i in range(num_movers):
        ever[movers[i]] = False
    return made, changes, movers[:num_movers].copy()


def shed(
    rows: Rows,
    known: Float32,
    uses: float,
    before: Int32,
    count: Int64,
    move_cost: float,
    capacity: int,
) -> Int64:
    """Take nodes out of parts above their capacity, those that lose least first, until every part holds.

    What a node loses is told before the first leaves; it goes to its best part that has room (of equal ones the
    lower). Equal losses leave in the order of the ids.

    Args:
        rows: As of ``sweep``, like all others.
        known: Parts are written to.
        uses: w.
        before: Parts at the snapshot before.
        count: Written to.
        move_cost: Of a node away from where it was.
        capacity: Nodes; K·capacity ≥ the live nodes.

    Returns:
        Nodes that left their part, int64, without repeats.
    """
    crowded = count > capacity
    if not crowded.any():
        return np.empty(0, np.int64)
    # The last entry is of those without a part.
    nodes = np.flatnonzero(np.append(crowded, False)[known[:, 0].astype(np.int64)])
    loss = losses(rows, known, uses, nodes, before, crowded, move_cost)
    order = nodes[np.argsort(loss, kind="stable")]
    left: Int64 = _move_out(rows, known, uses, order, before, count, move_cost, capacity)
    return left


@njit(cache=True, nogil=True)
def losses(
    rows: Rows, known: Float32, uses: float, nodes: Int64, before: Int32, crowded: Marks, move_cost: float
) -> Float64:
    """What each node loses by going to its best part that is not crowded, float64 of the shape of ``nodes``."""
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
