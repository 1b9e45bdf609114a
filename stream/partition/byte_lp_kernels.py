"""Loops of ``byte-lp``: sweeps of label propagation under capacities, and what a placement costs."""

import numpy as np
from numba import njit
from numpy.typing import NDArray

from stream.snapshots.delta import Float64, Int32, Int64


@njit(cache=True, nogil=True)
def sweep(
    indptr: Int64,
    indices: Int32,
    chance: Float64,
    uses: float,
    before: Int32,
    owner: Int32,
    count: Int64,
    first: Int64,
    move_cost: float,
    gamma: float,
    capacity: int,
    sweeps: int,
) -> tuple[int, int]:
    """Give nodes, one after the other, the part that is best for them, until none changes.

    Part p is worth Σ uses·(chance_u + chance_v) over the neighbours u in p, less ``move_cost`` where p is not the
    node's part of before, less ``gamma`` for each other node in p. A part that holds ``capacity`` nodes takes no
    more. Ties stay, then the lower part. After the first sweep only those are looked at to which a neighbour's change
    gave a reason to move: neighbours that are not in its new part. Every sweep goes in the order of the ids.

    Args:
        indptr: int64 (N + 1,).
        indices: int32 (entries,).
        chance: float64 (N,) ``min(d, f) / d``; float32 is used of it.
        uses: w, how often a snapshot is trained on.
        before: int32 (N,) part at the snapshot before, −1 for none.
        owner: int32 (N,) parts; written to.
        count: int64 (K,) nodes a part; written to.
        first: int64, ascending: the nodes of the first sweep.
        move_cost: In units of a neighbour's vector.
        gamma: What a part is worth less with each node in it.
        capacity: Nodes.
        sweeps: At most so many.

    Returns:
        Sweeps made, and changes.
    """
    parts = len(count)
    inside = np.zeros(parts, np.float64)
    # Part and chance of a node side by side: a neighbour costs one cache miss instead of two.
    known = np.empty((len(owner), 2), np.float32)
    known[:, 0] = owner
    known[:, 1] = chance
    due = np.zeros(len(indptr) - 1, np.bool_)
    for v in first:
        due[v] = True
    changes = 0
    for made in range(sweeps):
        next_due = np.zeros(len(indptr) - 1, np.bool_)
        changed = 0
        for v in range(len(due)):
            if not due[v]:
                continue
            inside[:] = 0.0
            own = np.float64(known[v, 1])
            for i in range(indptr[v], indptr[v + 1]):
                u = indices[i]
                inside[int(known[u, 0])] += uses * (np.float64(known[u, 1]) + own)
            k, home = owner[v], before[v]
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
            owner[v] = best
            known[v, 0] = best
            count[k] -= 1
            count[best] += 1
            changed += 1
            for i in range(indptr[v], indptr[v + 1]):
                if known[indices[i], 0] != best:
                    next_due[indices[i]] = True
        changes += changed
        if changed == 0:
            return made + 1, changes
        due = next_due
    return sweeps, changes


def shed(
    indptr: Int64,
    indices: Int32,
    chance: Float64,
    uses: float,
    live: Int64,
    before: Int32,
    owner: Int32,
    count: Int64,
    move_cost: float,
    capacity: int,
) -> int:
    """Take nodes out of parts above their capacity, those that lose least first, until every part holds.

    What a node loses is told before the first leaves; it goes to its best part that has room (of equal ones the
    lower). Equal losses leave in the order of the ids.

    Args:
        indptr: As of ``sweep``, like all others.
        indices: Neighbours.
        chance: Of a node to sample a given neighbour.
        uses: w.
        live: int64 (n,), ascending.
        before: Parts at the snapshot before.
        owner: Written to.
        count: Written to.
        move_cost: Of a node away from where it was.
        capacity: Nodes; K·capacity ≥ n.

    Returns:
        Nodes that left their part.
    """
    crowded = count > capacity
    if not crowded.any():
        return 0
    nodes = live[crowded[owner[live]]]
    loss = losses(indptr, indices, chance, uses, nodes, before, owner, crowded, move_cost)
    order = nodes[np.argsort(loss, kind="stable")]
    return _move_out(indptr, indices, chance, uses, order, before, owner, count, move_cost, capacity)


@njit(cache=True, nogil=True)
def losses(
    indptr: Int64,
    indices: Int32,
    chance: Float64,
    uses: float,
    nodes: Int64,
    before: Int32,
    owner: Int32,
    crowded: NDArray[np.bool_],
    move_cost: float,
) -> Float64:
    """What each node loses by going to its best part that is not crowded, float64 of the shape of ``nodes``."""
    inside = np.zeros(len(crowded), np.float64)
    loss = np.empty(len(nodes), np.float64)
    for i in range(len(nodes)):
        v = nodes[i]
        _worths(indptr, indices, chance, uses, before[v], owner, v, move_cost, inside)
        best = -np.inf
        for p in range(len(crowded)):
            if not crowded[p] and inside[p] > best:
                best = inside[p]
        loss[i] = inside[owner[v]] - best
    return loss


@njit(cache=True, nogil=True)
def _move_out(
    indptr: Int64,
    indices: Int32,
    chance: Float64,
    uses: float,
    order: Int64,
    before: Int32,
    owner: Int32,
    count: Int64,
    move_cost: float,
    capacity: int,
) -> int:
    inside = np.zeros(len(count), np.float64)
    left = 0
    for v in order:
        k = owner[v]
        if count[k] <= capacity:
            continue
        _worths(indptr, indices, chance, uses, before[v], owner, v, move_cost, inside)
        best = -1
        for p in range(len(count)):
            if count[p] < capacity and (best < 0 or inside[p] > inside[best]):
                best = p
        owner[v] = best
        count[k] -= 1
        count[best] += 1
        left += 1
    return left


@njit(cache=True, nogil=True)
def _worths(
    indptr: Int64,
    indices: Int32,
    chance: Float64,
    uses: float,
    home: int,
    owner: Int32,
    v: int,
    move_cost: float,
    inside: Float64,
) -> None:
    inside[:] = 0.0
    for i in range(indptr[v], indptr[v + 1]):
        inside[owner[indices[i]]] += uses * (chance[indices[i]] + chance[v])
    if home >= 0:
        inside[:] -= move_cost
        inside[home] += move_cost


@njit(cache=True, nogil=True)
def traffic(
    indptr: Int64,
    indices: Int32,
    chance: Float64,
    uses: float,
    live: Int64,
    before: Int32,
    owner: Int32,
    move_cost: float,
) -> float:
    """Vectors that a placement sends: those fetched across parts in ``uses`` uses, and those of moved nodes."""
    fetched, moved = 0.0, 0
    for v in live:
        moved += before[v] >= 0 and before[v] != owner[v]
        for i in range(indptr[v], indptr[v + 1]):
            if v < indices[i] and owner[v] != owner[indices[i]]:
                fetched += uses * (chance[v] + chance[indices[i]])
    return fetched + move_cost * moved
