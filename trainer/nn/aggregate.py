"""Sums and means over neighbours, with the transpose product as gradient."""

from typing import Any

import torch
from torch import Tensor

from trainer.nn.csr_graph import CSRGraph


def aggregate_sum(graph: CSRGraph, x: Tensor) -> Tensor:
    """A·x: the sum of the sources' rows at every target.

    Args:
        graph: A, targets × sources.
        x: float (sources, d).

    Returns:
        (targets, d); zero rows for targets without edges.
    """
    product: Tensor = _Spmm.apply(x, graph)  # type: ignore[no-untyped-call]  # torch's apply is untyped
    return product


def aggregate_mean(graph: CSRGraph, x: Tensor) -> Tensor:
    """The mean of the sources' rows at every target; zero rows for targets without edges."""
    return aggregate_sum(graph, x) / graph.degrees.clamp(min=1).to(x.dtype).unsqueeze(1)


def aggregate_normalised(graph: CSRGraph, x: Tensor) -> Tensor:
    """D^−½(A + I)D^−½·x with D = I + diag(degrees) (Kipf and Welling 2017); a node without edges keeps its row.

    The scaling is applied to rows before and after the product: values need not be stored, sent or gathered.

    Args:
        graph: A, symmetric and without self-loops.
        x: float (nodes, d).

    Returns:
        (nodes, d).
    """
    scaled = graph.scale.to(x.dtype) * x
    return graph.scale.to(x.dtype) * (aggregate_sum(graph, scaled) + scaled)


def _product(graph: CSRGraph, x: Tensor) -> Tensor:
    # embedding_bag is a CSR product without values: 7 times torch.sparse's speed on the CPU, and it runs on CUDA
    if graph.sources.numel() == 0:
        return x.new_zeros((graph.num_targets, x.shape[1]))
    return torch.nn.functional.embedding_bag(
        graph.sources, x, graph.indptr, mode="sum", include_last_offset=True
    )


class _Spmm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, graph: CSRGraph) -> Tensor:
        ctx.graph = graph
        return _product(graph, x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _product(ctx.graph.transpose, gradients[0].contiguous()), None
