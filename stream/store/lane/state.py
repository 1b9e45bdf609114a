"""A lane in memory: live graph, partitioner, and the content of every part. No files.

A lane is a pure function of the log, and ``LaneState.advance`` computes it one snapshot at a time.
"""

import time
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from schemas.config import Lane
from schemas.store import LaneHeader, LogHeader, PartSummary
from stream.arrays.kinds import Int8, Int32, Int64
from stream.partition.interface import OnlinePartitioner, Why, algorithms, create
from stream.partition.vertex.foreign_rows import ForeignRows
from stream.snapshots.delta import SnapshotDelta
from stream.snapshots.graph import LiveGraph
from stream.store.lane.diff import (
    PairRows,
    SegmentRows,
    Stored,
    WholePairs,
    cut_segments,
    full_rows,
    is_smaller_whole,
    pair_changes,
    segment_changes,
    segment_width,
)
from stream.store.lane.placement import Placement, Transition
from stream.store.lane.sizes import PartTotals, part_summaries
from stream.store.lane.stored_pairs import AssignedPairs, OwnedPairs, StoredPairs
from stream.store.log.base import groups

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

    def begin(self, base: pa.Table | None) -> None:
        """Apply the log's base, from before its first kept snapshot; only in a fresh state.

        Args:
            base: ``stream.store.log.base.base_schema``; None: no snapshot was dropped.

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
        return pair_changes(WholePairs.empty(), self._pairs.whole(), self.batches)

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
        kept = ~np.isin(node * parts + part, entered[0] * parts + entered[1])
        node, part = node[kept], part[kept]
        row, segment = np.nonzero(changed.changed[np.searchsorted(changed.nodes, node)])
        values = cut_segments(self.graph.features(node), self.header.segments)[row, segment]
        rows.append((part[row], node[row], segment.astype(np.int32), values))
        return segment_changes(rows, parts, self.width)


def lane_header(lane: Lane, log: LogHeader) -> LaneHeader:
    """The header of a lane that follows a log.

    Raises:
        PartitionError: Unknown algorithm, or parameters it doesn't take.
    """
    create(lane.algorithm, lane.params, parts=lane.parts, seed=lane.seed, window=lane.window)
    return LaneHeader(
        lane=lane.name,
        algorithm=lane.algorithm,
        kind=algorithms()[lane.algorithm].kind,  # type: ignore[attr-defined]  # a class with the attribute
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
    return create(header.algorithm, header.params, parts=header.parts, seed=header.seed, window=header.window)


def edge_batch_count(header: LaneHeader) -> int:
    """Record batches of ``edges.arrow``: one per part, and in edge lanes one of discarded pairs."""
    return header.parts + (header.kind == "edge")
