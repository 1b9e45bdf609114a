"""DistDy's loops: base partition (Alg. 1) and refinement (Alg. 2). Arrays in, arrays out."""

import numpy as np
from numba import njit

from stream.snapshots.delta import Float64, Int32, Int64


@njit(cache=True, nogil=True)
def base_partition(
    before: Int32, stay_bytes: Int64, full_bytes: int, free: Int64, most: int
) -> tuple[Int32, int]:
    """Keep each node where it was if its change fits, put the rest where most is free (DistDy Alg. 1).

    Beyond the paper, no server holds more than ``most`` nodes as far as memory allows: the rest goes to servers
    below it first, and of nodes that were kept those past it follow, the youngest first, where they fit.

    Args:
        before: int32 (n,) owner of each live node at the snapshot before, −1 for none.
        stay_bytes: int64 (n,) what a node takes where it was.
        full_bytes: What a node takes anywhere else.
        free: int64 (K,) free bytes a server; written to.
        most: Nodes a server; K·most ≥ n.

    Returns:
        Owners int32 (n,), and the number of nodes placed: below n where the next one fits nowhere.
    """
    owner = np.full(len(before), -1, np.int32)
    count = np.zeros(len(free), np.int64)
    placed = 0
    for i in range(len(before)):
        k = before[i]
        if k >= 0 and stay_bytes[i] <= free[k]:
            owner[i] = k
            free[k] -= stay_bytes[i]
            count[k] += 1
            placed += 1
    for i in range(len(before)):
        if owner[i] >= 0:
            continue
        k = _roomiest(free, count, full_bytes, most)
        if k < 0:
            k = _roomiest(free, count, full_bytes, len(before))
        if k < 0:
            return owner, placed
        owner[i] = k
        free[k] -= full_bytes
        count[k] += 1
        placed += 1
    for i in range(len(before) - 1, -1, -1):
        k = owner[i]
        if count[k] <= most or k != before[i]:
            continue
        m = _roomiest(free, count, full_bytes, most)
        if m < 0:
            break
        owner[i] = m
        free[k] += stay_bytes[i]
        free[m] -= full_bytes
        count[k] -= 1
        count[m] += 1
    return owner, placed


@njit(cache=True, nogil=True, inline="always")
def _roomiest(free: Int64, count: Int64, size: int, most: int) -> int:
    """Server with most free memory of those that hold fewer than ``most`` nodes and fit ``size``; −1 for none."""
    best = -1
    for k in range(len(free)):
        if count[k] < most and size <= free[k] and (best < 0 or free[k] > free[best]):
            best = k
    return best


@njit(cache=True, nogil=True)
def refine(
    indptr: Int64,
    indices: Int32,
    live: Int64,
    chance: Float64,
    scale: float,
    before: Int32,
    owner: Int32,
    stay_bytes: Int64,
    full_bytes: int,
    free: Int64,
    reward: Float64,
    toll: Float64,
    most: int,
    sweeps: int,
) -> tuple[int, int]:
    """Move nodes to better servers until none gains or the budget is spent (DistDy Alg. 2).

    A node goes to the server with the best score among those where it fits and that hold fewer than ``most``
    nodes; ties stay, then the lower server. Every move raises the payoff by the difference of the scores.
    After the first sweep only neighbours of moved nodes are looked at again.

    Args:
        indptr: int64 (N + 1,) adjacency of the snapshot.
        indices: int32 (entries,).
        live: int64 (n,) nodes to place, in the order of the sweeps.
        chance: float64 (N,) ``min(d, f) / d``; an edge weighs scale·(chance_u + chance_v).
        scale: C·B/N of the edge weights.
        before: int32 (N,) owner at the snapshot before, −1 for none.
        owner: int32 (N,) current owner; written to.
        stay_bytes: int64 (N,) what a node takes on its server of before.
        full_bytes: What it takes anywhere else.
        free: int64 (K,) bytes left on each server; written to.
        reward: float64 (K,) gain of a node that stays on server k; negative: its charge.
        toll: float64 (K,) what a server's price grows by with each node on it: the j-th pays j tolls.
        most: Nodes that a server may hold after a move.
        sweeps: M, sweeps at most.

    Returns:
        Sweeps made, and nodes moved (a node that moves twice counts twice).
    """
    parts = len(free)
    count = np.zeros(parts, np.int64)
    due = np.zeros(len(before), np.bool_)
    for v in live:
        count[owner[v]] += 1
        due[v] = True
    inside = np.zeros(parts, np.float64)
    moves = 0
    for sweep in range(sweeps):
        next_due = np.zeros(len(before), np.bool_)
        moved = 0
        for v in live:
            if not due[v]:
                continue
            inside[:] = 0.0
            for i in range(indptr[v], indptr[v + 1]):
                u = indices[i]
                inside[owner[u]] += scale * (chance[u] + chance[v])
            k, home = owner[v], before[v]
            best = k
            best_score = inside[k] - toll[k] * count[k]
            if k == home:
                best_score += reward[k]
            for m in range(parts):
                if m == k or count[m] >= most:
                    continue
                score = inside[m] - toll[m] * (count[m] + 1)
                size = full_bytes
                if m == home:
                    score += reward[m]
                    size = stay_bytes[v]
                if score > best_score and size <= free[m]:
                    best, best_score = m, score
            if best != k:
                free[k] += stay_bytes[v] if k == home else full_bytes
                free[best] -= stay_bytes[v] if best == home else full_bytes
                count[k] -= 1
                count[best] += 1
                owner[v] = best
                moved += 1
                for i in range(indptr[v], indptr[v + 1]):
                    next_due[indices[i]] = True
        moves += moved
        if moved == 0:
            return sweep + 1, moves
        due = next_due
    return sweeps, moves


@njit(cache=True, nogil=True)
def inside_weight(indptr: Int64, indices: Int32, chance: Float64, scale: float, owner: Int32) -> float:
    """U: weight of all pairs whose ends have one owner (DistDy eq. 2)."""
    total = 0.0
    for u in range(len(indptr) - 1):
        for i in range(indptr[u], indptr[u + 1]):
            v = indices[i]
            if u < v and owner[u] == owner[v]:
                total += scale * (chance[u] + chance[v])
    return total
