"""The local search of ``byte-lp``: sweeps that take the best part, and heated ones that escape local optima.

A node is known by float32 (≥ N, 2): its part, −1 for none, and its half, its contribution to the cost of each of its pairs. A
pair whose ends are in different parts costs the halves of both.
"""

import numpy as np

from stream.arrays.kinds import Float32, Int32, Int64
from stream.kernels import njit
from stream.kernels.mixing import splitmix64
from stream.snapshots.delta import Rows
from stream.snapshots.prefetch import ENTRIES, NODES_AHEAD, prefetch

_NUM_DRAWS = 1024
DRAWS: Float32 = -np.log((np.arange(_NUM_DRAWS) + 0.5) / _NUM_DRAWS).astype(np.float32)
"""Draws from the exponential distribution, the middle of each of ``_NUM_DRAWS`` equal shares."""
_DRAW_BITS = np.uint64(64 - 10)
_MULTIPLIER, _INCREMENT = np.uint64(6364136223846793005), np.uint64(1442695040888963407)
"""Knuth's linear congruential generator modulo 2⁶⁴ (MMIX); its high bits are good."""

COLUMNS = 3
"""Columns of a work row before the worths of the K parts."""
_STATE, _HALF, _START, _WORTH = 0, 1, 2, COLUMNS
_ABSENT, _IDLE, _DUE = 0.0, 1.0, 2.0


@njit(cache=True, nogil=True)
def anneal(
    rows: Rows,
    known: Float32,
    work: Float32,
    before: Int32,
    count: Int64,
    first: Int64,
    move_cost: float,
    gamma: float,
    capacity: int,
    sweeps: int,
    temperature: float,
    steps: int,
    seed: int,
) -> tuple[float, float, Int64]:
    """Give nodes, one after the other, a better part, and for a while sometimes a worse one.

    Part p is worth Σ half_u + half_v over the neighbours u in p, plus ``move_cost`` if p is the node's previous part, minus
    ``gamma`` for each other node in p. A part with ``capacity`` nodes takes no more.

    A cold sweep gives each node its best part; ties stay, then the lower part wins. A heated sweep gives it the best other part
    if that gains more than −temperature·draw, with draws from the exponential distribution (Metropolis' rule); the temperature
    falls linearly to 0. The search is one cold sweep, the heated ones, and cold ones until no node changes. If the heat has
    increased the cost, gamma aside, every node returns to its part from before it. Without heat, all sweeps are cold.

    Nodes take part from the first sweep after a neighbour changed to another part than theirs. Cold sweeps skip nodes whose
    neighbours haven't changed since they were looked at.

    Args:
        rows: The live graph.
        known: Parts and halves; parts are written to.
        work: float32 (≥ N, COLUMNS + K), its first column 0 before and after.
        before: int32 (≥ N,) part at the previous snapshot, −1 for none.
        count: int64 (K,) nodes per part; written to.
        first: int64, distinct: the nodes of the first sweep, in this order.
        move_cost: In units of halves, as are the next two.
        gamma: Reduction of a part's worth per node in it.
        capacity: Most nodes of a part.
        sweeps: Most cold sweeps after the heat.
        temperature: Of the first heated sweep.
        steps: Heated sweeps.
        seed: Seed of the draws.

    Returns:
        Savings before the heat and by it, gamma aside, and the participating nodes outside of their previous part, int64,
        distinct.
    """
    parts = len(count)
    active = np.empty(len(work), np.int64)  # pages are touched only for participating nodes
    size = len(first)
    flat = known.reshape(-1)
    for j in range(size):
        active[j] = first[j]
        if j + 2 * NODES_AHEAD < size:
            prefetch(rows.indices, rows.start[first[j + 2 * NODES_AHEAD]])
        if j + NODES_AHEAD < size:
            w = first[j + NODES_AHEAD]
            for i in range(rows.start[w], min(rows.end[w], rows.start[w] + ENTRIES)):
                prefetch(flat, 2 * rows.indices[i])
        _join(rows, known, work, first[j], parts)
    draw = splitmix64(np.uint64(seed))
    none = np.float32(0.0)
    common = (rows, known, work, before, count, active, np.float32(move_cost), np.float32(gamma), capacity)
    heated = steps > 0 and temperature > 0.0
    saved, by_heat = 0.0, 0.0
    for _ in range(1 if heated else sweeps):
        moves, gained, size, draw = _sweep(*common, size, none, draw)
        saved += gained
        if moves == 0:
            break
    if heated:
        for j in range(size):
            work[active[j], _START] = known[active[j], 0]
        for step in range(steps):
            heat = np.float32(temperature * (1.0 - step / steps))
            moves, gained, size, draw = _sweep(*common, size, heat, draw)
            by_heat += gained
        for j in range(size):
            work[active[j], _STATE] = _DUE
        for _ in range(sweeps):
            moves, gained, size, draw = _sweep(*common, size, none, draw)
            by_heat += gained
            if moves == 0:
                break
        if by_heat < 0.0:
            by_heat = 0.0
            _go_back(known, work, count, active[:size])
    changed = np.empty(size, np.int64)
    moves = 0
    for j in range(size):
        v = active[j]
        work[v, _STATE] = _ABSENT
        if known[v, 0] != before[v]:
            changed[moves] = v
            moves += 1
    return saved, by_heat, changed[:moves]


