"""byte-lp: label propagation that counts bytes, fetched against moved ones; and METIS tied to former places.

A node is worth to a part the reduction of what trainers fetch if it is there: uses·(min(d, f)/d of either end) vectors per
neighbour, the edge weights of DistDy section 3.4, plus ``pair_cost`` for the pair itself. Moving it costs ``move_cost`` vectors.

The local search sweeps over nodes: some sweeps take the best part, and heated ones escape local optima. A node is known to the
loops by float32 (≥ N, 2): its part, −1 for none, and its half, its contribution to the cost of each of its pairs. A pair whose
ends are in different parts costs the halves of both.
"""

import math
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from freshet_graph.schemas.section import Section
from freshet_graph.stream.arrays.growing import with_room
from freshet_graph.stream.arrays.kinds import Bool, Float32, Float64, Int32, Int64
from freshet_graph.stream.kernels import njit
from freshet_graph.stream.kernels.mixing import mixed, splitmix64
from freshet_graph.stream.kernels.node_sets import distinct
from freshet_graph.stream.partition.interface import PartitionerSetting, register
from freshet_graph.stream.partition.vertex.base import (
    VertexPartitioner,
    VertexPartitionerOptions,
    sampled_share,
)
from freshet_graph.stream.partition.vertex.ldg import place_new
from freshet_graph.stream.partition.vertex.metis import NEW_NODE_SLACK, metis, metis_of_live, relabel
from freshet_graph.stream.snapshots.delta import NeighbourRows, SnapshotDelta
from freshet_graph.stream.snapshots.prefetch import ENTRIES, NODES_AHEAD, prefetch

_SLACK = 1.05
"""Most nodes of a part, relative to the mean."""

_SWEEPS = 30
"""Most sweeps per snapshot; few streams need ten."""

_HALF_UNITS = 256
"""Halves are whole multiples of its inverse, so that their sums in float32 are exact up to 65,536 vectors."""

_WEIGHT_UNITS = 16
"""METIS takes whole numbers: sixteenths of a vector."""

_POSITIVE = 2**62 - 1

_WORTH_IT = 0.05
"""Below this gain, the wait for the next METIS doubles."""

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


Steps = Annotated[int, Field(ge=0, le=2**31, description="Heated sweeps per search; 0: none.")]
Refresh = Annotated[
    float | None,
    Field(
        ge=0, description="Events per live pair between two runs of METIS; null: only on the first snapshot."
    ),
]


class ByteLpOptions(VertexPartitionerOptions):
    """Options of ``byte-lp``."""

    move_cost: float = Field(0.3, ge=0, description="m, cost of a move, in vectors.")
    pair_cost: float = Field(
        1.0,
        ge=0,
        description="Cost of a cut pair per use beside the vectors, in vectors, because both parts keep and read it.",
    )
    uses: float | None = Field(None, gt=0, description="Number of trainings on a snapshot; null: the window.")
    tie: float = Field(3.0, ge=0, description="Weight that holds a node in its part in METIS, in vectors.")
    tries: int = Field(
        4, ge=1, le=100, description="Partitions that METIS makes each time, to take the best."
    )
    heat: float = Field(
        0.5,
        ge=0,
        description="Temperature of the first heated sweep, in costs of the mean pair; it falls linearly to 0.",
    )
    steps: Steps = 2
    refresh: Refresh = 1.0


