"""A lane in memory: live graph, partitioner and what every part stores. No files.

A lane is a pure function of the log: ``LaneState.advance`` is that function, one snapshot at a time.
"""

import time
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from schemas.store import LaneHeader, PartSummary
from stream.partition.interface import OnlinePartitioner, PartitionError, Why, create
from stream.snapshots.delta import Int32, SnapshotDelta
from stream.snapshots.graph import LiveGraph
from stream.snapshots.pairs import pair_keys
from stream.store.lane.diff import (
    SegmentChanges,
    Stored,
    StoredPairs,
    cut_segments,
    full_rows,
    pair_changes,
    segment_changes,
    segment_width,
)
from stream.store.lane.placement import Placement, Transition
from stream.store.lane.sizes import PartTotals, part_summaries
from stream.store.log.base import groups

_PLACED = pa.schema([("node", pa.int64()), ("part", pa.int32()), ("why", pa.int8())])
_PAIR_PARTS = pa.schema([("part", pa.int32())])


@dataclass(frozen=True, slots=True)
class LaneStep:
    """One snapshot of a lane.

    Attributes:
        delta: What the log changed.
        stored: What the lane's files hold of it.
        event_part: Edge lanes: int32, one an edge event of the snapshot.
        parts: Summaries of the K parts.
        discarded: Edge lanes: summary of the pairs that no part holds.
        live_pairs: Directed pairs in the live graph.
        seconds: The partitioner's time.
    """

    delta: SnapshotDelta
    stored: Stored
    event_part: Int32 | None
    parts: list[PartSummary]
    discarded: PartSummary | None
    live_pairs: int
    seconds: float


