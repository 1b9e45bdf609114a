"""DistDy: online vertex partitioning with storage prices and rewards (DistDy, section 4).

Each snapshot: a base partition that keeps nodes in place (Alg. 1), sweeps that move nodes to their neighbours as far as the
prices of storage allow (Alg. 2), then new prices and rewards (Alg. 3). The paper's open points are decided as in
``docs/partitioning.md``; in short:

- Storage is counted in bytes: a node that stays takes a reference and its changed segments, a node that is new or moves takes
  the full vector.
- The score of a server (line 6) uses the live load a^k, which balances. Within a snapshot the load is counted in nodes of the
  base partition's mean size, so that scores are differences of one payoff,

      Π = U + Σ_v reward(v) − Σ_k (1 + (ln 2η − 1)/|V|)·Λ_k·s̄·n_k(n_k + 1)/2

  (U: weight inside servers, Λ_k: price of a byte for the window, s̄: mean size, n_k: nodes on k), which a sweep of gaining moves
  can't decrease. Prices and limits count bytes.
- Prices balance only if memory is scarce relative to the weights: on small dense graphs one server would take all nodes.
  ``max_imbalance`` limits the nodes per server; it only forbids moves.
- A snapshot's first sweep takes the nodes that the delta touched and those without a place, later sweeps the neighbours of moved
  nodes, so that work is proportional to the change. Prices of the other nodes have changed too, so once the nodes touched add up
  to ``sweep_all`` of the graph, one first sweep takes all of them. A sweep over nine tenths of them counts as one over all.
- Sweeps that only gain end in poor optima. So the first ones also accept losses below a threshold that falls to zero (threshold
  accepting): ``cooling`` sweeps if all nodes are taken, a quarter as many from half the threshold if only touched ones are. If
  the payoff ends lower, they are undone and omitted.
- ``reward="stay"`` pays μ to a node that stays; ``reward="paper"`` charges it, as φ is printed, to those that the first sweep
  takes. That shakes nodes up by itself, so no thresholds are used once there are old nodes. Nodes looked at later, for a moved
  neighbour, are neither paid nor charged there, because charges would spread through the whole graph from any change.

A node is known to the loops by int32 (≥ N, 2): its server, −1 for none, and its ``sampling_rates`` in multiples of
1 / ``FRACTION`` of the largest (with one layer of 1: the chance ``min(d, f) / d`` that a given neighbour is sampled). Side by
side, a neighbour costs one cache miss instead of two, and sums of whole numbers don't depend on the order.
"""

import math
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from freshet_graph.schemas.section import Section
from freshet_graph.stream.arrays.growing import with_room
from freshet_graph.stream.arrays.kinds import Bool, Float64, Int32, Int64
from freshet_graph.stream.kernels import njit
from freshet_graph.stream.kernels.node_sets import distinct
from freshet_graph.stream.partition.interface import (
    CapacityError,
    PartitionError,
    PartitionerSetting,
    register,
)
from freshet_graph.stream.partition.vertex.base import (
    VertexPartitioner,
    VertexPartitionerOptions,
    sampled_share,
)
from freshet_graph.stream.partition.vertex.pair_totals import FRACTION
from freshet_graph.stream.snapshots.delta import NeighbourRows, SnapshotDelta

REFERENCE_BYTES = 8
"""Bytes of a node in a snapshot that doesn't change it: a reference to its vector."""

_VALUE_BYTES = 4
_SLACK = 4.0
"""Default capacity relative to the need of a window: roughly what η = 6 presumes."""
_START = 2.0
"""First threshold of sweeps over all nodes, in mean weights of a pair."""
_NEARLY_ALL = 0.9
"""Nodes touched, as a share of all, from which a sweep over them counts as one over all."""
_KEPT = 1 << 24
"""Most sums that are kept: 128 MiB."""
_SETTLED = 8
"""Sums are kept once fewer than one in this many nodes move, because updating them costs a row per move."""
_REACH = 1 << 20
"""How often nodes are reached is summed in whole multiples of its inverse, so that sums don't depend on the order."""