@njit(cache=True, nogil=True)
def _go_back(known: Float32, work: Float32, count: Int64, nodes: Int64) -> None:
    """Return nodes to their parts from before the heat."""
    for v in nodes:
        count[int(known[v, 0])] -= 1
        known[v, 0] = work[v, _START]
        count[int(known[v, 0])] += 1


@njit(cache=True, nogil=True)
def _join(rows: Rows, known: Float32, work: Float32, v: int, parts: int) -> None:
    """Let a node take part: sum up the worth of each part to it."""
    own = known[v, 1]
    work[v, _STATE], work[v, _HALF], work[v, _START] = _DUE, own, known[v, 0]
    for p in range(parts):
        work[v, _WORTH + p] = 0.0
    for i in range(rows.start[v], rows.end[v]):
        u = rows.indices[i]
        work[v, _WORTH + int(known[u, 0])] += known[u, 1] + own


@njit(cache=True, nogil=True)
def _sweep(
    rows: Rows,
    known: Float32,
    work: Float32,
    before: Int32,
    count: Int64,
    active: Int64,
    move_cost: np.float32,
    gamma: np.float32,
    capacity: int,
    size: int,
    heat: np.float32,
    draw: np.uint64,
) -> tuple[int, float, int, np.uint64]:
    """One sweep over the first ``size`` active nodes: moves, savings, active nodes and the draws' state afterwards."""
    parts = len(count)
    hot = heat > 0.0
    moves, saved, joined = 0, 0.0, size
    for j in range(size):
        v = active[j]
        if not hot:
            if work[v, _STATE] != _DUE:
                continue
            work[v, _STATE] = _IDLE
        k, home = int(known[v, 0]), before[v]
        best, best_score = -1, np.float32(-np.inf)
        for p in range(parts):
            if p != k and count[p] < capacity:
                score = work[v, _WORTH + p] - gamma * np.float32(count[p])
                if p == home:
                    score += move_cost
                if score > best_score:
                    best, best_score = p, score
        if best < 0:
            continue
        gain = best_score - work[v, _WORTH + k] + gamma * np.float32(count[k] - 1)
        if k == home:
            gain -= move_cost
        if hot:
            if gain <= -heat * DRAWS[0]:
                continue
            draw = draw * _MULTIPLIER + _INCREMENT
            if gain <= -heat * DRAWS[draw >> _DRAW_BITS]:
                continue
        elif gain <= 0.0:
            continue
        known[v, 0] = best
        saved += np.float64(gain) + np.float64(gamma) * (count[best] - (count[k] - 1))
        count[k] -= 1
        count[best] += 1
        moves += 1
        own = work[v, _HALF]
        for i in range(rows.start[v], rows.end[v]):
            u = rows.indices[i]
            if work[u, _STATE] != _ABSENT:
                pair = work[u, _HALF] + own
                work[u, _WORTH + k] -= pair
                work[u, _WORTH + best] += pair
                work[u, _STATE] = _DUE
            elif known[u, 0] != best:
                _join(rows, known, work, u, parts)
                active[joined] = u
                joined += 1
    return moves, saved, joined, draw
