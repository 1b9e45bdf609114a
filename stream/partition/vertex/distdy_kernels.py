"""DistDy's refinement (Alg. 2). Arrays in, arrays out.

A node is known by int32 (≥ N, 2): its server, −1 for none, and the chance ``min(d, f) / d`` that a given neighbour of it is
sampled, in multiples of 1 / ``FRACTION``. Side by side, a neighbour costs one cache miss instead of two, and sums of whole
numbers don't depend on the order.
"""

import numpy as np

from stream.arrays.kinds import Bool, Float64, Int32, Int64
from stream.kernels import njit
from stream.kernels.node_sets import ascending
from stream.partition.vertex.distdy_base import REFERENCE_BYTES
from stream.partition.vertex.pair_totals import FRACTION
from stream.snapshots.delta import Rows

_KEPT = 1 << 24
"""Most sums that are kept: 128 MiB."""
_SETTLED = 8
"""Sums are kept once fewer than one in this many nodes move, because updating them costs a row per move."""


@njit(cache=True, nogil=True)
def refine(
    rows: Rows,
    first: Int64,
    known: Int32,
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
    marks: Bool,
    ever: Bool,
    asked: Bool,
    slot: Int32,
) -> tuple[float, Int64, Int32]:
    """Move nodes to better servers until none gains or the sweeps are used up (DistDy Alg. 2).

    A node goes to the server with the best score among those where it fits and that have fewer than ``most`` nodes; ties stay,
    then the lower server wins. Every move changes the payoff by the difference of the scores.

    Sweeps with a threshold come first: they look at all of ``first`` and also accept a loss below the threshold (threshold
    accepting: Dueck and Scheuer, J. Comput. Phys. 90, 1990). One more takes all of ``first``. Later ones take only nodes affected
    by a neighbour's move: neighbours that are not on its new server.

    If few nodes move, a node's weight on each server is summed up once, when it is first looked at, and updated by the moves of
    its neighbours: the rows of hubs, which hardly ever move, are read once per snapshot, not once per sweep.

    Args:
        rows: Adjacency of the snapshot.
        first: int64, ascending: nodes of the first sweep.
        known: Servers and chances; servers are written to. An edge weighs scale·(chance_u + chance_v).
        scale: C·B/N of the edge weights.
        before: int32 (≥ N,) owner at the previous snapshot, −1 for none.
        extra: int64 (≥ N,) bytes of a node on its previous server, beyond those of a reference.
        full_bytes: Bytes of a node on any other server.
        free: int64 (K,) bytes left on each server; written to.
        held: int64 (K,) nodes on each server; written to.
        reward: float64 (K,) gain of a node of the first sweep that stays on server k; negative: a charge.
        later_reward: The same for all other nodes.
        toll: float64 (K,) increase of a server's price with each node on it: the j-th pays j tolls.
        thresholds: float64, limit of a move's loss per sweep.
        most: Most nodes of a server after a move.
        sweeps: M, most sweeps; more than there are thresholds.
        marks: bool (≥ N,), all false before and after.
        ever: Another one.
        asked: Another one.
        slot: int32 (≥ N,), all −1 before and after.

    Returns:
        Increase of the payoff, the nodes that moved at least once, int64, distinct, and their previous servers, int32.
    """
    parts = len(free)
    unit = scale / FRACTION
    # Pages are touched only for nodes looked at and moves. The last row is for nodes without their own.
    room = min(len(marks), _KEPT // parts)
    sums = np.empty((room + 1) * parts, np.int64)
    kept = np.empty(room, np.int64)
    num_kept = 0
    queue = np.empty(len(marks), np.int64)
    movers = np.empty(len(marks), np.int64)
    came_from = np.empty(len(marks), np.int32)
    gained = 0.0
    queued = num_movers = 0
    due = first
    for v in first:
        asked[v] = True
    everything = len(first) == held.sum()
    settled = not everything
    for made in range(sweeps):
        again = made < len(thresholds)  # the next sweep takes all of ``first``, too
        threshold = thresholds[made] if again else 0.0
        moved = 0
        for v in due:
            at: int = slot[v] * parts
            if at < 0:
                at = num_kept * parts
                if settled and num_kept < room and rows.end[v] - rows.start[v] > parts // 4:
                    slot[v] = num_kept
                    kept[num_kept] = v
                    num_kept += 1
                _sum_up(rows, v, known, sums[at : at + parts])
            k, home = int(known[v, 0]), before[v]
            best = k
            best_score = unit * sums[at + k] - toll[k] * held[k]
            gain = 0.0 if home < 0 else reward[home] if asked[v] else later_reward[home]
            if k == home:
                best_score += gain
            here = best_score
            best_score -= threshold
            stay_bytes = REFERENCE_BYTES + extra[v]
            for m in range(parts):
                if m == k or held[m] >= most:
                    continue
                score = unit * sums[at + m] - toll[m] * (held[m] + 1)
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
            moved += 1
            if not ever[v]:
                ever[v] = True
                movers[num_movers] = v
                came_from[num_movers] = k
                num_movers += 1
            if again and everything and num_kept == 0:
                continue
            for i in range(rows.start[v], rows.end[v]):
                u = rows.indices[i]
                if slot[u] >= 0:
                    weight = np.int64(known[u, 1]) + np.int64(known[v, 1])
                    sums[np.int64(slot[u]) * parts + k] -= weight
                    sums[np.int64(slot[u]) * parts + best] += weight
                if known[u, 0] != best and not marks[u] and not (again and asked[u]):
                    marks[u] = True
                    queue[queued] = u
                    queued += 1
        settled = settled or moved * _SETTLED < len(due)
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
    for i in range(num_kept):
        slot[kept[i]] = -1
    return gained, movers[:num_movers].copy(), came_from[:num_movers].copy()


@njit(cache=True, nogil=True, inline="always")
def _sum_up(rows: Rows, v: int, known: Int32, sums: Int64) -> None:
    """Weight of a node on each server, in fractions: int64 (K,)."""
    sums[:] = 0
    own = np.int64(known[v, 1])
    for i in range(rows.start[v], rows.end[v]):
        u = rows.indices[i]
        sums[known[u, 0]] += np.int64(known[u, 1]) + own
