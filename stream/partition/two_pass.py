"""SEP by centrality: SPEED's streaming edge partitioner (seed 004, section II-B), a sealed snapshot as its batch.

Pass 1 adds the snapshot's inserts to the nodes' centralities and takes the top k of the nodes seen so far
as hubs; pass 2 assigns the inserts in log order. Nothing of a later snapshot is used, unless ``foresee``
gives it the whole file first, as the paper does. Readings, as in ``docs/partitioning.md``:

- At most ⌊k·seen⌋ nodes are in more than one part, always: so ``RF ≤ k·P + (1 − k)`` (Theorem 1) holds at
  every moment. A node that is no longer a hub keeps its parts until a snapshot in which a hub may need its
  place, and goes back to its home before the first event of it: within a snapshot no node loses a part, so
  the ends of every assigned insert are in its part when the snapshot is sealed.
- λ ≤ 1 keeps a non-hub in one part for ever, also when all of its edges are gone and it comes back:
  placements are of seen nodes and never end (there is no GONE).
- With |A| > 1, lines 6 and 10 take the least loaded of A(i) ∩ A(j), line 6 else of the non-hub's parts.
- Part sizes count all edges ever assigned; a discarded edge counts for centrality only.
"""

import math
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from schemas.events import US_PER_S
from stream.partition.interface import Assignment, Quality
from stream.partition.mixing import mixed
from stream.partition.part_sets import in_several, placement_changes
from stream.partition.quality import EdgeQuality
from stream.partition.two_pass_kernels import (
    RECORD_PARTS,
    add_centrality,
    assign_masks,
    assign_records,
    pack_records,
    unpack_masks,
)
from stream.snapshots.delta import Float64, Int8, Int32, Int64, SnapshotDelta
from stream.snapshots.state_table import pack, unpack

_LARGEST_EXPONENT = 500.0
"""Forward decay moves its origin before e^x of the newest event comes near the largest float64."""


