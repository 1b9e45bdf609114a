"""Sizes of a lane's parts: bytes that a snapshot added, and bytes if every snapshot were stored whole.

They count payload with index columns, without headers, padding and alignment of files (a manifest's file lengths include
those). A node whose features are all zeros takes no feature bytes in either count.
"""

import numpy as np

from schemas.store import LaneHeader, PartSummary
from stream.arrays.growing import Growing
from stream.arrays.kinds import Int64
from stream.kernels.node_sets import distinct
from stream.snapshots.graph import LiveGraph
from stream.store.lane.diff import Stored, segment_width
from stream.store.lane.placement import Placement, Transition

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
