"""kl: Kernighan-Lin by networkx, recursive bisection. A baseline for small graphs, in plain Python."""

from typing import TYPE_CHECKING, ClassVar

import numpy as np
from pydantic import Field

from freshet_graph.schemas.section import Section
from freshet_graph.stream.arrays.kinds import Int32, Int64
from freshet_graph.stream.optional import package
from freshet_graph.stream.partition.interface import PartitionError, PartitionerSetting, register
from freshet_graph.stream.partition.vertex.base import VertexPartitioner, VertexPartitionerOptions
from freshet_graph.stream.snapshots.delta import SnapshotDelta

if TYPE_CHECKING:
    import networkx

_SEEDS = 2**32


class KlOptions(VertexPartitionerOptions):
    """Options of ``kl``."""

    max_iterations: int = Field(10, ge=1, le=2**31, description="Most passes per halving.")
    max_pairs: int = Field(
        100_000,
        ge=1,
        le=2**62,
        description="Larger live graphs are refused; these take 5 to 13 s of CPU per snapshot, with 2 to 32 parts.",
    )


@register
class KernighanLin(VertexPartitioner):
    """Each snapshot is halved repeatedly by Kernighan-Lin, starting from the nodes' former places.

    Halves have equal numbers of nodes (within one; in proportion if K is no power of two). Every halving starts from the former
    owners, with just enough nodes moved to make the sizes right, the youngest first; new nodes fill the remaining room.
    """

    name: ClassVar[str] = "kl"
    Options: ClassVar[type[Section]] = KlOptions

    def __init__(self, setting: PartitionerSetting, options: KlOptions) -> None:
        super().__init__(setting, options)
        self.max_iterations, self.max_pairs = options.max_iterations, options.max_pairs

    def _place(self, delta: SnapshotDelta) -> tuple[Int64, Int32]:
        pairs = delta.num_pairs
        if pairs > self.max_pairs:
            raise PartitionError(
                f"kl takes {self.max_pairs} live pairs at most (parameter max_pairs), snapshot {delta.tau} has {pairs}. "
                "Choose byte-lp, distdy or metis-layer, or raise max_pairs. The time grows with the pairs"
            )
        nx = package("networkx", "the partitioner kl")

        starts, neighbours = delta.live_graph()
        row = np.repeat(np.arange(len(delta.live)), np.diff(starts))
        graph = nx.Graph()
        graph.add_nodes_from(range(len(delta.live)))
        graph.add_edges_from(zip(row.tolist(), neighbours.tolist(), strict=True))
        owner = np.zeros(len(delta.live), np.int32)
        self._split(graph, np.arange(len(delta.live)), self._home[delta.live], owner, 0, self.parts)
        return delta.live, owner

    def _split(
        self, graph: "networkx.Graph[int]", nodes: Int64, before: Int32, owner: Int32, low: int, high: int
    ) -> None:
        """Give ``nodes`` parts in [low, high)."""
        bisection = package("networkx.algorithms.community", "the partitioner kl").kernighan_lin_bisection

        if high - low == 1 or len(nodes) == 0:
            owner[nodes] = low
            return
        middle = (low + high) // 2
        size = (len(nodes) * (middle - low) + (high - low) // 2) // (high - low)
        known = before[nodes]
        # Nodes of the left parts, then new ones, then those of the right; old before young on the left, young first on the right.
        side = np.where(known < 0, 0, np.where(known < middle, -1, 1))
        left_first = nodes[np.lexsort((np.where(side > 0, -nodes, nodes), side))]
        left, right = left_first[:size], left_first[size:]
        if len(left) and len(right):
            one, other = bisection(
                graph.subgraph(nodes.tolist()),
                (set(left.tolist()), set(right.tolist())),
                max_iter=self.max_iterations,
                seed=self.seed % _SEEDS,
            )
            # Versions of networkx differ in which half comes first.
            if len(one) != len(left) or (
                len(one) == len(right) and 2 * len(one & set(left.tolist())) < len(left)
            ):
                one, other = other, one
            left, right = (np.array(sorted(half), np.int64) for half in (one, other))
        self._split(graph, left, before, owner, low, middle)
        self._split(graph, right, before, owner, middle, high)
