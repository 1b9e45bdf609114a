"""The sealed-snapshot need cover: an edge partitioner that shares the nodes whose sharing saves most edges.

The whole sealed snapshot may be inspected before its edges are assigned, but no later one. Nodes are not shared for their
centrality, as in SPEED's SEP, but for the edges between homes that they cover:

1. *Place* the snapshot's nodes: each goes to the part where its neighbours live, within the parts' room.
2. *Select* at most ⌊k · nodes seen⌋ shared nodes by a lazy greedy cover of the edges between homes. The need of past snapshots
   counts ``past_weight``, so that the shared set is steady. A shared node that is not selected returns to its home. Then both
   steps run once more, because shared neighbours pull no node to their homes.
3. *Assign*: an edge with a shared end goes to the home of its other end; between two homes it is discarded.
4. *Learn* what each node needed and where its neighbours live, decayed by event time.

The budget is hard: ``RF ≤ k·P + (1 − k)`` (SPEED Theorem 1) holds after every snapshot, nodes that are not shared are in one
part, and both ends of an assigned insert are in its part when the snapshot is sealed.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from schemas.events import US_PER_S
from stream.arrays.growing import grown
from stream.arrays.kinds import Int8, Int32, Int64, UInt16, UInt64
from stream.partition.edge.base import EdgePartitioner
from stream.partition.edge.load_lanes import LANE_PARTS, SHORT_LOADS, lanes_for
from stream.partition.edge.need_cover_homes import forget_former_homes, local_graph, place, slots
from stream.partition.edge.need_cover_nodes import (
    NODE,
    Nodes,
    not_named,
    open_masks,
    read_changes,
    read_nodes,
    send_home,
    write_nodes,
)
from stream.partition.edge.need_cover_sharing import COPY_SLACK, assign_lanes, assign_masks, learn, select
from stream.partition.edge.part_sets import in_several
from stream.partition.edge.quality import Placed
from stream.partition.interface import Assignment
from stream.snapshots.delta import SnapshotDelta

_LARGEST_UNIT = 1e15
"""Weights are stored times e^(t/T), the unit of forward decay; beyond this they are scaled back to 1."""
_UNPICKED = 2**31 - 1
_STORED = ("need", "at_home", "other", "at_other")


class NeedCover(EdgePartitioner):
    """Need cover over snapshots.

    Args:
        parts: P, up to 32,768.
        seed: Seed of the draws that break ties.
        hubs: k, share of the seen nodes that may be in more than one part.
        time_constant: Seconds of event time after which a snapshot counts 1/e. None: no decay.
        past_weight: Weight of the need of past snapshots, relative to the edges of the sealed one.
    """

    name = "sep"

    def __init__(
        self, *, parts: int, seed: int, hubs: float, time_constant: float | None, past_weight: float
    ) -> None:
        super().__init__(parts=parts, seed=seed)
        self.hubs, self.time_constant, self.past_weight = hubs, time_constant, past_weight
        words = -(-parts // 64)
        self._masks: UInt64 = np.empty((0, words), np.uint64)
        self.nodes: Nodes = np.empty(0, NODE)
        self._local: Int32 = np.empty(0, np.int32)  # scratch, all −1 between snapshots
        self.shared: Int64 = np.empty(0, np.int64)  # ids of the shared nodes
        self._homes: Int64 = np.zeros(parts, np.int64)  # nodes at home in each part
        self.unit = 1.0  # stored weight of an event of the latest snapshot
        self.latest: int | None = None  # µs

    def _place(self, delta: SnapshotDelta) -> Placed:
        """Place, select, assign, learn."""
        self._decay(delta)
        budget = int(self.hubs * delta.num_nodes)
        ids, first, second, indptr, neighbours, loops = local_graph(
            delta.op, delta.src, delta.dst, self._local
        )
        n, inserts = len(ids), len(first)
        unit = np.float32(self.unit)
        home, was_shared, need, at_home, other, at_other = read_nodes(ids, self._home, self.nodes, unit)
        home_before = home.copy()
        placed_before = int(self._homes.sum())
        placed = placed_before + int(np.count_nonzero(home < 0))
        unnamed = not_named(self.shared, self._local)
        weighed = np.concatenate([need, self.nodes["need"][unnamed] / unit]) * np.float32(self.past_weight)
        everyone_was_shared = np.concatenate([was_shared, np.ones(len(unnamed), np.bool_)])
        shared = was_shared
        # First as if nothing were discarded, then with the resulting shared nodes and loads.
        for expected in (int(self.sizes.sum()) + inserts, 0):
            place(
                first, second, indptr, neighbours, loops, ids, home_before, home, shared[:n], at_home, other,
                at_other, self.sizes, self._homes, expected, placed, self.seed,
            )  # fmt: skip
            pick = select(first, second, indptr, neighbours, home, weighed, everyone_was_shared, budget)
            shared = pick != _UNPICKED
        forget_former_homes(home_before, home, at_home, other, at_other)
        slot = slots(home, shared[:n], self.parts)
        masks = open_masks(ids, self._masks, home, shared[:n] & was_shared)
        event_part = np.empty(len(delta.op), np.int32)
        discarded = self._assign(delta.op, first, second, slot, masks, event_part)
        learn(indptr, neighbours, home, slot, self.parts, pick, need, at_home, other, at_other)

        # Only shared nodes and former homes can have lost parts.
        copies = int(self._placements.sum()) - placed_before + len(self.shared)
        changes = np.empty(2 * (n + inserts) + copies, np.int64)
        rows, moved, several = write_nodes(
            ids, home, shared[:n], masks, need, at_home, other, at_other, unit, self._home, self._masks, self.nodes,
            self._local, self._placements, changes,
        )  # fmt: skip
        kept, demoted = unnamed[shared[n:]], unnamed[~shared[n:]]
        rows = send_home(demoted, self._home, self._masks, self.nodes, self._placements, changes, rows)
        self.shared = np.concatenate([ids[shared[:n]], kept])
        changes = np.sort(changes[:rows])
        node, part, why = read_changes(changes, self.parts)
        return Placed(
            assignment=Assignment(node, part, why, event_part),
            inserts=inserts,
            discarded=discarded,
            seen=delta.num_nodes,
            shared=several + int(in_several(self._masks[kept]).sum()),
            placed=placed,
            moved=moved,
        )

    def _assign(
        self, op: Int8, first: Int32, second: Int32, slot: UInt16, masks: UInt64, event_part: Int32
    ) -> int:
        """Write the parts of a snapshot's events; returns the number of discarded inserts."""
        most = int(COPY_SLACK * (int(self.sizes.sum()) + len(first)) / self.parts)
        graph = (first, second, slot, masks, self.sizes)
        rule = (most, self.seed, self._events, event_part)
        if self.parts > LANE_PARTS or len(first) > SHORT_LOADS:
            return int(assign_masks(op, *graph, *rule))
        return int(assign_lanes(op, *graph, *lanes_for(self.sizes), *rule))

    def _memory(self) -> dict[str, NDArray[Any]]:
        return {
            "masks": self._masks,
            **{name: self.nodes[name].copy() for name in _STORED},
            "shared": self.shared,
            "unit": np.array(self.unit),
            "latest": np.array([] if self.latest is None else [self.latest], np.int64),
            "events": np.array(self._events),
        }

    def _remember(self, memory: dict[str, NDArray[Any]]) -> None:
        self._masks, self.shared = memory["masks"], memory["shared"]
        self.nodes = np.zeros(len(self._home), NODE)
        for name in _STORED:
            self.nodes[name] = memory[name]
        self.nodes["shared"][self.shared] = True
        self._local = np.full(len(self._home), -1, np.int32)
        self._homes = np.bincount(self._home[self._home >= 0], minlength=self.parts)
        self.unit, self._events = float(memory["unit"]), int(memory["events"])
        self.latest = int(memory["latest"][0]) if len(memory["latest"]) else None

    def _grow(self, num_nodes: int) -> None:
        super()._grow(num_nodes)
        self._local = grown(self._local, num_nodes, -1)
        self._masks = grown(self._masks, num_nodes)
        known = len(self.nodes)
        self.nodes = grown(self.nodes, num_nodes)
        self.nodes["other"][known:] = -1

    def _decay(self, delta: SnapshotDelta) -> None:
        """Forward decay: an event's unit grows by e^(Δt/T), so that nothing else has to shrink."""
        if self.time_constant is None or not len(delta.t):
            return
        latest = int(delta.t.max())
        if self.latest is not None and latest > self.latest:
            fading = math.exp(-(latest - self.latest) / US_PER_S / self.time_constant)
            if fading * _LARGEST_UNIT < self.unit:
                faded = fading / self.unit
                for name in ("need", "at_home", "at_other"):
                    self.nodes[name] *= faded
                self.unit = 1.0
            else:
                self.unit /= fading
        self.latest = latest if self.latest is None else max(latest, self.latest)
