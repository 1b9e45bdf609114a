"""Edge partitioners that may copy any node: they discard nothing, and do not limit copies."""

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from stream.arrays.growing import grown
from stream.arrays.kinds import Int8, Int32, Int64, UInt32, UInt64
from stream.partition.edge.base import EdgePartitioner
from stream.partition.edge.copying_kernels import RECORD_PARTS, assign_masks, assign_planes, count_edges
from stream.partition.edge.load_planes import PLANE_PARTS
from stream.partition.edge.part_sets import gains
from stream.partition.edge.quality import Placed
from stream.partition.interface import Assignment, PartitionError, Why, register
from stream.snapshots.delta import SnapshotDelta

_COUNT_SHIFT = np.uint64(32)
_MASK = np.uint64(2**32 - 1)
_CHUNK = 1 << 18
"""Events per call of a kernel, so that its notes of changes stay in the cache."""


class CopyingPartitioner(EdgePartitioner):
    """Assigns every insert, in log order, by the parts of its ends and a count per end; see ``EdgePartitioner``."""

    greedy: ClassVar[bool]
    """PowerGraph's rule; otherwise HDRF's."""

    balance_weight = 1.0

    def __init__(self, *, parts: int, seed: int = 0, window: int = 4) -> None:
        super().__init__(parts=parts, seed=seed, window=window)
        # One record per node up to 32 parts, separate parts and counts above, and several words of parts from 65 on.
        words = (-(-parts // 64),) if parts > PLANE_PARTS else ()
        self.records: UInt64 = np.empty((0, *words), np.uint64)
        self._counts: UInt32 = np.empty(0, np.uint32)
        self._shared = self._placed = 0  # nodes in more than one part, and in any

    def _place(self, delta: SnapshotDelta) -> Placed:
        if self.greedy:
            self._count(delta.op, delta.src, delta.dst)
        assigned = int(self.sizes.sum())
        event_part = np.empty(len(delta.op), np.int32)
        room = np.empty(2 * min(len(delta.op), _CHUNK), np.int64)
        noted = [
            self._assign(delta, slice(begin, begin + _CHUNK), event_part, room)
            for begin in range(0, len(delta.op), _CHUNK)
        ]
        node, part, why = gains(noted, self._placements, self._home)
        self._placed += int(np.count_nonzero(why == Why.NEW))
        return Placed(
            assignment=Assignment(node, part, why, event_part),
            inserts=int(self.sizes.sum()) - assigned,
            seen=delta.num_nodes,
            shared=self._shared,
            placed=self._placed,
        )

    def _memory(self) -> dict[str, NDArray[Any]]:
        masks, counts = self.records, self._counts
        if self.parts <= RECORD_PARTS:
            masks, counts = masks & _MASK, (masks >> _COUNT_SHIFT).astype(np.uint32)
        return {
            "masks": masks.reshape(-1, -(-self.parts // 64)),
            "counts": counts,
            "events": np.array([self._events, self._shared]),
        }

    def _remember(self, memory: dict[str, NDArray[Any]]) -> None:
        masks, self._counts = memory["masks"], memory["counts"]
        self.records = masks if self.parts > PLANE_PARTS else masks.reshape(-1)
        if self.parts <= RECORD_PARTS:
            self.records |= self._counts.astype(np.uint64) << _COUNT_SHIFT
            self._counts = np.empty(0, np.uint32)
        self._placed = int(np.count_nonzero(self._home >= 0))
        self._events, self._shared = (int(x) for x in memory["events"])

    def _assign(self, delta: SnapshotDelta, rows: slice, event_part: Int32, room: Int64) -> Int64:
        """Assign these rows' inserts; returns the gains of nodes, for ``gains``."""
        events = delta.op[rows], delta.src[rows], delta.dst[rows]
        rule = (self.greedy, self.balance_weight, self.seed, self._events + rows.start)
        out = (event_part[rows], room)
        if self.parts > PLANE_PARTS:
            found, shared = assign_masks(
                *events, self.records, self._counts, self._home, self.sizes, *rule, *out
            )
        else:
            counts = self._counts if self.parts > RECORD_PARTS else None
            found, shared = assign_planes(*events, self.records, counts, self.sizes, *rule, *out)
        self._shared += int(shared)
        return room[: int(found)].copy()

    def _count(self, op: Int8, src: Int64, dst: Int64) -> None:
        """Add a snapshot's inserts to the counts of unassigned edges."""
        if self.parts <= RECORD_PARTS:
            count_edges(op, src, dst, self.records)
            return
        rows = op > 0
        ends = np.concatenate([src[rows], dst[rows & (src != dst)]])
        self._counts += np.bincount(ends, minlength=len(self._counts)).astype(np.uint32)

    def _grow(self, num_nodes: int) -> None:
        super()._grow(num_nodes)
        self.records = grown(self.records, num_nodes)
        if self.parts > RECORD_PARTS:
            self._counts = grown(self._counts, num_nodes)


@register
class Hdrf(CopyingPartitioner):
    """The part with the largest ``C_REP + λ·C_BAL``, by degrees so far.

    HDRF (Petroni and others 2015): high degrees are copied first. SPEED section III describes its limit, which SEP removes:
    any node may be copied.

    Args:
        parts: P.
        seed: Seed of the draws that break ties.
        window: Unused.
        balance_weight: λ > 0; above 1, balance may take precedence over copies.
    """

    name: ClassVar[str] = "hdrf"
    greedy: ClassVar[bool] = False

    def __init__(self, *, parts: int, seed: int = 0, window: int = 4, balance_weight: float = 1.0) -> None:
        if not balance_weight > 0:
            raise PartitionError(f"{self.name} takes a positive balance_weight (λ), found {balance_weight}")
        super().__init__(parts=parts, seed=seed, window=window)
        self.balance_weight = balance_weight


@register
class PowergraphGreedy(CopyingPartitioner):
    """The least loaded part that both ends are in, or else of the end with more edges left, or else of all.

    PowerGraph's greedy vertex cut (Gonzalez and others, OSDI 2012, section 5.1).

    1. A part that both ends are in. 2. If both are in parts without a common one: a part of the end with more unassigned edges.
    3. If one is in parts: one of them. 4. Otherwise any part. Among several, the least loaded. Unassigned edges are those left
    in the sealed snapshot; if both ends have equally many, the parts of both count.

    Args:
        parts: P.
        seed: Seed of the draws that break ties.
        window: Unused.
    """

    name: ClassVar[str] = "powergraph-greedy"
    greedy: ClassVar[bool] = True
