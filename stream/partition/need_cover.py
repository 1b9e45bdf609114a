"""The sealed-snapshot need cover: an edge partitioner that shares a node for the edges this saves.

A sealed snapshot may be looked at whole before its edges are assigned, and no later one is. Nodes are not shared
because they are central, as in SPEED's SEP, but where they cover edges between the parts' homes:

1. *Place* the snapshot's nodes: each goes to the part where its neighbours live, within the parts' room.
2. *Select* at most ⌊k · nodes seen⌋ shared nodes by a lazy greedy cover of the edges between homes. What past
   snapshots needed counts ``past_weight``, so that the shared set is steady. A shared node that is not selected
   goes back to its home. Then both once more: neighbours that are shared pull no node to their homes.
3. *Assign*: an edge with a shared end goes where its other end lives; between two homes it is discarded.
4. *Learn* what each node needed and where its neighbours live, decayed by event time.

The budget is hard: ``RF ≤ k·P + (1 − k)`` (SPEED Theorem 1) holds after every snapshot, nodes that are not shared
are in one part, and both ends of an assigned insert are in its part when the snapshot is sealed.
"""

import math
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from schemas.events import US_PER_S
from stream.partition.interface import Assignment, PartitionError, Quality
from stream.partition.need_cover_homes import forget_former_homes, local_graph, place
from stream.partition.need_cover_sharing import assign, learn, select
from stream.partition.part_sets import in_several, placement_changes
from stream.partition.quality import EdgeQuality
from stream.snapshots.delta import Float32, Int32, Int64, SnapshotDelta
from stream.snapshots.state_table import pack, unpack

_LARGEST_UNIT = 1e15
"""Weights are stored times e^(t/T), the unit of forward decay, and brought back to 1 beyond this."""
_UNPICKED = 2**31 - 1
_MOST_PARTS = 2**15


