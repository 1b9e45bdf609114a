"""A lane in memory: live graph, partitioner, and the content of every part. No files.

A lane is a pure function of the log, and ``LaneState.advance`` computes it one snapshot at a time.

*Placement* is each node's home, and in edge lanes its set of parts. An edge is stored with each part that owns one of its ends
(vertex lanes) or with one part (edge lanes). A snapshot changes this for its own pairs and, in vertex lanes, for the pairs of
nodes with a new owner; only those are looked at.

*Sizes* are bytes that a snapshot added, and bytes if every snapshot were stored whole. They count payload with index columns,
without headers, padding and alignment of files (a manifest's file lengths include those). A node whose features are all
zeros takes no feature bytes in either count.
"""

import time
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from freshet_graph.schemas.config import Lane
from freshet_graph.schemas.events import Op
from freshet_graph.schemas.store import LaneHeader, LogHeader, PartSummary
from freshet_graph.stream.arrays.growing import Growing
from freshet_graph.stream.arrays.kinds import Float32, Int8, Int32, Int64
from freshet_graph.stream.kernels import njit
from freshet_graph.stream.kernels.node_sets import distinct
from freshet_graph.stream.partition.interface import (
    Assignment,
    OnlinePartitioner,
    PartitionError,
    Why,
    algorithms,
    create_for_lane,
    training_until_us,
)
from freshet_graph.stream.partition.vertex.foreign_rows import ForeignRows
from freshet_graph.stream.snapshots.delta import NeighbourRows, SnapshotDelta
from freshet_graph.stream.snapshots.graph import LiveGraph
from freshet_graph.stream.snapshots.pair_index import HIGH, LOW, SEEN, WEIGHT, find
from freshet_graph.stream.snapshots.pairs import Change, pair_keys
from freshet_graph.stream.store.lane.diff import (
    NOWHERE,
    PairRows,
    SegmentRows,
    Stored,
    WholePairs,
    by_part,
    cut_segments,
    full_rows,
    is_smaller_whole,
    pair_change,
    rows_of_all,
    segment_changes,
    segment_width,
)
from freshet_graph.stream.store.lane.placement import Placement, Transition, edge_batch_count
from freshet_graph.stream.store.log.event_columns import event_columns
from freshet_graph.stream.store.log.index import groups
from freshet_graph.stream.store.log.reader import LogReader

ASSIGNMENT_ROW = 8 + 4 + 1
"""Bytes of a row (node, part, why)."""
PAIR_CHANGE_ROW = 1 + 8 + 8 + 4
"""Bytes of a row (op, src, dst, weight)."""
PAIR_ROW = 8 + 8 + 4
"""Bytes of a row (src, dst, weight) of a whole snapshot."""
NODE_ROW = 8
"""Bytes of a node's id in a whole snapshot."""
SEGMENT_INDEX = 8 + 4
"""Bytes of (node, segment) beside a segment's values."""
VALUE = 4
"""Bytes of a float32."""


class PartTotals:
    """Nodes of every part, and those with features among them, updated from the changes alone."""

    def __init__(self, parts: int) -> None:
        self.nodes: Int64 = np.zeros(parts, np.int64)
        self.featured: Int64 = np.zeros(parts, np.int64)
        self._parts = parts
        self._has_features = Growing(False, np.bool_)
        self._affected: Int64 = np.empty(0, np.int64)

    def before(self, placement: Placement, described: Int64, assigned: Int64) -> None:
        """Subtract the nodes that a snapshot is about to change: newly ``described`` or ``assigned`` ones."""
        self._affected = distinct(described, assigned)
        known = self._affected[self._affected < len(placement.home)]
        self._count(placement, known, -1)

    def after(self, placement: Placement, transition: Transition, described: Int64, graph: LiveGraph) -> None:
        """Add them again in their new state; ``described`` nodes have new features."""
        has_features = self._has_features.grow(len(placement.home))
        has_features[described] = graph.features(described).any(axis=1)
        affected = distinct(self._affected, transition.entered_node, described)
        self._count(placement, affected, 1)

    def _count(self, placement: Placement, nodes: Int64, sign: int) -> None:
        node, part = placement.parts_of(nodes)
        self.nodes += sign * np.bincount(part, minlength=self._parts)
        self.featured += sign * np.bincount(part[self._has_features.values[node]], minlength=self._parts)