@register
class ByteLp(VertexPartitioner):
    """METIS on the first snapshot, then new nodes join their neighbours, and a search starts from what the delta touched.

    The search sweeps over nodes and gives each its best part; some sweeps are heated (``anneal``), because cold ones alone end
    in poor local optima. To limit drift, METIS runs again after ``refresh`` events per live pair, with each old node tied to its
    place: one weightless anchor per part, an edge of weight ``tie`` between an old node and its part's anchor, and the pairs
    with their weights. Its parts, renamed to the former ones and searched from, are taken if they send fewer vectors in fetches
    and moves. If that gains little, the wait for the next one doubles. No part ever has more than ⌈1.05·n/K⌉ nodes.
    """

    name: ClassVar[str] = "byte-lp"
    Options: ClassVar[type[Section]] = ByteLpOptions

    def __init__(self, setting: PartitionerSetting, options: ByteLpOptions) -> None:
        super().__init__(setting, options)
        self.move_cost, self.pair_cost, self.fanout = options.move_cost, options.pair_cost, options.fanout
        self.tie, self.tries = options.tie, options.tries
        self.heat, self.steps = options.heat, options.steps
        self.uses = float(self.window if options.uses is None else options.uses)
        self.refresh = math.inf if options.refresh is None else options.refresh
        # Events per live pair: until the next METIS, since the last one.
        self._wait, self._churn = self.refresh, 0.0
        self._known: Float32 = np.empty((0, 2), np.float32)  # for kernels; a row per node and spare ones
        self._work: Float32 = np.empty((0, COLUMNS + self.parts), np.float32)

    def _place(self, delta: SnapshotDelta) -> tuple[Int64, Int32]:
        rows, known = delta.rows, self._known
        known[delta.left, 0] = -1
        known[delta.touched, 1] = self._halves(rows, delta.touched)
        weight = self.totals.weight_after(rows, delta.touched) + self.pair_cost * delta.num_pairs
        if not self._nodes_per_part.any():
            self._churn = 0.0
            part = metis_of_live(delta, self.parts, self.seed, self.tries)
            known[delta.live, 0] = part
            self._improve(delta, known, self._count(part), delta.live, weight)
            return delta.live, known[delta.live, 0].astype(np.int32)
        self._churn += len(delta.op) / max(delta.num_pairs, 1)
        part = place_new(rows, delta.entered, self._owner, self._nodes_per_part, NEW_NODE_SLACK, self.seed)
        known[delta.entered, 0] = part
        dirty = delta.touched[known[delta.touched, 0] >= 0]
        changed = self._improve(delta, known, self._nodes_per_part + self._count(part), dirty, weight)
        if self._churn >= self._wait and delta.num_live:
            self._take_cheaper(rows, self._tied(delta, weight))
            changed = np.flatnonzero(self._known[: self._num_nodes, 0] != self._home)
        named = distinct(delta.entered, changed)
        return named, self._known[named, 0].astype(np.int32)

    def _take_cheaper(self, rows: NeighbourRows, tied: Float32) -> None:
        """Take the placement that sends fewer vectors; decide when METIS runs next."""
        of_swept, of_tied = (
            traffic(rows, known, self.uses, self._owner, self.move_cost) for known in (self._known, tied)
        )
        self._churn = 0.0
        self._wait = self.refresh if of_tied < (1 - _WORTH_IT) * of_swept else 2 * self._wait
        if of_tied < of_swept:
            self._known = tied

    def _tied(self, delta: SnapshotDelta, weight: float) -> Float32:
        """A copy of ``_known`` with parts by METIS, every old node tied to its former part, and searched from."""
        starts, neighbours = delta.live_graph()
        n, half, before = (
            delta.num_live,
            self._known[delta.live, 1].astype(np.float64),
            self._home[delta.live],
        )
        row = np.repeat(np.arange(n), np.diff(starts))
        pair_weight = self.uses * (half[row] + half[neighbours])
        old = np.flatnonzero(before >= 0)
        anchor = n + before[old].astype(np.int64)
        ends = np.concatenate([row, old, anchor])
        order = np.argsort(ends, kind="stable")
        metis_part = metis(
            np.concatenate([[0], np.cumsum(np.bincount(ends, minlength=n + self.parts))]),
            np.concatenate([neighbours, anchor, old])[order],
            self.parts,
            self.seed,
            node_weights=np.concatenate([np.ones(n, np.int64), np.zeros(self.parts, np.int64)]),
            tries=self.tries,
            edge_weights=_whole(np.concatenate([pair_weight, np.full(2 * len(old), self.tie)])[order]),
        )
        part = relabel(before, metis_part[:n], self.parts)
        known = self._known.copy()
        known[delta.live, 0] = part
        self._improve(delta, known, self._count(part), delta.live, weight)
        return known

    def _improve(
        self, delta: SnapshotDelta, known: Float32, count: Int64, dirty: Int64, weight: float
    ) -> Int64:
        """Search from the dirty nodes, then bring every part within its capacity.

        Args:
            delta: The snapshot.
            known: Parts and halves; parts are written to.
            count: int64 (K,) nodes per part; written to.
            dirty: int64, ascending.
            weight: Cost of all pairs per use if they are cut.

        Returns:
            Nodes that left their place of the previous snapshot in the search or for the capacity, int64, distinct.
        """
        rows, live = delta.rows, delta.num_live
        if live == 0:
            return dirty
        capacity = math.ceil(_SLACK * live / self.parts)
        *_, changed = anneal(
            rows,
            known,
            self._work,
            self._owner,
            count,
            dirty,
            self.move_cost / self.uses,
            # A part of n/K nodes costs as much as the mean node is worth; every pair is worth that to both ends.
            2 * weight / live * self.parts / live,
            capacity,
            _SWEEPS,
            self.heat * weight / max(delta.num_pairs, 1),
            self.steps,
            int(mixed(self.seed, np.array([delta.tau & _POSITIVE]))[0] >> np.uint64(1)),
        )
        out = shed(rows, known[: self._num_nodes], self.uses, self._owner, count, self.move_cost, capacity)
        return distinct(changed, out)

    def _halves(self, rows: NeighbourRows, nodes: Int64) -> Float64:
        """Contribution of each node to the cost of its pairs."""
        halves: Float64 = sampled_share(rows, nodes, self.fanout) + self.pair_cost / 2
        return np.rint(halves * _HALF_UNITS) / _HALF_UNITS

    def _grow(self, num_nodes: int) -> None:
        super()._grow(num_nodes)
        self._known = with_room(self._known, num_nodes, -1)
        self._work = with_room(self._work, num_nodes)

    def _begin(self, delta: SnapshotDelta) -> None:
        super()._begin(delta)
        n = self._num_nodes
        self._known[:n, 0] = self._home
        self._known[:n, 1] = self._halves(delta.rows, np.arange(n))

    def _memory(self) -> dict[str, NDArray[Any]]:
        return {"churn": np.array([self._churn, self._wait])}

    def _remember(self, memory: dict[str, NDArray[Any]]) -> None:
        self._churn, self._wait = memory["churn"].tolist()


