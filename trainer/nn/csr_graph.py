"""One compressed graph for all message passing, on any device."""

from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor


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
