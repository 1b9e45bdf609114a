"""LDG: new nodes join most of their neighbours, and stay (Stanton and Kliot 2012)."""

from typing import ClassVar

import numpy as np
from pydantic import Field

from freshet_graph.schemas.section import Section
from freshet_graph.stream.arrays.kinds import Int32, Int64
from freshet_graph.stream.kernels import njit
from freshet_graph.stream.kernels.mixing import mixed_part
from freshet_graph.stream.partition.interface import PartitionerSetting, register
from freshet_graph.stream.partition.vertex.base import VertexPartitioner, VertexPartitionerOptions
from freshet_graph.stream.snapshots.delta import NeighbourRows, SnapshotDelta


class LdgOptions(VertexPartitionerOptions):
    """Options of ``ldg``."""

    slack: float = Field(
        1.05, ge=1, description="Capacity of a part relative to the mean of the snapshot: slack·n/K nodes."
    )


@register
class Ldg(VertexPartitioner):
    """Linear deterministic greedy: neighbours in a part, times the free share of its capacity."""

    name: ClassVar[str] = "ldg"
    Options: ClassVar[type[Section]] = LdgOptions

    def __init__(self, setting: PartitionerSetting, options: LdgOptions) -> None:
        super().__init__(setting, options)
        self.slack = options.slack

    def _place(self, delta: SnapshotDelta) -> tuple[Int64, Int32]:
        return delta.entered, place_new(
            delta.rows, delta.entered, self._owner, self._nodes_per_part, self.slack, self.seed
        )


@njit(cache=True, nogil=True)
def place_new(
    rows: NeighbourRows, new: Int64, owner: Int32, node_count: Int64, slack: float, seed: int
) -> Int32:
    """Give each new node the part with the largest ``neighbours·(1 − size/capacity)``, with capacity slack·n/K.

    A part at or over its capacity gets a node only if no other has room; ties go to the smallest part, then to the next one
    from a draw per node.

    Args:
        rows: The live graph.
        new: int64 (m,), in the order of placement.
        owner: int32 (≥ N,), −1 for none and for new nodes; restored at the end.
        node_count: int64 (K,) nodes already in the parts.
        slack: Capacity relative to the mean of all n nodes.
        seed: Seed of the draws.

    Returns:
        Parts of the new nodes, int32 (m,).
    """
    parts = len(node_count)
    sizes = node_count.copy()
    capacity = slack * (sizes.sum() + len(new)) / parts
    near = np.zeros(parts, np.int64)
    for v in new:
        near[:] = 0
        for i in range(rows.start[v], rows.end[v]):
            p = owner[rows.indices[i]]
            if p >= 0:
                near[p] += 1
        p = mixed_part(seed, v, parts)
        best, best_score = -1, 0.0
        for _ in range(parts):
            room = 1.0 - sizes[p] / capacity
            score = near[p] * room if room > 0.0 else room - 1.0
            if best < 0 or score > best_score or (score == best_score and sizes[p] < sizes[best]):
                best, best_score = p, score
            p += 1
            if p == parts:
                p = 0
        owner[v] = best
        sizes[best] += 1
    placed = np.empty(len(new), np.int32)
    for i in range(len(new)):
        placed[i] = owner[new[i]]
        owner[new[i]] = -1
    return placed