class TwoPassSep:
    """SPEED Alg. 1.

    Args:
        parts: P.
        seed: Seed of the draws that break ties, between parts and between equally central nodes.
        hubs: k, share of the seen nodes that may be in more than one part.
        time_constant: 1/β in seconds of event time. None: plain degree.
        balance_weight: λ of eq. 6.
    """

    def __init__(
        self, *, parts: int, seed: int, hubs: float, time_constant: float | None, balance_weight: float
    ) -> None:
        self.parts, self.seed = parts, seed
        self.hubs, self.time_constant, self.balance_weight = hubs, time_constant, balance_weight
        self._num_nodes = 0
        self._home: Int32 = np.empty(0, np.int32)
        self._masks: NDArray[np.uint64] = np.zeros((0, -(-parts // 64)), np.uint64)
        self._centrality: Float64 = np.empty(0, np.float64)
        self._sizes: Int64 = np.zeros(parts, np.int64)  # events assigned to each part
        self._placements: Int64 = np.zeros(parts, np.int64)  # nodes in each part
        self._shared = 0  # nodes in more than one part
        self._origin: int | None = None  # t0 of the forward decay, µs
        self._events = 0
        self._foreseen = 0  # nodes of the whole file, where ``foresee`` has told
        self._quality = EdgeQuality(parts)

    @property
    def foresees(self) -> bool:
        """Whether it was given the whole file first."""
        return self._foreseen > 0

    def foresee(self, src: Int64, dst: Int64, t: Int64, num_nodes: int) -> None:
        """Take pass 1 over all inserts of a file before its first update: SPEED's two passes.

        The hubs are then those of the whole file, and all its nodes count as seen.

        Args:
            src: int64 (E,) dense ids of the inserts' ends.
            dst: int64 (E,).
            t: int64 (E,) microseconds.
            num_nodes: Distinct nodes of the file.
        """
        self._grow(num_nodes)
        self._add(np.ones(len(src), np.int8), src, dst, t)
        self._foreseen = num_nodes

    def update(self, delta: SnapshotDelta) -> Assignment:
        """Assign the inserts of snapshot ``delta.tau``; called once a snapshot, in order."""
        self._num_nodes = delta.num_nodes
        self._grow(delta.num_nodes)
        if not self._foreseen:
            self._add(delta.op, delta.src, delta.dst, delta.t)
        seen = max(delta.num_nodes, self._foreseen)
        budget = int(self.hubs * seen)
        hub = _most_central(self._centrality, budget, self.seed)
        src, dst = delta.src[delta.op > 0], delta.dst[delta.op > 0]
        leaving = self._without_room(src, dst, hub, budget)
        ends = np.zeros(len(self._home), np.bool_)
        ends[src] = ends[dst] = ends[leaving] = True
        changing = np.flatnonzero(ends)
        homes_before, before = self._home[changing], self._masks[changing]
        self._masks[leaving] = 0
        home = self._home[leaving]
        self._masks[leaving, home >> 6] = np.uint64(1) << (home & 63).astype(np.uint64)
        event_part = self._assign(delta, hub)
        self._events += len(delta.op)
        now = self._masks[changing]
        node, part, why, _ = placement_changes(
            changing, homes_before, self._home[changing], before, now, self._placements
        )
        self._shared += int(in_several(now).sum()) - int(in_several(before).sum())
        inserts = len(src)
        self._quality.observe(
            inserts=inserts,
            discarded=inserts - int((event_part >= 0).sum()),
            seen=seen,
            shared=self._shared,
            placements=self._placements,
            placed_nodes=int((self._home >= 0).sum()),
            assigned=self._sizes,
            moved=0,
            live=len(delta.live),
        )
        return Assignment(node, part, why, event_part)

    def _assign(self, delta: SnapshotDelta, hub: NDArray[np.bool_]) -> Int32:
        events = (delta.op, delta.src, delta.dst)
        rule = (self._home, self._sizes, self.balance_weight, self.seed, self._events)
        if self.parts > RECORD_PARTS or self.balance_weight > 1:
            return assign_masks(*events, self._masks, hub, self._centrality, *rule)
        records = pack_records(self._masks, hub, self._centrality)
        event_part = assign_records(*events, records, *rule)
        unpack_masks(records, self._masks)
        return event_part

    def _without_room(self, src: Int64, dst: Int64, hub: NDArray[np.bool_], budget: int) -> Int64:
        """Former hubs that must give up their parts so that these inserts cannot break the budget.

        A hub in one part may get a second one only by an insert whose ends have not one home (SPEED eqs. 2 to 6:
        a part with both ends scores 3, any other below). The least central former hubs leave first.
        """
        apart = (self._home[src] != self._home[dst]) | (self._home[src] < 0)
        may_gain = np.zeros(len(self._home), np.bool_)
        may_gain[src[apart]] = may_gain[dst[apart]] = True
        several = in_several(self._masks)
        may_gain &= hub & ~several
        excess = max(self._shared + int(may_gain.sum()) - budget, 0)
        former = np.flatnonzero(several & ~hub)
        return former[np.argsort(self._centrality[former], kind="stable")][:excess]

    def home(self) -> Int32:
        """First part of every dense id so far, for ever; int32 (num_nodes,), −1 for nodes without edges. A view."""
        return self._home[: self._num_nodes]

    def quality(self) -> Quality:
        """Quality of all snapshots so far; ``cut_final`` needs the events again and is NaN."""
        return self._quality.quality()

    def state(self) -> pa.Table:
        """Everything that the next update depends on, the running quality included."""
        return pack(
            {
                "home": self._home,
                "masks": self._masks,
                "placements": self._placements,
                "centrality": self._centrality,
                "sizes": self._sizes,
                "origin": np.array([] if self._origin is None else [self._origin], np.int64),
                "counts": np.array([self._num_nodes, self._events, self._foreseen]),
                "quality": self._quality.state(),
            }
        )

    def restore(self, table: pa.Table) -> None:
        """Continue from a ``state()``."""
        state: dict[str, NDArray[Any]] = unpack(table)
        self._home, self._centrality, self._sizes = state["home"], state["centrality"], state["sizes"]
        self._masks, self._placements = state["masks"], state["placements"]
        self._shared = int(in_several(self._masks).sum())
        self._origin = int(state["origin"][0]) if len(state["origin"]) else None
        self._num_nodes, self._events, self._foreseen = (int(x) for x in state["counts"])
        self._quality.restore(state["quality"])

    def _grow(self, num_nodes: int) -> None:
        new = num_nodes - len(self._home)
        if new > 0:
            self._home = np.concatenate([self._home, np.full(new, -1, np.int32)])
            self._masks = np.concatenate([self._masks, np.zeros((new, self._masks.shape[1]), np.uint64)])
            self._centrality = np.concatenate([self._centrality, np.zeros(new)])

    def _add(self, op: Int8, src: Int64, dst: Int64, t: Int64) -> None:
        """Pass 1: forward decay, ``e^((t − t0)/T)``; the order and θ don't depend on t0."""
        weight = np.ones(len(op))
        if self.time_constant is not None and len(op):
            scale = self.time_constant * US_PER_S
            latest = int(t.max())
            if self._origin is None:
                self._origin = latest
            if (latest - self._origin) / scale > _LARGEST_EXPONENT:
                self._centrality *= math.exp(-(latest - self._origin) / scale)
                self._origin = latest
            weight = np.exp((t - self._origin) / scale)
        add_centrality(self._centrality, op, src, dst, weight)


def _most_central(centrality: Float64, count: int, seed: int) -> NDArray[np.bool_]:
    """Mask of the ``count`` largest; equal ones by a seeded draw."""
    if count >= len(centrality):
        return np.ones(len(centrality), np.bool_)
    if count == 0:
        return np.zeros(len(centrality), np.bool_)
    threshold = np.partition(centrality, -count)[-count]
    top: NDArray[np.bool_] = centrality > threshold
    equal = np.flatnonzero(centrality == threshold)
    drawn = equal[np.argsort(mixed(seed, equal), kind="stable")]
    top[drawn[: count - int(top.sum())]] = True
    return top
