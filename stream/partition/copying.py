"""What edge partitioners share that copy any node: nothing is discarded, and nothing bounds the copies."""

from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stream.partition.copying_kernels import RECORD_PARTS, assign_masks, assign_records, count_edges
from stream.partition.interface import Assignment, Kind, PartitionError, Quality
from stream.partition.part_sets import in_several, placement_changes
from stream.partition.quality import EdgeQuality
from stream.snapshots.delta import Int8, Int32, Int64, SnapshotDelta
from stream.snapshots.state_table import pack, unpack

_COUNT_SHIFT = np.uint64(32)
_MASK = np.uint64(2**32 - 1)
_FEW_EVENTS = 16
"""A snapshot with fewer ends than one in this many nodes has them sorted; otherwise all nodes are compared."""


class CopyingPartitioner:
    """Assigns every insert, in log order, by the parts and a count of its ends.

    Args:
        parts: P.
        seed: Seed of the draws that break ties.
        window: Unused.
    """

    name: ClassVar[str]
    kind: ClassVar[Kind] = "edge"
    greedy: ClassVar[bool]
    """PowerGraph's rule; else HDRF's."""

    balance_weight = 1.0

    def __init__(self, *, parts: int, seed: int = 0, window: int = 4) -> None:
        self.parts, self.seed, self.window = parts, seed, window
        words = -(-parts // 64)
        # One record a node up to 32 parts, else masks and counts.
        self._records: NDArray[np.uint64] = np.empty(0, np.uint64)
        self._masks: NDArray[np.uint64] = np.empty((0, words), np.uint64)
        self._counts: NDArray[np.uint32] = np.empty(0, np.uint32)
        self._home: Int32 = np.empty(0, np.int32)
        self._sizes: Int64 = np.zeros(parts, np.int64)
        self._placements: Int64 = np.zeros(parts, np.int64)
        self._shared = 0
        self._events = 0
        self._quality = EdgeQuality(parts)

    def update(self, delta: SnapshotDelta) -> Assignment:
        """Assign the inserts of snapshot ``delta.tau``; called once a snapshot, in order."""
        self._grow(delta.num_nodes)
        inserts = int((delta.op > 0).sum())
        if _FEW_EVENTS * inserts < delta.num_nodes:
            ends = np.unique(np.concatenate([delta.src[delta.op > 0], delta.dst[delta.op > 0]]))
        else:
            ends = np.arange(delta.num_nodes)
        before, homes_before = self._parts_of(ends), self._home[ends]
        event_part = self._assign(delta.op, delta.src, delta.dst)
        self._events += len(delta.op)
        now = self._parts_of(ends)
        node, part, why, _ = placement_changes(
            ends, homes_before, self._home[ends], before, now, self._placements
        )
        self._shared += int(in_several(now).sum()) - int(in_several(before).sum())
        self._quality.observe(
            inserts=inserts,
            discarded=0,
            seen=delta.num_nodes,
            shared=self._shared,
            placements=self._placements,
            placed_nodes=int((self._home >= 0).sum()),
            assigned=self._sizes,
            moved=0,
            live=len(delta.live),
        )
        return Assignment(node, part, why, event_part)

    def home(self) -> Int32:
        """First part of every dense id so far, for ever; int32 (num_nodes,), −1 for nodes without edges. A view."""
        return self._home

    def quality(self) -> Quality:
        """Quality of all snapshots so far; ``cut_final`` needs the events again and is NaN."""
        return self._quality.quality()

    def state(self) -> pa.Table:
        """Everything that the next update depends on, the running quality included."""
        counts = self._counts if self.parts > RECORD_PARTS else (self._records >> _COUNT_SHIFT)
        return pack(
            {
                "home": self._home,
                "masks": self._parts_of(np.arange(len(self._home))),
                "counts": counts.astype(np.uint32),
                "sizes": self._sizes,
                "placements": self._placements,
                "events": np.array([self._events, self._shared]),
                "quality": self._quality.state(),
            }
        )

    def restore(self, table: pa.Table) -> None:
        """Continue from a ``state()``.

        Raises:
            PartitionError: The state is of another partitioner, or of a release before this shape.
        """
        if "counts" not in table.column_names or "masks" not in table.column_names:
            raise PartitionError(
                f"this is not a state of {self.name} as of this release; remove the lane's folder and let the stream "
                "job build it anew"
            )
        state: dict[str, NDArray[Any]] = unpack(table)
        self._home, self._sizes, self._placements = state["home"], state["sizes"], state["placements"]
        if self.parts > RECORD_PARTS:
            self._masks, self._counts = state["masks"], state["counts"]
        else:
            self._records = state["masks"][:, 0] | state["counts"].astype(np.uint64) << _COUNT_SHIFT
        self._events, self._shared = (int(x) for x in state["events"])
        self._quality.restore(state["quality"])

    def _assign(self, op: Int8, src: Int64, dst: Int64) -> Int32:
        rule = (self._home, self._sizes, self.greedy, self.balance_weight, self.seed, self._events)
        if self.parts <= RECORD_PARTS:
            if self.greedy:
                count_edges(op, src, dst, self._records)
            return assign_records(op, src, dst, self._records, *rule)
        if self.greedy:
            rows = op > 0
            ends = np.concatenate([src[rows], dst[rows & (src != dst)]])
            self._counts += np.bincount(ends, minlength=len(self._counts)).astype(np.uint32)
        return assign_masks(op, src, dst, self._masks, self._counts, *rule)

    def _parts_of(self, node: Int64) -> NDArray[np.uint64]:
        """Masks of these nodes, uint64 (n, words): a copy."""
        if self.parts > RECORD_PARTS:
            return self._masks[node]
        return (self._records[node] & _MASK).reshape(-1, 1)

    def _grow(self, num_nodes: int) -> None:
        new = num_nodes - len(self._home)
        if new <= 0:
            return
        self._home = np.concatenate([self._home, np.full(new, -1, np.int32)])
        if self.parts <= RECORD_PARTS:
            self._records = np.concatenate([self._records, np.zeros(new, np.uint64)])
        else:
            self._masks = np.concatenate([self._masks, np.zeros((new, self._masks.shape[1]), np.uint64)])
            self._counts = np.concatenate([self._counts, np.zeros(new, np.uint32)])
