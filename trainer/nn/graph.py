"""Compressed graphs for message passing, on any device: both ways, some rows of one, the mean of several operators."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import override


class CSRGraph:
    """Edges from sources to targets, compressed by target; duplicates are allowed and count each.

    Attributes:
        indptr: int64 or int32 (targets + 1,), non-decreasing from 0.
        sources: Of the same type (edges,), in [0, num_sources).
        num_sources: Rows of the matrices it multiplies.
        values: Float (edges,), an edge's weight; None: all are 1.
        symmetric: Whether it is square and every edge goes both ways with one value; then it is its own transpose.
        transposes_built: Number built by all graphs so far; symmetric graphs build none.

    Note:
        The transpose, for backward passes, is built at first use and kept; so is the operator.
    """

    transposes_built: ClassVar[int] = 0

    def __init__(
        self,
        indptr: Tensor,
        sources: Tensor,
        num_sources: int,
        *,
        values: Tensor | None = None,
        symmetric: bool = False,
    ) -> None:
        self.indptr, self.sources, self.num_sources = indptr, sources, num_sources
        self.values, self.symmetric = values, symmetric

    @property
    def num_targets(self) -> int:
        """Rows of the product."""
        return len(self.indptr) - 1

    @cached_property
    def degrees(self) -> Tensor:
        """Integers (targets,): edges into each target."""
        return self.indptr.diff()

    @cached_property
    def targets(self) -> Tensor:
        """int64 (edges,): the target of each edge."""
        return torch.repeat_interleave(
            torch.arange(self.num_targets, device=self.sources.device),
            self.degrees,
            output_size=len(self.sources),  # otherwise the host would wait for the sum
        )

    @cached_property
    def strength(self) -> Tensor:
        """Float (targets,): the sum of the values into each target; without values the degree."""
        if self.values is None:
            return self.degrees.to(torch.get_default_dtype())
        # its sums are the same each time
        return torch.segment_reduce(self.values, "sum", offsets=self.indptr, initial=0.0)

    @cached_property
    def scale(self) -> Tensor:
        """Float (targets, 1): 1 / √(1 + strength), by which D^−½(A + I)D^−½ scales rows and columns of a symmetric graph."""
        return (self.strength + 1).rsqrt().unsqueeze(1)

    @cached_property
    def operator(self) -> "CSRGraph":
        """D^−½ A D^−½ of a square graph: the operator of Kipf and Welling (2017) but for its diagonal."""
        scale = self.scale.squeeze(1)
        values = scale.index_select(0, self.targets) * scale.index_select(0, self.sources)
        if self.values is not None:
            values = values * self.values
        return CSRGraph(self.indptr, self.sources, self.num_sources, values=values, symmetric=self.symmetric)

    @cached_property
    def diagonal(self) -> Tensor:
        """Float (targets, 1): D⁻¹, the diagonal of D^−½(A + I)D^−½."""
        return self.scale.square()

    @cached_property
    def transpose(self) -> "CSRGraph":
        """The same edges from targets to sources, targets ascending within a row."""
        if self.symmetric:
            return self
        CSRGraph.transposes_built += 1
        order = torch.argsort(self.sources, stable=True)
        indptr = self.indptr.new_zeros(self.num_sources + 1)
        counts = torch.zeros_like(indptr[1:]).scatter_add_(
            0, self.sources.long(), torch.ones_like(self.sources, dtype=indptr.dtype)
        )
        torch.cumsum(counts, 0, out=indptr[1:])
        return CSRGraph(
            indptr,
            self.targets[order].to(self.sources.dtype),
            self.num_targets,
            values=None if self.values is None else self.values[order],
        )


@dataclass(frozen=True)
class DirectedGraph:
    """A square graph whose edges have a direction.

    Attributes:
        into: Row v lists the u with an edge u → v, ascending.
        out_of: Row u lists the v with an edge u → v, ascending: the transpose of ``into``.

    Note:
        Values are the edges' weights, the same in both; None: all are 1. Backward passes build no transpose.
    """

    into: CSRGraph
    out_of: CSRGraph

    def __post_init__(self) -> None:
        """Give each graph its transpose."""
        for graph, other in ((self.into, self.out_of), (self.out_of, self.into)):
            # A copy: graphs that refer to each other would hold their tensors until garbage collection.
            transpose = CSRGraph(other.indptr, other.sources, other.num_sources, values=other.values)
            vars(graph).setdefault("transpose", transpose)


class MeanOperator(CSRGraph):
    """A graph by which ``aggregate_normalised`` is the mean of those by several graphs.

    It has every edge of the graphs; values are means of the graphs' normalised values.

    Args:
        graphs: At least one, square, over the same nodes, all symmetric or none.
    """

    def __init__(self, graphs: Sequence[CSRGraph]) -> None:
        nodes = graphs[0].num_sources
        parts = [graph.operator for graph in graphs]
        keys = torch.cat([part.targets * nodes + part.sources for part in parts])
        distinct_keys, place = torch.unique(keys, return_inverse=True)
        values = torch.cat([part.values for part in parts if part.values is not None]) / len(graphs)
        targets = distinct_keys // max(nodes, 1)
        super().__init__(
            torch.searchsorted(targets, torch.arange(nodes + 1, device=keys.device)),
            distinct_keys % max(nodes, 1),
            nodes,
            values=values.new_zeros(len(distinct_keys)).index_add_(0, place, values),
            symmetric=all(graph.symmetric for graph in graphs),
        )
        self.operator = self
        self.diagonal = torch.stack([graph.diagonal for graph in graphs]).mean(dim=0)


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
    @override
    def diagonal(self) -> Tensor:
        return self._graph.diagonal[self._part :: self._parts]

    @cached_property
    def operator(self) -> CSRGraph:
        """See ``CSRGraph.operator``: scaled by the degrees of the whole graph."""
        return RowBlock(self._graph.operator, self._part, self._parts)

    @cached_property
    @override
    def transpose(self) -> CSRGraph:
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