def _whole(weights: Float64) -> Int64:
    whole: Int64 = np.maximum(np.rint(weights * _WEIGHT_UNITS), 1).astype(np.int64)
    return whole


class AnchorMetisOptions(ByteLpOptions):
    """Options of ``anchor-metis``."""

    steps: Steps = 30
    refresh: Refresh = 0.0


@register
class AnchorMetis(ByteLp):
    """``byte-lp`` with METIS tied to former places on every snapshot: the lowest traffic, at METIS's speed."""

    name: ClassVar[str] = "anchor-metis"
    Options: ClassVar[type[Section]] = AnchorMetisOptions


@njit(cache=True, nogil=True)
def anneal(
    rows: NeighbourRows,
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
def _join(rows: NeighbourRows, known: Float32, work: Float32, v: int, parts: int) -> None:
    """Let a node take part: sum up the worth of each part to it."""
    half = known[v, 1]
    work[v, _STATE], work[v, _HALF], work[v, _START] = _DUE, half, known[v, 0]
    for p in range(parts):
        work[v, _WORTH + p] = 0.0
    for i in range(rows.start[v], rows.end[v]):
        u = rows.indices[i]
        work[v, _WORTH + int(known[u, 0])] += known[u, 1] + half


@njit(cache=True, nogil=True)
def _sweep(
    rows: NeighbourRows,
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
        half = work[v, _HALF]
        for i in range(rows.start[v], rows.end[v]):
            u = rows.indices[i]
            if work[u, _STATE] != _ABSENT:
                pair = work[u, _HALF] + half
                work[u, _WORTH + k] -= pair
                work[u, _WORTH + best] += pair
                work[u, _STATE] = _DUE
            elif known[u, 0] != best:
                _join(rows, known, work, u, parts)
                active[joined] = u
                joined += 1
    return moves, saved, joined, draw


def shed(
    rows: NeighbourRows,
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
    rows: NeighbourRows,
    known: Float32,
    uses: float,
    nodes: Int64,
    before: Int32,
    crowded: Bool,
    move_cost: float,
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
    rows: NeighbourRows,
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
    rows: NeighbourRows, known: Float32, uses: float, home: int, v: int, move_cost: float, inside: Float64
) -> None:
    inside[:] = 0.0
    half = np.float64(known[v, 1])
    for i in range(rows.start[v], rows.end[v]):
        u = rows.indices[i]
        inside[int(known[u, 0])] += uses * (np.float64(known[u, 1]) + half)
    if home >= 0:
        inside[:] -= move_cost
        inside[home] += move_cost


@njit(cache=True, nogil=True)
def traffic(rows: NeighbourRows, known: Float32, uses: float, before: Int32, move_cost: float) -> float:
    """Vectors that a placement sends: those fetched across parts in ``uses`` uses, and those of moved nodes."""
    fetched, moved = 0.0, 0
    for v in range(len(rows.start)):
        k = int(known[v, 0])
        if k < 0:
            continue
        moved += before[v] >= 0 and before[v] != k
        half = np.float64(known[v, 1])
        for i in range(rows.start[v], rows.end[v]):
            u = rows.indices[i]
            if v < u and int(known[u, 0]) != k:
                fetched += uses * (half + np.float64(known[u, 1]))
    return fetched + move_cost * moved
