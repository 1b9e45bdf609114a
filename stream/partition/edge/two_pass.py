"""SEP by centrality: SPEED's streaming edge partitioner (SPEED, section II-B), with a sealed snapshot as its batch.

Pass 1 adds the snapshot's inserts to the nodes' centralities and takes the top k of the nodes seen so far as hubs; pass 2
assigns the inserts in log order. It uses nothing from a later snapshot, unless ``foresee`` first gives it the whole file, as in
the paper. Readings, as in ``docs/partitioning.md``:

- At most ⌊k·seen⌋ nodes are ever in more than one part, so ``RF ≤ k·P + (1 − k)`` (Theorem 1) holds at every moment. A former
  hub keeps its parts until a snapshot in which a hub may need its place, and returns to its home before that snapshot's first
  event. Within a snapshot no node loses a part, so the ends of every assigned insert are in its part when it is sealed.
- λ ≤ 1 keeps a non-hub in one part for ever, even after all of its edges are gone and it comes back: placements belong to seen
  nodes and never end (there is no GONE).
- With |A| > 1, lines 6 and 10 take the least loaded of A(i) ∩ A(j), or line 6 otherwise of the non-hub's parts.
- Part sizes count all edges ever assigned; a discarded edge counts for centrality only.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from schemas.events import US_PER_S
from stream.arrays.growing import grown
from stream.arrays.kinds import Bool, Float64, Int8, Int32, Int64, UInt64
from stream.kernels.mixing import mixed
from stream.partition.edge.base import EdgePartitioner
from stream.partition.edge.load_lanes import lanes_for
from stream.partition.edge.part_sets import gains, in_several, placement_changes
from stream.partition.edge.quality import Placed
from stream.partition.edge.two_pass_kernels import (
    HUB,
    MARKED_PARTS,
    add_centrality,
    assign_lanes,
    assign_masks,
    candidates,
    mark_hubs,
    reach,
)
from stream.partition.interface import Assignment, Why
from stream.snapshots.delta import SnapshotDelta

_CHUNK = 1 << 18
"""Events per call of a kernel, so that its notes of changes stay in the cache."""

_WEIGHED = 1 << 15
"""Events whose weights are computed together, so that they stay in the nearest caches until they are added."""

_LARGEST_EXPONENT = 500.0
"""Forward decay moves its origin before e^x of the newest event approaches the largest float64."""


class TwoPassSep(EdgePartitioner):
    """SPEED Alg. 1.

    Args:
        parts: P.
        seed: Seed of the draws that break ties, between parts and between equally central nodes.
        hubs: k, share of the seen nodes that may be in more than one part.
        time_constant: 1/β in seconds of event time. None: plain degree.
        balance_weight: λ of eq. 6.
    """

    name = "sep"

    def __init__(
        self, *, parts: int, seed: int, hubs: float, time_constant: float | None, balance_weight: float
    ) -> None:
        super().__init__(parts=parts, seed=seed)
        self.hubs, self.time_constant, self.balance_weight = hubs, time_constant, balance_weight
        self._num_nodes = 0
        # Up to 63 parts and λ = 1, a node's parts and its hub bit are one word; otherwise words of parts alone.
        self._marked = parts <= MARKED_PARTS and balance_weight <= 1
        self._masks: UInt64 = np.empty((0, -(-parts // 64)), np.uint64)
        self.centrality: Float64 = np.empty(0, np.float64)
        self._shared = self._placed = 0  # nodes in more than one part, and in any
        self._hub: Bool | None = None  # of the whole file, once it is known
        self._origin: int | None = None  # t0 of the forward decay, µs
        self._foreseen = 0  # nodes of the whole file, if ``foresee`` was called

    @property
    def foresees(self) -> bool:
        """Whether ``foresee`` gave it the whole file."""
        return self._foreseen > 0

    def foresee(self, src: Int64, dst: Int64, t: Int64, num_nodes: int) -> None:
        """Take pass 1 over all inserts of a file before its first update: SPEED's two passes.

        The hubs are then those of the whole file, and all its nodes count as seen. A file may be given in pieces, in order of
        time.

        Args:
            src: int64 (E,) dense ids of the inserts' ends.
            dst: int64 (E,).
            t: int64 (E,) microseconds.
            num_nodes: Distinct nodes of the file, or of its pieces so far.
        """
        self._grow(num_nodes)
        self._add(None, src, dst, t)
        self._foreseen = num_nodes
        self._hub = None

    def _place(self, delta: SnapshotDelta) -> Placed:
        self._num_nodes = delta.num_nodes
        if not self._foreseen:
            self._add(delta.op, delta.src, delta.dst, delta.t)
        seen = max(delta.num_nodes, self._foreseen)
        budget = int(self.hubs * seen)
        hub, leaving = self._hub, np.empty(0, np.int64)
        if hub is None or len(hub) < len(self._home):
            hub = most_central(self.centrality, budget, self.seed)
            leaving = self._without_room(delta, hub, budget)
            if self._marked:
                mark_hubs(self._masks.reshape(-1), hub)
            if self._foreseen:
                self._hub = hub
        left = self._send_home(leaving)
        event_part = np.empty(len(delta.op), np.int32)
        room = np.empty(2 * min(len(delta.op), _CHUNK), np.int64)
        noted = [
            self._assign(delta, slice(begin, begin + _CHUNK), hub, event_part, room)
            for begin in range(0, len(delta.op), _CHUNK)
        ]
        node, part, why = gains(noted, self._placements, self._home)
        self._placed += int(np.count_nonzero(why == Why.NEW))
        if len(leaving):
            node, part = np.concatenate([node, left[0]]), np.concatenate([part, left[1]])
            order = np.lexsort((part, node))
            node, part, why = node[order], part[order], np.concatenate([why, left[2]])[order]
        inserts = int(np.count_nonzero(delta.op > 0))
        return Placed(
            assignment=Assignment(node, part, why, event_part),
            inserts=inserts,
            discarded=inserts - int(np.count_nonzero(event_part >= 0)),
            seen=seen,
            shared=self._shared,
            placed=self._placed,
        )

    def _assign(self, delta: SnapshotDelta, rows: slice, hub: Bool, event_part: Int32, room: Int64) -> Int64:
        """Assign these rows' inserts; returns the gains of nodes, for ``gains``."""
        events = delta.op[rows], delta.src[rows], delta.dst[rows]
        rule = (self.balance_weight, self.seed, self._events + rows.start)
        out = (event_part[rows], room)
        if self._marked:
            marks, lanes = self._masks.reshape(-1), lanes_for(self.sizes)
            found, shared = assign_lanes(
                *events, marks, self.centrality, self._home, self.sizes, *lanes, *rule, *out
            )
        else:
            found, shared = assign_masks(
                *events, self._masks, hub, self.centrality, self._home, self.sizes, *rule, *out
            )
        self._shared += shared
        return room[: int(found)].copy()

    def _sets(self, rows: Any = slice(None)) -> UInt64:
        """Parts of these nodes, uint64 (n, words): a copy, without the hub's bit."""
        sets: UInt64 = self._masks[rows] & ~HUB if self._marked else self._masks[rows].copy()
        return sets

    def _send_home(self, leaving: Int64) -> tuple[Int64, Int32, Int8]:
        """Remove all parts but the home of these nodes; returns rows (node, part, why) of their losses."""
        node = np.sort(leaving)  # no hubs
        before = self._sets(node)
        home = self._home[node]
        self._masks[node] = 0
        self._masks[node, home >> 6] = np.uint64(1) << (home & 63).astype(np.uint64)
        self._shared -= len(node)
        node, part, why, _ = placement_changes(node, home, home, before, self._masks[node], self._placements)
        return node, part, why

    def _without_room(self, delta: SnapshotDelta, hub: Bool, budget: int) -> Int64:
        """Former hubs that must give up their parts so that these inserts can't break the budget.

        A hub in one part can get a second one only by an insert whose ends don't have one home (SPEED eqs. 2 to 6: a part with
        both ends scores 3, any other less). The least central former hubs leave first.
        """
        several = in_several(self._sets())
        former = np.flatnonzero(several & ~hub)
        if not len(former):
            return former
        needing = reach(delta.op, delta.src, delta.dst, self._home, hub & ~several)
        excess = max(self._shared + needing - budget, 0)
        return former[np.argsort(self.centrality[former], kind="stable")][:excess]

    def home(self) -> Int32:
        """First part of every dense id so far, fixed; int32 (num_nodes,), −1 for nodes without edges. A view."""
        return self._home[: self._num_nodes]

    def _memory(self) -> dict[str, NDArray[Any]]:
        return {
            "masks": self._sets(),
            "centrality": self.centrality,
            "origin": np.array([] if self._origin is None else [self._origin], np.int64),
            "counts": np.array([self._num_nodes, self._events, self._foreseen]),
        }

    def _remember(self, memory: dict[str, NDArray[Any]]) -> None:
        self._masks, self.centrality = memory["masks"], memory["centrality"]
        self._shared = int(in_several(self._masks).sum())
        self._placed = int(np.count_nonzero(self._home >= 0))
        self._hub = None
        self._origin = int(memory["origin"][0]) if len(memory["origin"]) else None
        self._num_nodes, self._events, self._foreseen = (int(x) for x in memory["counts"])

    def _grow(self, num_nodes: int) -> None:
        super()._grow(num_nodes)
        self._masks = grown(self._masks, num_nodes)
        self.centrality = grown(self.centrality, num_nodes)

    def _add(self, op: Int8 | None, src: Int64, dst: Int64, t: Int64) -> None:
        """Pass 1: forward decay, ``e^((t − t0)/T)``; the order and θ don't depend on t0. Without ``op`` all are inserts."""
        scale = math.inf
        if self.time_constant is not None and len(t):
            scale = self.time_constant * US_PER_S
            latest = int(t.max())
            if self._origin is None:
                self._origin = latest
            if (latest - self._origin) / scale > _LARGEST_EXPONENT:
                self.centrality *= math.exp(-(latest - self._origin) / scale)
                self._origin = latest
        inserts, ones = np.ones(_WEIGHED, np.int8), np.ones(_WEIGHED)
        for begin in range(0, len(src), _WEIGHED):
            rows = slice(begin, min(begin + _WEIGHED, len(src)))
            count = rows.stop - begin
            weight = ones[:count] if self._origin is None else np.exp((t[rows] - self._origin) / scale)
            kind = inserts[:count] if op is None else op[rows]
            add_centrality(self.centrality, kind, src[rows], dst[rows], weight)


def most_central(centrality: Float64, count: int, seed: int) -> Bool:
    """Mask of the ``count`` largest; ties are broken by a seeded draw."""
    if count >= len(centrality):
        return np.ones(len(centrality), np.bool_)
    if count == 0:
        return np.zeros(len(centrality), np.bool_)
    threshold = np.partition(candidates(centrality, count), -count)[-count]
    top: Bool = centrality > threshold
    equal = np.flatnonzero(centrality == threshold)
    drawn = equal[np.argsort(mixed(seed, equal), kind="stable")]
    top[drawn[: count - int(np.count_nonzero(top))]] = True
    return top