class LaneState:
    """Graph, partitioner and placements after some snapshot of the log."""

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
        self._pairs = StoredPairs.empty()
        self._totals = PartTotals(header.parts)

    def begin(self, base: pa.Table | None) -> None:
        """Take in what the log held before its first kept snapshot; only in a fresh state.

        Args:
            base: ``stream.store.log.base.base_schema``; None: the log begins with its first snapshot.

        Raises:
            PartitionError: As ``advance``.
        """
        if base is not None:
            for tau, events in groups(base, self.header.edge_life):
                self.advance(tau, events)

    def advance(self, tau: int, events: pa.Table, *, from_nothing: bool = False) -> LaneStep:
        """Take in snapshot τ of the log.

        Args:
            tau: Above all before it.
            events: Its events, ``log_event_schema``.
            from_nothing: Store all that the parts hold after it: what was before isn't stored anywhere.

        Raises:
            PartitionError: The partitioner can't, or breaks its contract.
        """
        delta = self.graph.apply(tau, events)
        started = time.perf_counter()
        assignment = self.partitioner.update(delta)
        seconds = time.perf_counter() - started
        changed = self.graph.segment_changes()
        self._totals.before(self.placement, changed.nodes, assignment.node)
        transition = self.placement.apply(assignment.node, assignment.part, assignment.why, delta.num_nodes)
        self._totals.after(self.placement, transition, changed.nodes, self.graph)
        before, self._pairs = self._pairs, self._stored_pairs(delta, assignment.event_part)
        if from_nothing:
            stored = self.whole()
        else:
            stored = Stored(
                assignment.node,
                assignment.part,
                assignment.why,
                pair_changes(before, self._pairs, self.batches),
                self._segment_changes(transition),
            )
        summaries = part_summaries(
            self.header, self._totals, self._pairs.count(self.batches), stored, transition
        )
        return LaneStep(
            delta=delta,
            stored=stored,
            event_part=assignment.event_part if self.header.kind == "edge" else None,
            parts=summaries[: self.header.parts],
            discarded=summaries[self.header.parts] if self.header.kind == "edge" else None,
            live_pairs=len(self._pairs.keys),
            seconds=seconds,
        )

    def whole(self) -> Stored:
        """All that the parts hold now, as a change from nothing: the content of a base."""
        node, part = self.placement.all()
        vectors = self.graph.features(node)
        rows = [full_rows(node, part, vectors, self.header.segments)] if self.width else []
        return Stored(
            node,
            part,
            np.where(self.placement.home[node] == part, int(Why.NEW), int(Why.REPLICATED)).astype(np.int8),
            pair_changes(StoredPairs.empty(), self._pairs, self.batches),
            segment_changes(rows, self.header.parts, self.width),
        )

    def tables(self) -> dict[str, pa.Table]:
        """Everything that the next ``advance`` depends on, by name."""
        node, part = self.placement.all()
        why = np.where(self.placement.home[node] == part, int(Why.NEW), int(Why.REPLICATED)).astype(np.int8)
        return {
            "graph": self.graph.state(),
            "partitioner": self.partitioner.state(),
            "placement": pa.table([node, part, why], schema=_PLACED),
            "pair_parts": pa.table([self._pairs.first], schema=_PAIR_PARTS),
        }

    def restore(self, tables: dict[str, pa.Table]) -> None:
        """Continue from ``tables`` of a lane with the same header; only in a fresh state."""
        self.graph.restore(tables["graph"])
        self.partitioner.restore(tables["partitioner"])
        node, part, why = (tables["placement"][name].to_numpy() for name in _PLACED.names)
        transition = self.placement.apply(node, part, why, self.graph.num_nodes)
        nodes = np.arange(self.graph.num_nodes, dtype=np.int64)
        self._totals.after(self.placement, transition, nodes, self.graph)
        pairs = self.graph.pairs()
        keys = pair_keys(pairs.src, pairs.dst)
        if self.header.kind == "vertex":
            self._pairs = StoredPairs.by_owner(keys, pairs.weight, self.placement.home)
        else:
            part = tables["pair_parts"]["part"].to_numpy()
            self._pairs = StoredPairs.by_edge(keys, pairs.weight, part)

    def _stored_pairs(self, delta: SnapshotDelta, event_part: Int32 | None) -> StoredPairs:
        pairs = self.graph.pairs()
        keys = pair_keys(pairs.src, pairs.dst)
        if self.header.kind == "vertex":
            homeless = delta.live[self.placement.home[delta.live] < 0]
            if len(homeless):
                raise PartitionError(
                    f"{self.header.algorithm} left {len(homeless)} live nodes of snapshot {delta.tau} without an "
                    f"owner, such as node {homeless[0]}: it breaks the contract of vertex partitioners"
                )
            return StoredPairs.by_owner(keys, pairs.weight, self.placement.home)
        if event_part is None or len(event_part) != len(delta.op):
            found = "none" if event_part is None else len(event_part)
            raise PartitionError(
                f"{self.header.algorithm} gave {found} event parts for {len(delta.op)} events of snapshot "
                f"{delta.tau}: it breaks the contract of edge partitioners"
            )
        changes = self.graph.changed()
        inserted = changes.change >= 0
        known = np.searchsorted(self._pairs.keys, keys)
        known[known == len(self._pairs.keys)] = 0  # such a pair is new: overwritten below
        part = self._pairs.first[known] if len(self._pairs.keys) else np.zeros(len(keys), np.int32)
        at = np.searchsorted(keys, pair_keys(changes.src[inserted], changes.dst[inserted]))
        chosen = event_part[changes.event_row[inserted]]
        part[at] = np.where(chosen < 0, self.header.parts, chosen)
        return StoredPairs.by_edge(keys, pairs.weight, part)

    def _segment_changes(self, transition: Transition) -> SegmentChanges:
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


def new_partitioner(header: LaneHeader) -> OnlinePartitioner:
    """The partitioner that a lane's header describes.

    Raises:
        PartitionError: Unknown algorithm, or parameters it doesn't take.
    """
    return create(header.algorithm, header.params, parts=header.parts, seed=header.seed, window=header.window)


def edge_batch_count(header: LaneHeader) -> int:
    """Record batches of ``edges.arrow``: one a part, and in edge lanes one of discarded pairs."""
    return header.parts + (header.kind == "edge")