Bytes = Annotated[int, Field(ge=1, le=2**62)]

PAPER: dict[str, Any] = {
    "reward": "paper", "cooling": 0, "max_imbalance": None, "sweep_all": 0.0, "capacity": 100_000_000,
}  # fmt: skip
"""Options of the preset ``paper``; the capacity is that of cluster 1 in DistDy section 5.1."""


class DistDyOptions(VertexPartitionerOptions):
    """Options of ``distdy``."""

    preset: Literal["paper"] | None = Field(
        None,
        description="paper: the algorithm as printed, which is reward paper, cooling 0, max_imbalance null, sweep_all 0, and "
        "capacity 100,000,000. Other keys given beside it count.",
    )
    layers: int = Field(
        1,
        ge=1,
        le=4,
        description="L, layers of the trained network, which samples as many hops. Above 1 each snapshot costs L − 1 passes "
        "over all pairs.",
    )
    batch: int = Field(
        512, ge=1, le=2**31, description="B, training nodes per batch; it scales weights and prices alike."
    )
    eta: float = Field(
        6.0,
        gt=math.e / 2,
        description="η, ratio of memory to its use; P = 2η. Above e/2 rewards are positive.",
    )
    sweeps: int = Field(300, ge=1, le=2**31, description="M, most sweeps per snapshot.")
    capacity: Bytes | list[Bytes] | None = Field(
        None,
        description="D^k in bytes, one for all servers or one each. null: at every snapshot 4 times the need of the window if "
        "all nodes moved, divided by K, plus one node.",
    )
    reward: Literal["stay", "paper"] = Field(
        "stay", description="stay: pay μ to nodes that stay; paper: charge it, as the paper prints."
    )
    width: int = Field(
        32, ge=1, le=2**31, description="Values per node if the graph has no node features (an embedding)."
    )
    max_imbalance: float | None = Field(
        1.2,
        ge=1,
        description="Most nodes per server relative to |V|/K, plus one, unless memory leaves no other place. null: only memory "
        "and its prices limit a server.",
    )
    sweep_all: float | None = Field(
        1.0,
        ge=0,
        description="Nodes touched, as a share of all, after which a first sweep takes all nodes; 0: every one does, null: none.",
    )
    cooling: int = Field(
        16,
        ge=0,
        le=2**31,
        description="Sweeps with a threshold if all nodes are swept; 0: none at all, as in the paper.",
    )
    move_cost: float = Field(
        0.0,
        ge=0,
        description="Additional gain required of a move from a node's place, in mean weights of a pair; 0: as in the paper.",
    )

    @model_validator(mode="before")
    @classmethod
    def _fill_in_the_preset(cls, content: Any) -> Any:
        printed = isinstance(content, dict) and content.get("preset") == "paper"
        return {**PAPER, **content} if printed else content


