"""The parts that hold each pair of a lane, updated by snapshots.

An edge is stored with each part that owns one of its ends (vertex lanes) or with one part (edge lanes). A snapshot changes
this for its own pairs and, in vertex lanes, for the pairs of nodes with a new owner; only those are looked at.
"""

from typing import Protocol

import numpy as np

from stream.arrays.growing import Growing
from stream.arrays.kinds import Float32, Int8, Int32, Int64
from stream.kernels import njit
from stream.partition.interface import Assignment, PartitionError
from stream.snapshots.delta import Rows, SnapshotDelta
from stream.snapshots.graph import LiveGraph
from stream.snapshots.pair_index import HIGH, LOW, SEEN, WEIGHT, find
from stream.snapshots.pairs import Change, pair_keys
from stream.store.lane.diff import NOWHERE, PairRows, WholePairs, by_part, pair_change
from stream.store.lane.placement import Placement, Transition

_RECORD = np.int64(0xFFFFFFFF)
_NONE = np.int32(NOWHERE)
_ADDED, _REMOVED = int(Change.ADDED), int(Change.REMOVED)


class StoredPairs(Protocol):
    """Parts of a lane's live pairs.

    Attributes:
        count: int64 (batches,), pairs stored with each part.
    """

    count: Int64

    def advance(self, delta: SnapshotDelta, assignment: Assignment, transition: Transition) -> PairRows:
        """The changes of a snapshot, in order; O(changed pairs, and pairs of nodes with another owner).

        Args:
            delta: The snapshot that the live graph is at.
            assignment: The partitioner's.
            transition: Its effect on the placement.

        Raises:
            PartitionError: The partitioner breaks its contract.
        """

    def whole(self) -> WholePairs:
        """All live pairs with their parts. O(pairs · log pairs)."""

    def state(self) -> Int32:
        """Part of each live pair in the order of ``LiveGraph.state_slots``; empty if it follows from owners."""

    def restore(self, part: Int32) -> None:
        """Continue from a ``state``; graph and placement are restored already."""


class OwnedPairs:
    """Vertex lanes: each pair with the owners of its ends."""

    def __init__(self, algorithm: str, graph: LiveGraph, placement: Placement) -> None:
        self._algorithm, self._graph, self._placement = algorithm, graph, placement
        self._before = Growing(NOWHERE, np.int32)  # owners before the snapshot
        self.count: Int64 = np.zeros(placement.parts, np.int64)

    def advance(self, delta: SnapshotDelta, assignment: Assignment, transition: Transition) -> PairRows:
        """See ``StoredPairs.advance``."""
        home, before = self._placement.home, self._before.grow(delta.num_nodes)
        self._refuse_homeless(delta, transition)
        changes, index, adjacency = self._graph.changed(), self._graph.pair_index, self._graph.adjacency
        part, op, keys, weight = _owned_changes(
            changes.src, changes.dst, changes.change, changes.weight_before, changes.weight,
            transition.rehomed, before, home, adjacency.rows(), adjacency.records,
            index.table, index.bits, index.records, index.weights, self._graph.snapshot_number,
        )  # fmt: skip
        before[transition.rehomed] = home[transition.rehomed]
        found = by_part(part, op, keys, weight, len(self.count))
        self.count += found.growth
        return found

    def whole(self) -> WholePairs:
        """See ``StoredPairs.whole``."""
        pairs = self._graph.pairs()
        return WholePairs.by_owner(pair_keys(pairs.src, pairs.dst), pairs.weight, self._placement.home)

    def state(self) -> Int32:
        """Empty: it follows from owners."""
        return np.empty(0, np.int32)

    def restore(self, part: Int32) -> None:
        """See ``StoredPairs.restore``."""
        self._before.replace(self._placement.home)
        self.count = self.whole().count(len(self.count))

    def _refuse_homeless(self, delta: SnapshotDelta, transition: Transition) -> None:
        home = self._placement.home
        asked = np.concatenate([delta.entered, transition.rehomed])
        homeless = np.unique(asked[home[asked] < 0])
        homeless = homeless[self._graph.is_live(homeless)]
        if len(homeless):
            raise PartitionError(
                f"{self._algorithm} left {len(homeless)} live nodes of snapshot {delta.tau} without an "
                f"owner, such as node {homeless[0]}, which breaks the contract of vertex partitioners"
            )


