"""One compressed graph for all message passing, on any device."""

from functools import cached_property

import torch
from torch import Tensor


class CSRGraph:
    """Edges from sources to targets, compressed by target; duplicates are allowed and count each.

    Attributes:
        indptr: int64 (targets + 1,), non-decreasing from 0.
        sources: int64 (edges,), in [0, num_sources).
        num_sources: Rows of the matrices it multiplies.
        symmetric: Whether it is square and every edge goes both ways: it is its own transpose then.

    Note:
        The transpose, which backward passes need, is built at first use and kept.
    """

    def __init__(self, indptr: Tensor, sources: Tensor, num_sources: int, *, symmetric: bool = False) -> None:
        self.indptr = indptr
        self.sources = sources
        self.num_sources = num_sources
        self.symmetric = symmetric

    @property
    def num_targets(self) -> int:
        """Rows of the product."""
        return len(self.indptr) - 1

    @cached_property
    def degrees(self) -> Tensor:
        """int64 (targets,): edges into each target."""
        return self.indptr.diff()

    @cached_property
    def scale(self) -> Tensor:
        """Float (targets, 1): 1 / √(1 + degree), by which D^−½(A + I)D^−½ scales rows and columns of a symmetric graph."""
        return (self.degrees + 1).to(torch.get_default_dtype()).rsqrt().unsqueeze(1)

    @cached_property
    def transpose(self) -> "CSRGraph":
        """The same edges from targets to sources, targets ascending within a row."""
        if self.symmetric:
            return self
        order = torch.argsort(self.sources, stable=True)
        targets = torch.repeat_interleave(
            torch.arange(self.num_targets, device=self.sources.device),
            self.degrees,
            output_size=len(self.sources),  # known, or the host would wait for the sum
        )
        indptr = torch.zeros(self.num_sources + 1, dtype=torch.int64, device=self.sources.device)
        counts = torch.zeros_like(indptr[1:]).scatter_add_(0, self.sources, torch.ones_like(self.sources))
        torch.cumsum(counts, 0, out=indptr[1:])
        return CSRGraph(indptr, targets[order], self.num_targets)
