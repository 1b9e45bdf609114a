"""Some rows of a symmetric graph: one rank's share of a snapshot."""

from functools import cached_property

import torch
from torch import Tensor

from trainer.nn.csr_graph import CSRGraph


class RowBlock(CSRGraph):
    """Every ``parts``-th target of a symmetric graph, over the rows of all nodes with an edge.

    Neither it nor its transpose is sorted: both keep the edges of the graph in its order.

    Args:
        graph: Symmetric and square.
        part: The first target.
        parts: Steps from one target to the next.
    """

    def __init__(self, graph: CSRGraph, part: int, parts: int) -> None:
        self._graph, self._part, self._parts = graph, part, parts
        taken = graph.targets % parts == part
        linked = graph.degrees > 0
        place = (linked.cumsum(0) - 1).to(graph.sources.dtype)
        super().__init__(
            _indptr(graph.degrees[part::parts], graph),
            place[graph.sources[taken].long()],
            int(linked.sum()),
            values=None if graph.values is None else graph.values[taken],
        )

    @cached_property
    def diagonal(self) -> Tensor:
        """See ``CSRGraph.diagonal``."""
        return self._graph.diagonal[self._part :: self._parts]

    @cached_property
    def operator(self) -> CSRGraph:
        """See ``CSRGraph.operator``: scaled by the degrees of the whole graph."""
        return RowBlock(self._graph.operator, self._part, self._parts)

    @cached_property
    def transpose(self) -> CSRGraph:
        """See ``CSRGraph.transpose``."""
        graph = self._graph
        taken = graph.sources % self._parts == self._part
        before = torch.cat([taken.new_zeros(1, dtype=torch.int64), taken.cumsum(0)])
        lengths = before[graph.indptr.long()].diff()[graph.degrees > 0]
        return CSRGraph(
            _indptr(lengths, graph),
            graph.sources[taken] // self._parts,
            self.num_targets,
            values=None if graph.values is None else graph.values[taken],
        )


def _indptr(lengths: Tensor, like: CSRGraph) -> Tensor:
    ends = lengths.cumsum(0).to(like.indptr.dtype)
    return torch.cat([like.indptr.new_zeros(1), ends])