class AssignedPairs:
    """Edge lanes: each pair with the part of its latest insert; discarded pairs have a part of their own."""

    def __init__(self, algorithm: str, graph: LiveGraph, parts: int) -> None:
        self._algorithm, self._graph, self._parts = algorithm, graph, parts
        self._part = Growing(NOWHERE, np.int32)  # by slot
        self.count: Int64 = np.zeros(parts + 1, np.int64)

    def advance(self, delta: SnapshotDelta, assignment: Assignment, transition: Transition) -> PairRows:
        """See ``StoredPairs.advance``."""
        event_part = assignment.event_part
        if event_part is None or len(event_part) != len(delta.op):
            found = "none" if event_part is None else len(event_part)
            raise PartitionError(
                f"{self._algorithm} gave {found} event parts for {len(delta.op)} events of snapshot "
                f"{delta.tau}, which breaks the contract of edge partitioners"
            )
        changes = self._graph.changed()
        part, op, keys, weight = _assigned_changes(
            changes.src, changes.dst, changes.change, changes.weight_before, changes.weight,
            changes.event_row, changes.slot, event_part, self._part.grow(self._graph.num_slots), self._parts,
        )  # fmt: skip
        found_changes = by_part(part, op, keys, weight, len(self.count))
        self.count += found_changes.growth
        return found_changes

    def whole(self) -> WholePairs:
        """See ``StoredPairs.whole``."""
        pairs = self._graph.pairs()
        return WholePairs.by_edge(
            pair_keys(pairs.src, pairs.dst), pairs.weight, self._part.values[pairs.slot]
        )

    def state(self) -> Int32:
        """See ``StoredPairs.state``."""
        part: Int32 = self._part.values[self._graph.state_slots()]
        return part

    def restore(self, part: Int32) -> None:
        """See ``StoredPairs.restore``."""
        self._part.grow(self._graph.num_slots)[self._graph.state_slots()] = part
        self.count = np.bincount(part, minlength=len(self.count))


@njit(cache=True, nogil=True)
def _owned_changes(
    src: Int64, dst: Int64, change: Int8, weight_before: Float32, new_weight: Float32,
    rehomed: Int64, before: Int32, home: Int32, rows: Rows, entries: Int32,
    table: Int64, bits: int, records: Int32, weights: Float32, number: int,
) -> tuple[Int32, Int8, Int64, Float32]:  # fmt: skip
    """Rows (part, op, key, weight) of the changed pairs, then of other pairs of nodes with a new owner."""
    most = 4 * len(src)
    for v in rehomed:
        most += 8 * (rows.end[v] - rows.start[v]) + 4
    part, op = np.empty(most, np.int32), np.empty(most, np.int8)
    keys, weight = np.empty(most, np.int64), np.empty(most, np.float32)
    n = 0
    for i in range(len(src)):
        u, v = src[i], dst[i]
        old = (_NONE, _NONE) if change[i] == _ADDED else (before[u], before[v])
        new = (_NONE, _NONE) if change[i] == _REMOVED else (home[u], home[v])
        key = (u << 32) | v
        n = pair_change(
            key, old, new, new_weight[i] != weight_before[i], new_weight[i], n, part, op, keys, weight
        )
    for v in rehomed:
        if before[v] < 0 or home[v] < 0:
            continue  # it entered or left together with all of its pairs
        for k in range(rows.start[v], rows.end[v]):
            u = rows.indices[k]
            if u < v and before[u] != home[u] and before[u] >= 0:
                continue  # handled at u
            for back in range(2):
                if records[entries[k], SEEN + back] < 0 or records[entries[k], SEEN + back] == number:
                    continue  # not live, or among the changed pairs
                a, b = np.int64(records[entries[k], LOW + back]), np.int64(records[entries[k], HIGH - back])
                w = weights[entries[k], WEIGHT + back]
                old, new = (before[a], before[b]), (home[a], home[b])
                n = pair_change((a << 32) | b, old, new, False, w, n, part, op, keys, weight)
        place = find(table, bits, records, v, v)
        if place >= 0:
            loop = table[place] & _RECORD
            if records[loop, SEEN] != number:
                old, new = (before[v], before[v]), (home[v], home[v])
                n = pair_change(
                    (v << 32) | v, old, new, False, weights[loop, WEIGHT], n, part, op, keys, weight
                )
    return part[:n], op[:n], keys[:n], weight[:n]


@njit(cache=True, nogil=True)
def _assigned_changes(
    src: Int64, dst: Int64, change: Int8, weight_before: Float32, new_weight: Float32,
    event_row: Int64, slot: Int64, event_part: Int32, part_of: Int32, parts: int,
) -> tuple[Int32, Int8, Int64, Float32]:  # fmt: skip
    """Rows (part, op, key, weight) of the changed pairs; updates ``part_of``, which is by slot."""
    most = 2 * len(src)
    part, op = np.empty(most, np.int32), np.empty(most, np.int8)
    keys, weight = np.empty(most, np.int64), np.empty(most, np.float32)
    n = 0
    for i in range(len(src)):
        old = _NONE if change[i] == _ADDED else part_of[slot[i]]
        new = _NONE
        if change[i] != _REMOVED:
            new = event_part[event_row[i]]
            if new < 0:
                new = np.int32(parts)
            part_of[slot[i]] = new
        key = (src[i] << 32) | dst[i]
        reweighted = new_weight[i] != weight_before[i]
        n = pair_change(key, (old, _NONE), (new, _NONE), reweighted, new_weight[i], n, part, op, keys, weight)
    return part[:n], op[:n], keys[:n], weight[:n]