@register
class DistDy(VertexPartitioner):
    """DistDy Algs. 1 to 3; the window's storage is priced, and nothing is drawn."""

    name: ClassVar[str] = "distdy"
    Options: ClassVar[type[Section]] = DistDyOptions

    def __init__(self, setting: PartitionerSetting, options: DistDyOptions) -> None:
        super().__init__(setting, options)
        parts, window = self.parts, self.window
        if window < 1:
            raise PartitionError(f"distdy needs window ≥ 1, found {window}")
        self.cooling, self.move_cost = options.cooling, options.move_cost
        self.max_imbalance = options.max_imbalance
        self.sweep_all = math.inf if options.sweep_all is None else options.sweep_all
        self.fanout, self.layers = options.fanout, options.layers
        self.batch, self.eta = options.batch, options.eta
        self.sweeps, self.width, self.reward = options.sweeps, options.width, options.reward
        self._capacity = _capacities(options.capacity, parts)
        self._stored: Int64 = np.zeros((window - 1, parts), np.int64)  # a^k of the last w − 1 snapshots
        self._reward: Float64 = np.zeros(parts)  # μ of this snapshot for nodes that are on k
        self._least_utility = math.inf  # running minimum of U/Σa, per byte
        self._swept_since = 0  # nodes touched since the last sweep over all
        # A row per node: values known to kernels, bytes of its changed segments, marks.
        self._known: Int32 = np.empty((0, 2), np.int32)
        self._extra: Int64 = np.empty(0, np.int64)
        self._has_moved: Bool = np.empty(0, np.bool_)
        self._in_first: Bool = np.empty(0, np.bool_)
        self._slot: Int32 = np.empty(0, np.int32)
        # Of the current snapshot: bytes per server, capacities, C·B/N, and the largest sampling rate.
        self._load: Int64 = np.zeros(parts, np.int64)
        self._capacity_used: Int64 = np.zeros(parts, np.int64)
        self._scale, self._largest_rate = 0.0, 1.0

    def _place(self, delta: SnapshotDelta) -> tuple[Int64, Int32]:
        live, rows = int(self._nodes_per_part.sum()) + len(delta.entered), delta.rows
        self._known[delta.left, 0] = -1
        self._set_rates(rows, delta.touched)
        if live == 0:
            self._load = np.zeros(self.parts, np.int64)
            return np.empty(0, np.int64), np.empty(0, np.int32)
        full_bytes = self._set_extra(delta)
        capacity = self._capacity_now(live, full_bytes)
        free = capacity - self._stored.sum(axis=0)
        start, node_count, most = free.copy(), self._nodes_per_part.copy(), self._most_nodes(live)
        placed, without = base_partition(
            delta.entered,
            self._owner,
            self._known,
            self._extra,
            self._bytes_if_all_stay(delta),
            full_bytes,
            free,
            node_count,
            most,
        )
        if without:
            self._extra[delta.feature_nodes] = 0
            self._is_current = False
            raise CapacityError(
                f"distdy cannot place {without} of {live} nodes of snapshot {delta.tau}: each needs "
                f"{full_bytes} bytes and the {self.parts} servers have {free.tolist()} bytes left of {capacity.tolist()}. "
                "Raise capacity or parts"
            )
        before = self._owner[placed]
        self._owner[placed] = self._known[placed, 0]
        self.totals.advance(delta, self._owner, placed)
        self._owner[placed] = before
        load = start - free
        scale = full_bytes * self.batch / live * self._largest_rate  # DistDy section 3.4
        price = self._prices(
            capacity, np.zeros(self.parts, np.int64), self._base_price(scale * self.totals.inside, load)
        )
        log = math.log(2 * self.eta) - 1
        first = self._first_sweep(delta, placed, live)
        toll = (1 + log / live) * price * load.sum() / live
        moved, free = self._refine(rows, first, scale, full_bytes, free, node_count, toll, most)
        self._extra[delta.feature_nodes] = 0
        self._capacity_used, self._load, self._scale = capacity, start - free, scale
        changed = distinct(placed, moved)
        return changed, self._known[changed, 0]

    def _refine(
        self,
        rows: NeighbourRows,
        first: Int64,
        scale: float,
        full_bytes: int,
        free: Int64,
        node_count: Int64,
        toll: Float64,
        most: int,
    ) -> tuple[Int64, Int64]:
        """Alg. 2 from the base partition: nodes that moved, int64, and bytes left per server, int64 (K,)."""
        mean_pair = scale * self.totals.weight / max(self.totals.pairs, 1)
        stay = self.move_cost * mean_pair
        paid = self._reward + stay
        rewards = (paid, paid) if self.reward == "stay" else (stay - self._reward, np.full_like(paid, stay))
        thresholds = self._thresholds(len(first) == node_count.sum(), mean_pair)
        while True:
            free_after = free.copy()
            gained, moved, came_from = refine(
                rows,
                first,
                self._known,
                scale,
                self._owner,
                self._extra,
                full_bytes,
                free_after,
                node_count.copy(),
                *rewards,
                toll,
                thresholds,
                most,
                self.sweeps,
                self._marks,
                self._has_moved,
                self._in_first,
                self._slot,
            )
            if gained >= 0 or not len(thresholds):
                return moved, free_after
            self._known[moved, 0] = came_from  # then without thresholds, which never loses
            thresholds = np.empty(0)

    def _thresholds(self, everything: bool, mean_pair: float) -> Float64:
        """Limit of a move's loss per sweep: float64, falling linearly to zero."""
        if self.reward == "paper" and self._nodes_per_part.any():
            return np.empty(0)
        count, start = (self.cooling, _START) if everything else (self.cooling // 4, _START / 2)
        count = min(count, self.sweeps - 1)
        return start * mean_pair * (1 - np.arange(count) / max(count, 1))

    def _settle(self) -> None:
        """Prices and rewards of the next snapshot (DistDy Alg. 3)."""
        load, live = self._load, int(self._nodes_per_part.sum())
        if live:
            log = math.log(2 * self.eta) - 1
            utility = self._scale * self.totals.inside
            if utility > 0:
                self._least_utility = min(self._least_utility, utility / int(self._stored.sum() + load.sum()))
            price = self._prices(self._capacity_used, load, self._base_price(utility, load))
            self._reward = np.maximum(log * (utility / self.parts - price * load) / live, 0.0)
        self._stored = np.concatenate([self._stored, load[None]])[
            1:
        ]  # of the last w − 1 snapshots, oldest first

    def _first_sweep(self, delta: SnapshotDelta, placed: Int64, live: int) -> Int64:
        """Nodes of the first sweep, int64, ascending."""
        touched = delta.touched[self._known[delta.touched, 0] >= 0]
        self._swept_since += len(touched)
        if self.sweep_all and len(touched) >= _NEARLY_ALL * live:
            self._swept_since = 0  # nearly all nodes see the new prices now
        elif self._swept_since >= self.sweep_all * live:
            self._swept_since = 0
            return np.flatnonzero(self._known[:, 0] >= 0)
        return distinct(touched, placed)

    def _set_extra(self, delta: SnapshotDelta) -> int:
        """Store the bytes of changed segments per node; returns the bytes of a node away from its place."""
        width = delta.node_features or self.width
        changed = delta.changed_segments.astype(np.int64)
        self._extra[delta.feature_nodes] = _VALUE_BYTES * width * changed // delta.segments
        return REFERENCE_BYTES + _VALUE_BYTES * width

    def _bytes_if_all_stay(self, delta: SnapshotDelta) -> Int64:
        """Bytes of old nodes in their places, int64 (K,)."""
        stay = REFERENCE_BYTES * self._nodes_per_part
        node = delta.feature_nodes[self._owner[delta.feature_nodes] >= 0]
        np.add.at(stay, self._owner[node], self._extra[node])
        return stay

    def _grow(self, num_nodes: int) -> None:
        super()._grow(num_nodes)
        self._known = with_room(self._known, num_nodes, -1)
        self._extra = with_room(self._extra, num_nodes, 0)
        self._has_moved = with_room(self._has_moved, num_nodes)
        self._in_first = with_room(self._in_first, num_nodes)
        self._slot = with_room(self._slot, num_nodes, -1)

    def _begin(self, delta: SnapshotDelta) -> None:
        super()._begin(delta)
        n = self._num_nodes
        self._known[:n, 0] = self._home
        self._set_rates(delta.rows, np.arange(n))

    def _set_rates(self, rows: NeighbourRows, touched: Int64) -> None:
        """Sampling rates of nodes whose rows changed; with several layers of all nodes, which hops reach."""
        if self.layers == 1:
            self._known[touched, 1] = np.rint(FRACTION * sampled_share(rows, touched, self.fanout))
            return
        rates = sampling_rates(rows, self.fanout, self.layers)
        self._largest_rate = float(rates.max(initial=0.0)) or 1.0
        self.totals.rates = np.rint(rates / self._largest_rate * FRACTION).astype(np.int64)
        self._known[: len(rates), 1] = self.totals.rates

    def _most_nodes(self, live: int) -> int:
        """Most nodes per server, for a number of live nodes."""
        if self.max_imbalance is None:
            return live
        return int(min(self.max_imbalance * live / self.parts + 1, live))

    def _capacity_now(self, live: int, full_bytes: int) -> Int64:
        if self._capacity is not None:
            return self._capacity
        need = int(self._stored.sum()) + live * full_bytes
        return np.full(self.parts, int(_SLACK * need / self.parts) + full_bytes, np.int64)

    def _base_price(self, utility: float, load: Int64) -> float:
        """F: the least utility per byte seen so far, or this snapshot's if it is the first, over 2η."""
        least = self._least_utility
        if math.isinf(least):
            least = utility / max(int(self._stored.sum() + load.sum()), 1)
        return least / (2 * self.eta)

    def _prices(self, capacity: Int64, load: Int64, base: float) -> Float64:
        """Sum of λ_t over t in [τ, τ + w − 1] per server, float64 (K,): the price of a byte for the window.

        At t = τ + j the snapshots before τ − (w − 1 − j) have left the window (DistDy eq. 11).
        """
        in_window = np.zeros((self.window, self.parts))
        in_window[:-1] = self._stored[::-1].cumsum(axis=0)[::-1]
        prices: Float64 = base * np.exp(math.log(2 * self.eta) * (in_window + load) / capacity)
        over_window: Float64 = prices.sum(axis=0)
        return over_window

    def _memory(self) -> dict[str, NDArray[Any]]:
        return {
            "stored": self._stored,
            "reward": self._reward,
            "least_utility": np.array(self._least_utility),
            "swept_since": np.array(self._swept_since),
        }

    def _remember(self, memory: dict[str, NDArray[Any]]) -> None:
        self._stored, self._reward = memory["stored"], memory["reward"]
        self._least_utility = float(memory["least_utility"])
        self._swept_since = int(memory["swept_since"])


def _capacities(capacity: int | list[int] | None, parts: int) -> Int64 | None:
    if capacity is None:
        return None
    given = np.atleast_1d(np.asarray(capacity, np.int64))
    if len(given) not in (1, parts):
        raise PartitionError(f"distdy takes one capacity or {parts}, found {capacity}")
    return np.broadcast_to(given, parts).copy()


def sampling_rates(rows: NeighbourRows, fanout: int, layers: int) -> Float64:
    """How often each node samples a given neighbour while every node is embedded once by L layers, float64 (N,).

    The paper has one layer (section 3.4), where a node samples min(d, f) of its d neighbours, so each with the chance
    s = min(d, f)/d, if it is one of the B training nodes of N. A further layer samples the neighbours of every sampled node.
    So with r_0 = 1 node v is reached r_h(v) = Σ_u r_{h−1}(u)·s_u times after h hops, u its neighbours, and samples each
    neighbour x_v = s_v·Σ_{h<L} r_h(v) times. The pair uv weighs C·B/N·(x_u + x_v). A node that is sampled twice counts twice,
    as a pair that is sampled from both ends does in the paper.
    """
    share = sampled_share(rows, np.arange(len(rows.start)), fanout)
    reached = np.ones(len(share))
    total = reached.copy()
    for _ in range(layers - 1):
        reached = _sum_neighbours(rows, np.rint(_REACH * reached * share).astype(np.int64)) / _REACH
        total += reached
    return share * total


@njit(cache=True, nogil=True)
def _sum_neighbours(rows: NeighbourRows, values: Int64) -> Int64:
    """Sum of the neighbours' values of each node, int64 (N,)."""
    sums = np.zeros(len(values), np.int64)
    for v in range(len(values)):
        for i in range(rows.start[v], rows.end[v]):
            sums[v] += values[rows.indices[i]]
    return sums


def base_partition(
    new: Int64,
    before: Int32,
    known: Int32,
    extra: Int64,
    stay: Int64,
    full_bytes: int,
    free: Int64,
    node_count: Int64,
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
        node_count: int64 (K,) nodes per server, without the new ones; written to.
        most: Most nodes per server; K·most ≥ the number of live nodes.

    Returns:
        Nodes that did not stay, int64, distinct, and how many of them found no place because the next one fits nowhere.
    """
    waiting = new
    if (stay <= free).all():
        free -= stay
    else:
        waiting = np.sort(np.concatenate([new, _keep(before, known, extra, free, node_count)]))
    placed = _spread(waiting, known, full_bytes, free, node_count, most)
    if placed < len(waiting):
        return waiting, len(waiting) - placed
    left = _shed(before, known, extra, full_bytes, free, node_count, most)
    return np.concatenate([waiting, left]), 0


@njit(cache=True, nogil=True)
def _keep(before: Int32, known: Int32, extra: Int64, free: Int64, node_count: Int64) -> Int64:
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
            node_count[k] -= 1
            homeless[size] = v
            size += 1
    return homeless[:size].copy()


@njit(cache=True, nogil=True)
def _spread(waiting: Int64, known: Int32, full_bytes: int, free: Int64, node_count: Int64, most: int) -> int:
    """Give nodes the server with most free memory, below the limit if possible; returns how many found one."""
    for i in range(len(waiting)):
        k = _roomiest(free, node_count, full_bytes, most)
        if k < 0:
            k = _roomiest(free, node_count, full_bytes, len(known))
        if k < 0:
            return i
        known[waiting[i], 0] = k
        free[k] -= full_bytes
        node_count[k] += 1
    return len(waiting)


@njit(cache=True, nogil=True)
def _shed(
    before: Int32, known: Int32, extra: Int64, full_bytes: int, free: Int64, node_count: Int64, most: int
) -> Int64:
    """Move the youngest kept nodes from servers above the limit; returns these nodes, int64."""
    over = 0
    for k in range(len(node_count)):
        over += max(node_count[k] - most, 0)
    left = np.empty(over, np.int64)
    size = 0
    for v in range(len(before) - 1, -1, -1):
        if size == over:
            break
        k = known[v, 0]
        if k < 0 or node_count[k] <= most or k != before[v]:
            continue
        m = _roomiest(free, node_count, full_bytes, most)
        if m < 0:
            break
        known[v, 0] = m
        free[k] += REFERENCE_BYTES + extra[v]
        free[m] -= full_bytes
        node_count[k] -= 1
        node_count[m] += 1
        left[size] = v
        size += 1
    return left[:size]


@njit(cache=True, nogil=True, inline="always")
def _roomiest(free: Int64, node_count: Int64, size: int, most: int) -> int:
    """Server with most free memory among those with fewer than ``most`` nodes and room for ``size``; −1 for none."""
    best = -1
    for k in range(len(free)):
        if node_count[k] < most and size <= free[k] and (best < 0 or free[k] > free[best]):
            best = k
    return best


@njit(cache=True, nogil=True)
def refine(
    rows: NeighbourRows,
    first: Int64,
    known: Int32,
    scale: float,
    before: Int32,
    extra: Int64,
    full_bytes: int,
    free: Int64,
    node_count: Int64,
    reward: Float64,
    later_reward: Float64,
    toll: Float64,
    thresholds: Float64,
    most: int,
    sweeps: int,
    marks: Bool,
    has_moved: Bool,
    in_first: Bool,
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
        node_count: int64 (K,) nodes on each server; written to.
        reward: float64 (K,) gain of a node of the first sweep that stays on server k; negative: a charge.
        later_reward: The same for all other nodes.
        toll: float64 (K,) increase of a server's price with each node on it: the j-th pays j tolls.
        thresholds: float64, limit of a move's loss per sweep.
        most: Most nodes of a server after a move.
        sweeps: M, most sweeps; more than there are thresholds.
        marks: bool (≥ N,), all false before and after.
        has_moved: bool (≥ N,), nodes that have moved; all false before and after.
        in_first: bool (≥ N,), nodes of the first sweep; all false before and after.
        slot: int32 (≥ N,), all −1 before and after.

    Returns:
        Increase of the payoff, the nodes that moved at least once, int64, distinct, and their previous servers, int32.
    """
    parts = len(free)
    unit = scale / FRACTION
    # Pages are touched only for nodes looked at and moves. The last row is for nodes without their own.
    room = min(len(marks), _KEPT // parts)
    sums = np.empty((room + 1) * parts, np.int64)
    summed = np.empty(room, np.int64)
    num_kept = 0
    queue = np.empty(len(marks), np.int64)
    movers = np.empty(len(marks), np.int64)
    came_from = np.empty(len(marks), np.int32)
    gained = 0.0
    queued = num_movers = 0
    due = first
    for v in first:
        in_first[v] = True
    everything = len(first) == node_count.sum()
    settled = not everything
    for made in range(sweeps):
        again = made < len(thresholds)  # the next sweep takes all of ``first``, too
        threshold = thresholds[made] if again else 0.0
        moved = 0
        for v in due:
            row: int = slot[v] * parts
            if row < 0:
                row = num_kept * parts
                if settled and num_kept < room and rows.end[v] - rows.start[v] > parts // 4:
                    slot[v] = num_kept
                    summed[num_kept] = v
                    num_kept += 1
                _sum_up(rows, v, known, sums[row : row + parts])
            k, home = int(known[v, 0]), before[v]
            best = k
            best_score = unit * sums[row + k] - toll[k] * node_count[k]
            gain = 0.0 if home < 0 else reward[home] if in_first[v] else later_reward[home]
            if k == home:
                best_score += gain
            here = best_score
            best_score -= threshold
            stay_bytes = REFERENCE_BYTES + extra[v]
            for m in range(parts):
                if m == k or node_count[m] >= most:
                    continue
                score = unit * sums[row + m] - toll[m] * (node_count[m] + 1)
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
            node_count[k] -= 1
            node_count[best] += 1
            known[v, 0] = best
            moved += 1
            if not has_moved[v]:
                has_moved[v] = True
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
                if known[u, 0] != best and not marks[u] and not (again and in_first[u]):
                    marks[u] = True
                    queue[queued] = u
                    queued += 1
        settled = settled or moved * _SETTLED < len(due)
        if again:
            continue
        due = _ascending(queue, queued, marks)
        queued = 0
        for v in due:
            marks[v] = False
        if len(due) == 0:
            break
    for v in first:
        in_first[v] = False
    for i in range(num_movers):
        has_moved[movers[i]] = False
    for i in range(num_kept):
        slot[summed[i]] = -1
    return gained, movers[:num_movers].copy(), came_from[:num_movers].copy()


@njit(cache=True, nogil=True)
def _ascending(nodes: Int64, size: int, marks: Bool) -> Int64:
    """The first ``size`` of ``nodes`` as an ascending copy: by a scan of all marks, which are theirs, if many, else a sort."""
    if size * 16 < len(marks):
        return np.sort(nodes[:size])
    out = np.empty(size, np.int64)
    n = 0
    for v in range(len(marks)):
        if marks[v]:
            out[n] = v
            n += 1
    return out


@njit(cache=True, nogil=True, inline="always")
def _sum_up(rows: NeighbourRows, v: int, known: Int32, sums: Int64) -> None:
    """Weight of a node on each server, in fractions: int64 (K,)."""
    sums[:] = 0
    chance = np.int64(known[v, 1])
    for i in range(rows.start[v], rows.end[v]):
        u = rows.indices[i]
        sums[known[u, 0]] += np.int64(known[u, 1]) + chance