class NeedCover:
    """Need cover over snapshots.

    Args:
        parts: P, up to 32,768.
        seed: Seed of the draws that break ties.
        hubs: k, share of the seen nodes that may be in more than one part.
        time_constant: Seconds of event time after which a snapshot counts 1/e. None: no decay.
        past_weight: What the need of past snapshots counts beside the edges of the sealed one.
    """

    def __init__(
        self, *, parts: int, seed: int, hubs: float, time_constant: float | None, past_weight: float
    ) -> None:
        if parts > _MOST_PARTS:
            raise PartitionError(f"sep takes at most {_MOST_PARTS} parts, found {parts}")
        self.parts, self.seed = parts, seed
        self.hubs, self.time_constant, self.past_weight = hubs, time_constant, past_weight
        words = -(-parts // 64)
        self._home: Int32 = np.empty(0, np.int32)
        self._masks: NDArray[np.uint64] = np.empty((0, words), np.uint64)
        self._is_shared: NDArray[np.bool_] = np.empty(0, np.bool_)
        self._need: Float32 = np.empty(0, np.float32)
        self._at_home: Float32 = np.empty(0, np.float32)
        self._other: NDArray[np.int16] = np.empty(0, np.int16)
        self._at_other: Float32 = np.empty(0, np.float32)
        self._local: Int32 = np.empty(0, np.int32)  # scratch, all −1 between snapshots
        self._shared: Int64 = np.empty(0, np.int64)  # ids of the shared nodes
        self._sizes: Int64 = np.zeros(parts, np.int64)  # events assigned to each part
        self._homes: Int64 = np.zeros(parts, np.int64)  # nodes at home in each part
        self._placements: Int64 = np.zeros(parts, np.int64)  # nodes in each part, copies included
        self._unit = 1.0  # stored weight of an event of the latest snapshot
        self._latest: int | None = None  # µs
        self._events = 0
        self._quality = EdgeQuality(parts)

    def update(self, delta: SnapshotDelta) -> Assignment:
        """Place, select, assign, learn."""
        self._grow(delta.num_nodes)
        self._decay(delta)
        budget = int(self.hubs * delta.num_nodes)
        ids, first, second, indptr, neighbours, loops = local_graph(
            delta.op, delta.src, delta.dst, self._local
        )
        n = len(ids)
        home, was_shared = self._home[ids], self._is_shared[ids]
        home_before = home.copy()
        need, at_home, at_other = (x[ids] / self._unit for x in (self._need, self._at_home, self._at_other))
        need, at_home, at_other = (x.astype(np.float32, copy=False) for x in (need, at_home, at_other))
        other = self._other[ids]
        placed = int(self._homes.sum()) + int((home < 0).sum())
        inserts = len(first)
        named = np.zeros(len(self._home), np.bool_)
        named[ids] = True
        unnamed = self._shared[~named[self._shared]]
        waiting = (self._need[unnamed] / self._unit).astype(np.float32)
        weighed = np.concatenate([need, waiting]) * np.float32(self.past_weight)
        everyone_was_shared = np.concatenate([was_shared, np.ones(len(unnamed), np.bool_)])
        shared = was_shared
        # First as if nothing were discarded; then with the shared nodes, and so the loads, that this leads to.
        for expected in (int(self._sizes.sum()) + inserts, 0):
            place(
                indptr, neighbours, loops, ids, home_before, home, shared[:n], at_home, other, at_other,
                self._sizes, self._homes, expected, placed, self.seed,
            )  # fmt: skip
            pick = select(indptr, neighbours, home, weighed, everyone_was_shared, budget)
            shared = pick != _UNPICKED
        forget_former_homes(home_before, home, at_home, other, at_other)
        demoted = unnamed[~shared[n:]]
        named[demoted] = True
        changing = np.flatnonzero(named)
        masks_before, homes_before = self._masks[changing], self._home[changing]

        masks = self._masks[ids]
        masks[~(shared[:n] & was_shared)] = 0
        _add_homes(masks, home)
        event_part = assign(
            delta.op, first, second, home, shared[:n], masks, self._sizes, self.seed, self._events
        )
        self._masks[ids], self._home[ids] = masks, home
        sent_home = np.zeros((len(demoted), masks.shape[1]), np.uint64)
        _add_homes(sent_home, self._home[demoted])
        self._masks[demoted] = sent_home
        learn(indptr, neighbours, home, pick, need, at_home, other, at_other)
        self._need[ids], self._at_home[ids] = need * self._unit, at_home * self._unit
        self._other[ids], self._at_other[ids] = other, at_other * self._unit
        self._is_shared[self._shared] = False
        self._shared = np.concatenate([ids[shared[:n]], unnamed[shared[n:]]])
        self._is_shared[self._shared] = True
        self._events += len(delta.op)

        node, part, why, moved = placement_changes(
            changing,
            homes_before,
            self._home[changing],
            masks_before,
            self._masks[changing],
            self._placements,
        )
        self._quality.observe(
            inserts=inserts,
            discarded=inserts - int((event_part >= 0).sum()),
            seen=delta.num_nodes,
            shared=int(in_several(self._masks[self._shared]).sum()),
            placements=self._placements,
            placed_nodes=placed,
            assigned=self._sizes,
            moved=moved,
            live=delta.num_live,
        )
        return Assignment(node, part, why, event_part)

    def home(self) -> Int32:
        """Home of every dense id so far, int32 (num_nodes,), −1 for nodes without edges. A view."""
        return self._home

    def quality(self) -> Quality:
        """Quality of all snapshots so far; ``cut_final`` needs the events again and is NaN."""
        return self._quality.quality()

    def state(self) -> pa.Table:
        """Everything that the next update depends on, the running quality included."""
        return pack(
            {
                "home": self._home,
                "masks": self._masks,
                "need": self._need,
                "at_home": self._at_home,
                "other": self._other,
                "at_other": self._at_other,
                "shared": self._shared,
                "sizes": self._sizes,
                "placements": self._placements,
                "unit": np.array(self._unit),
                "latest": np.array([] if self._latest is None else [self._latest], np.int64),
                "events": np.array(self._events),
                "quality": self._quality.state(),
            }
        )

    def restore(self, table: pa.Table) -> None:
        """Continue from a ``state()``."""
        state: dict[str, NDArray[Any]] = unpack(table)
        self._home, self._masks, self._sizes = state["home"], state["masks"], state["sizes"]
        self._need, self._at_home = state["need"], state["at_home"]
        self._other, self._at_other = state["other"], state["at_other"]
        self._shared = state["shared"]
        self._is_shared = np.zeros(len(self._home), np.bool_)
        self._is_shared[self._shared] = True
        self._local = np.full(len(self._home), -1, np.int32)
        self._homes = np.bincount(self._home[self._home >= 0], minlength=self.parts)
        self._placements = state["placements"]
        self._unit, self._events = float(state["unit"]), int(state["events"])
        self._latest = int(state["latest"][0]) if len(state["latest"]) else None
        self._quality.restore(state["quality"])

    def _grow(self, num_nodes: int) -> None:
        new = num_nodes - len(self._home)
        if new <= 0:
            return
        self._home = np.concatenate([self._home, np.full(new, -1, np.int32)])
        self._local = np.concatenate([self._local, np.full(new, -1, np.int32)])
        self._other = np.concatenate([self._other, np.full(new, -1, np.int16)])
        self._masks = np.concatenate([self._masks, np.zeros((new, self._masks.shape[1]), np.uint64)])
        self._is_shared = np.concatenate([self._is_shared, np.zeros(new, np.bool_)])
        nothing = np.zeros(new, np.float32)
        self._need = np.concatenate([self._need, nothing])
        self._at_home = np.concatenate([self._at_home, nothing])
        self._at_other = np.concatenate([self._at_other, nothing])

    def _decay(self, delta: SnapshotDelta) -> None:
        """Forward decay: an event's unit grows by e^(Δt/T), so nothing else has to shrink."""
        if self.time_constant is None or not len(delta.t):
            return
        latest = int(delta.t.max())
        if self._latest is not None and latest > self._latest:
            fading = math.exp(-(latest - self._latest) / US_PER_S / self.time_constant)
            if fading * _LARGEST_UNIT < self._unit:
                faded = fading / self._unit
                self._need *= faded
                self._at_home *= faded
                self._at_other *= faded
                self._unit = 1.0
            else:
                self._unit /= fading
        self._latest = latest if self._latest is None else max(latest, self._latest)


def _add_homes(masks: NDArray[np.uint64], home: Int32) -> None:
    """Add each row's home to its parts."""
    masks[np.arange(len(home)), home >> 6] |= np.uint64(1) << (home & 63).astype(np.uint64)
