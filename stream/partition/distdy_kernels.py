"""DistDy's refinement (Alg. 2). Arrays in, arrays out.

What is known of a node is float32 (≥ N, 2): its server, −1 for none, and the chance ``min(d, f) / d`` that a given
neighbour of it is sampled. Side by side, a neighbour costs one cache miss instead of two.
"""

import numpy as np
from numba import njit

from stream.partition.distdy_base import REFERENCE_BYTES
from stream.partition.node_sets import Marks, ascending
from stream.snapshots.delta import Float32, Float64, Int32, Int64, Rows


@njit(cache=True, nogil=True)
def refine(
    rows: Rows,
    first: Int64,
    known: Float32,
    scale: float,
    before: Int32,
    extra: Int64,
    full_bytes: int,
    free: Int64,
    held: Int64,
    reward: Float64,
    later_reward: Float64,
    toll: Float64,
    thresholds: Float64,
    most: int,
    sweeps: int,
    marks: Marks,
    ever: Marks,
    asked: Marks,
) -> tuple[float, Int64, Int32]:
    """Move nodes to better servers until none gains or the budget is spent (DistDy Alg. 2).

    A node goes to the server with the best score among those where it fits and that hold fewer than ``most``
    nodes; ties stay, then the lower server. Every move changes the payoff by the difference of the scores.

    Sweeps with a threshold come first: they look at all of ``first`` and also let a node move that loses less than
    the threshold (threshold accepting: Dueck and Scheuer, J. Comput. Phys. 90, 1990). One more takes all of ``first``,
    then only those are looked at to which a neighbour's move gave a reason: neighbours that are not on its new server.

    Args:
        rows: Adjacency of the snapshot.
        first: int64, ascending: nodes of the first sweep.
        known: Servers and chances; servers are written to. An edge weighs scale·(chance_u + chance_v).
        scale: C·B/N of the edge weights.
        before: int32 (≥ N,) owner at the snapshot before, −1 for none.
        extra: int64 (≥ N,) bytes that a node takes on its server of before, above those of a reference.
        full_bytes: What it takes anywhere else.
        free: int64 (K,) bytes left on each server; written to.
        held: int64 (K,) nodes on each server; written to.
        reward: float64 (K,) gain of a node of the first sweep that stays on server k; negative: its charge.
        later_reward: The same of all other nodes.
        toll: float64 (K,) what a server's price grows by with each node on it: the j-th pays j tolls.
        thresholds: float64, what a move may lose less than, a sweep.
        most: Nodes that a server may hold after a move.
        sweeps: M, sweeps at most; more than there are thresholds.
        marks: bool (≥ N,), all false before and after.
        ever: Another one.
        asked: Another one.

    Returns:
        What the payoff has risen by, the nodes that moved at least once, int64, without repeats, and their servers
        before, int32.
    """
    parts = len(free)
    inside = np.zeros(parts, np.float64)
    # Only as much of these is ever touched as there are moves.
    queue = np.empty(len(marks), np.int64)
    movers = np.empty(len(marks), np.int64)
    came_from = np.empty(len(marks), np.int32)
    gained = 0.0
    queued = num_movers = 0
    due = first
    for v in first:
        asked[v] = True
    everything = len(first) == held.sum()
    for made in range(sweeps):
        again = made < len(thresholds)  # all of ``first`` is looked at in the next sweep, too
        threshold = thresholds[made] if again else 0.0
        for v in due:
            inside[:] = 0.0
            own = np.float64(known[v, 1])
            for i in range(rows.start[v], rows.end[v]):
                u = rows.indices[i]
                inside[int(known[u, 0])] += scale * (np.float64(known[u, 1]) + own)
            k, home = int(known[v, 0]), before[v]
            best = k
            best_score = inside[k] - toll[k] * held[k]
            gain = 0.0 if home < 0 else reward[home] if asked[v] else later_reward[home]
            if k == home:
                best_score += gain
            here = best_score
            best_score -= threshold
            stay_bytes = REFERENCE_BYTES + extra[v]
            for m in range(parts):
                if m == k or held[m] >= most:
                    continue
                score = inside[m] - toll[m] * (held[m] + 1)
                size = full_bytes
                if m == home:
                    score += gain
                    size = stay_bytes
                if score > best_score and size <= free[m]:
                    best, best_score = m, score
            if best == k:
                continue
            gained += best_score - here
            free[k] += stay_bytes if k == home else full_bytes
            free[best] -= stay_bytes if best == home else full_bytes
            held[k] -= 1
            held[best] += 1
            known[v, 0] = best
            if not ever[v]:
                ever[v] = True
                movers[num_movers] = v
                came_from[num_movers] = k
                num_movers += 1
            if again and everything:
                continue
            for i in range(rows.start[v], rows.end[v]):
                u = rows.indices[i]
                if known[u, 0] != best and not marks[u] and not (again and asked[u]):
                    marks[u] = True
                    queue[queued] = u
                    queued += 1
        if again:
            continue
        due = ascending(queue, queued, marks)
        queued = 0
        for v in due:
            marks[v] = False
        if len(due) == 0:
            break
    for v in first:
        asked[v] = False
    for i in range(num_movers):
        ever[movers[i]] = False
    return gained, movers[:num_movers].copy(), came_from[:num_movers].copy()