def part_summaries(
    header: LaneHeader, totals: PartTotals, pairs: Int64, stored: Stored, transition: Transition
) -> list[PartSummary]:
    """Summary of every part; in edge lanes also of the discarded pairs.

    Args:
        header: The lane's.
        totals: Nodes by part after the snapshot.
        pairs: int64 (batches,), pairs stored with each part.
        stored: The snapshot's changes.
        transition: Placements it began and ended; a row that ends one counts for the part left.
    """
    batches = len(pairs)
    width = segment_width(header.node_features, header.segments)
    placed = stored.part[stored.part >= 0]
    rows = np.bincount(placed, minlength=batches)
    gone = np.isin(transition.rehomed, stored.node[stored.part < 0])
    left = transition.former_home[gone]
    rows += np.bincount(left[left >= 0], minlength=batches)
    added = rows * ASSIGNMENT_ROW + np.diff(stored.pairs.offsets) * PAIR_CHANGE_ROW
    segments = np.diff(stored.segments.offsets) * (SEGMENT_INDEX + width * VALUE)
    added[: header.parts] += segments
    full = pairs * PAIR_ROW
    full[: header.parts] += totals.nodes * NODE_ROW + totals.featured * header.node_features * VALUE
    nodes = np.append(totals.nodes, 0)
    return [
        PartSummary(nodes=nodes[k], edges=pairs[k], bytes=added[k], full_bytes=full[k])
        for k in range(batches)
    ]


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
        rows = by_part(part, op, keys, weight, len(self.count))
        self.count += rows.growth
        return rows

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
        need_home = np.concatenate([delta.entered, transition.rehomed])
        homeless = np.unique(need_home[home[need_home] < 0])
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
            num_given = "none" if event_part is None else len(event_part)
            raise PartitionError(
                f"{self._algorithm} gave {num_given} event parts for {len(delta.op)} events of snapshot "
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
    rehomed: Int64, before: Int32, home: Int32, rows: NeighbourRows, entries: Int32,
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


_PLACED = pa.schema([("node", pa.int64()), ("part", pa.int32()), ("why", pa.int8())])
_PAIR_PARTS = pa.schema([("part", pa.int32())])


@dataclass(frozen=True, slots=True)
class LaneStep:
    """One snapshot of a lane.

    Attributes:
        delta: The log's changes.
        stored: The content of the lane's files.
        event_part: Edge lanes: int32, one per edge event of the snapshot.
        parts: Summaries of the K parts.
        discarded: Edge lanes: summary of the pairs that no part holds.
        live_pairs: Directed pairs in the live graph.
        foreign_parts: Vertex lanes: mean λ of the nodes with a neighbour; NaN without any, and in edge lanes.
        seconds: The partitioner's time.
    """

    delta: SnapshotDelta
    stored: Stored
    event_part: Int32 | None
    parts: list[PartSummary]
    discarded: PartSummary | None
    live_pairs: int
    foreign_parts: float
    seconds: float


class LaneState:
    """Graph, partitioner and placements after a snapshot of the log."""

    def __init__(self, header: LaneHeader) -> None:
        """The state before the first snapshot.

        Raises:
            PartitionError: Unknown algorithm, or parameters it doesn't take.
        """
        self.header = header
        self.partitioner = new_partitioner(header)
        self.graph = LiveGraph(
            node_features=header.node_features,
            segments=header.segments,
            edge_life=header.edge_life,
        )
        self.placement = Placement(header.kind, header.parts)
        self.width = segment_width(header.node_features, header.segments)
        self.batches = edge_batch_count(header)
        self._pairs: StoredPairs = (
            OwnedPairs(header.algorithm, self.graph, self.placement)
            if header.kind == "vertex"
            else AssignedPairs(header.algorithm, self.graph, header.parts)
        )
        self._totals = PartTotals(header.parts)
        self._foreign = ForeignRows(header.parts)

    def foresee(self, log: LogReader) -> None:
        """Let the partitioner see the inserts of its training part, if it needs one; only in a fresh state.

        Args:
            log: Sealed up to the end of the part.

        Raises:
            PartitionError: The log no longer keeps its first snapshots.
        """
        until_us = training_until_us(self.partitioner)
        if until_us is None:
            return
        if log.snapshots.first:
            raise PartitionError(
                f"lane {self.header.lane}: {self.header.algorithm} needs its whole training part, but the log has dropped its "
                "first snapshots. Choose sep-centrality, or keep all snapshots"
            )
        for snapshot in log.snapshots:
            if snapshot.tau * self.header.interval_us > until_us:
                return
            events = event_columns(log.events(snapshot.tau), snapshot.tau, self.header.interval_us, 0)
            inserts = events.op == int(Op.INSERT)
            columns = events.src[inserts], events.dst[inserts], events.visible_t[inserts]
            self.partitioner.foresee(*columns, snapshot.num_nodes)  # type: ignore[attr-defined]  # it has the option

    def begin(self, base: pa.Table | None) -> None:
        """Apply the log's base, from before its first kept snapshot; only in a fresh state.

        Args:
            base: ``stream.store.log.index.base_schema``; None: no snapshot was dropped.

        Raises:
            PartitionError: As for ``advance``.
        """
        if base is not None:
            for tau, events in groups(base, self.header.edge_life):
                self.advance(tau, events)

    def advance(self, tau: int, events: pa.Table, *, from_nothing: bool = False) -> LaneStep:
        """Apply snapshot τ of the log.

        Args:
            tau: Above all before it.
            events: Its events, ``log_event_schema``.
            from_nothing: Store the full content of the parts after it, because nothing from before is stored.

        Raises:
            PartitionError: The partitioner can't continue, or breaks its contract.
        """
        delta = self.graph.apply(tau, events)
        started = time.perf_counter()
        assignment = self.partitioner.update(delta)
        seconds = time.perf_counter() - started
        changed = self.graph.segment_changes()
        self._totals.before(self.placement, changed.nodes, assignment.node)
        transition = self.placement.apply(assignment.node, assignment.part, assignment.why, delta.num_nodes)
        self._totals.after(self.placement, transition, changed.nodes, self.graph)
        pairs = self._pairs.advance(delta, assignment, transition)
        if self.header.kind == "vertex":
            moved = assignment.node[assignment.why == Why.MOVED]
            self._foreign.advance(delta, self.placement.home, moved)
        if from_nothing:
            stored = self.whole()
        else:
            whole = is_smaller_whole(pairs, int(self._pairs.count.sum()))
            pairs = self._all_pairs() if whole else pairs
            stored = Stored(
                assignment.node,
                assignment.part,
                assignment.why,
                pairs,
                self._segment_changes(transition),
                whole_pairs=whole,
            )
        summaries = part_summaries(self.header, self._totals, self._pairs.count, stored, transition)
        return LaneStep(
            delta=delta,
            stored=stored,
            event_part=assignment.event_part if self.header.kind == "edge" else None,
            parts=summaries[: self.header.parts],
            discarded=summaries[self.header.parts] if self.header.kind == "edge" else None,
            live_pairs=self.graph.num_edges,
            foreign_parts=self._foreign.mean,
            seconds=seconds,
        )

    def whole(self) -> Stored:
        """The full content of the parts, as a change from nothing: a base."""
        node, part, why = self._placed()
        vectors = self.graph.features(node)
        rows = [full_rows(node, part, vectors, self.header.segments)] if self.width else []
        segments = segment_changes(rows, self.header.parts, self.width)
        return Stored(node, part, why, self._all_pairs(), segments)

    def tables(self) -> dict[str, pa.Table]:
        """The state that the next ``advance`` depends on, by name."""
        return {
            "graph": self.graph.state(),
            "partitioner": self.partitioner.state(),
            "placement": pa.table(self._placed(), schema=_PLACED),
            "pair_parts": pa.table([self._pairs.state()], schema=_PAIR_PARTS),
        }

    def restore(self, tables: dict[str, pa.Table]) -> None:
        """Continue from ``tables`` of a lane with the same header; only in a fresh state.

        Raises:
            ValueError: They are from an earlier release.
        """
        self.graph.restore(tables["graph"])
        self.partitioner.restore(tables["partitioner"])
        node, part, why = (tables["placement"][name].to_numpy() for name in _PLACED.names)
        transition = self.placement.apply(node, part, why, self.graph.num_nodes)
        nodes = np.arange(self.graph.num_nodes, dtype=np.int64)
        self._totals.after(self.placement, transition, nodes, self.graph)
        self._pairs.restore(tables["pair_parts"]["part"].to_numpy())

    def _all_pairs(self) -> PairRows:
        return rows_of_all(self._pairs.whole(), self.batches)

    def _placed(self) -> tuple[Int64, Int32, Int8]:
        """All placements as the rows of a new lane: (node, part, why)."""
        node, part = self.placement.all()
        home = self.placement.home[node] == part
        return node, part, np.where(home, int(Why.NEW), int(Why.REPLICATED)).astype(np.int8)

    def _segment_changes(self, transition: Transition) -> SegmentRows:
        parts = self.header.parts
        if self.width == 0:
            return segment_changes([], parts, 0)
        entered = (transition.entered_node, transition.entered_part)
        rows = [full_rows(*entered, self.graph.features(entered[0]), self.header.segments)]
        changed = self.graph.segment_changes()
        node, part = self.placement.parts_of(changed.nodes)
        not_entered = ~np.isin(node * parts + part, entered[0] * parts + entered[1])
        node, part = node[not_entered], part[not_entered]
        row, segment = np.nonzero(changed.changed[np.searchsorted(changed.nodes, node)])
        values = cut_segments(self.graph.features(node), self.header.segments)[row, segment]
        rows.append((part[row], node[row], segment.astype(np.int32), values))
        return segment_changes(rows, parts, self.width)


def lane_header(lane: Lane, log: LogHeader) -> LaneHeader:
    """The header of a lane that follows a log.

    Raises:
        PartitionError: Unknown algorithm, or parameters it doesn't take.
    """
    create_for_lane(lane.algorithm, lane.params, parts=lane.parts, seed=lane.seed, window=lane.window)
    return LaneHeader(
        lane=lane.name,
        algorithm=lane.algorithm,
        kind=algorithms()[lane.algorithm].kind,
        parts=lane.parts,
        window=lane.window,
        edge_life=lane.edge_life,
        seed=lane.seed,
        base_every=lane.base_every,
        params=lane.params,
        graph=log.graph,
        interval_us=log.interval_us,
        node_features=log.node_features,
        edge_features=log.edge_features,
        segments=log.segments,
    )


def new_partitioner(header: LaneHeader) -> OnlinePartitioner:
    """The partitioner that a lane's header describes.

    Raises:
        PartitionError: Unknown algorithm, or parameters it doesn't take.
    """
    return create_for_lane(
        header.algorithm, header.params, parts=header.parts, seed=header.seed, window=header.window
    )
