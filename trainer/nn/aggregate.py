"""Sums and means over neighbours, with the transpose product as gradient.

GraphSAGE is one product with both weights of a table that has a row's own numbers beside the mean of its neighbours'.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from freshet_graph.stream.kernels import njit
from freshet_graph.trainer.nn.compiled import kernels_fit
from freshet_graph.trainer.nn.graph import CSRGraph


def aggregate_sum(graph: CSRGraph, x: Tensor) -> Tensor:
    """A·x: the sum of the sources' rows at every target, each times the edge's value.

    Args:
        graph: A, targets × sources; no gradient reaches its values.
        x: float (sources, d).

    Returns:
        (targets, d); zero rows for targets without edges.
    """
    product: Tensor = _Spmm.apply(x, graph)  # type: ignore[no-untyped-call]  # torch's apply is untyped
    return product


def aggregate_mean(graph: CSRGraph, x: Tensor) -> Tensor:
    """The mean of the sources' rows at every target, weighted by the edges' values; zero rows for targets without edges."""
    weight = graph.strength.where(graph.strength != 0, 1)
    return aggregate_sum(graph, x) / weight.to(x.dtype).unsqueeze(1)


def aggregate_normalised(graphs: Sequence[CSRGraph], x: Tensor, target_rows: Tensor | None = None) -> Tensor:
    """D^−½(A + I)D^−½·x in each of several snapshots, with D = I + diag(strength) (Kipf and Welling 2017).

    A node without edges keeps its row.

    Args:
        graphs: A of each snapshot, without self-loops; square without ``target_rows``.
        x: float (t, sources, d).
        target_rows: float (t, targets, d), the targets' own rows, of one snapshot; None: x has them.

    Returns:
        (t, targets, d).
    """
    if target_rows is not None:
        (graph,) = graphs
        summed = aggregate_sum(graph.operator, x[0])
        return torch.addcmul(summed, graph.diagonal.to(x.dtype), target_rows[0]).unsqueeze(0)
    product: Tensor = _Normalised.apply(x, graphs)  # type: ignore[no-untyped-call]  # torch's apply is untyped
    return product


def _product(graph: CSRGraph, x: Tensor) -> Tensor:
    # embedding_bag is a CSR product, with values or without: fast on the CPU, with int32 too, and it runs on CUDA
    if graph.sources.numel() == 0:
        return x.new_zeros((graph.num_targets, x.shape[1]))
    return torch.nn.functional.embedding_bag(
        graph.sources,
        x,
        graph.indptr,
        mode="sum",
        include_last_offset=True,
        per_sample_weights=None if graph.values is None else graph.values.to(x.dtype),
    )


class _Spmm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, graph: CSRGraph) -> Tensor:
        ctx.graph = graph
        return _product(graph, x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _product(ctx.graph.transpose, gradients[0].contiguous()), None


class _Normalised(torch.autograd.Function):
    """The operator's values include the scaling, so rows are read once; the diagonal is added at the end."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, graphs: Sequence[CSRGraph]) -> Tensor:
        ctx.graphs = graphs
        return _per_snapshot([graph.operator for graph in graphs], graphs, x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        back = [graph.operator.transpose for graph in ctx.graphs]
        return _per_snapshot(back, ctx.graphs, gradients[0].contiguous()), None


def _per_snapshot(operators: Sequence[CSRGraph], graphs: Sequence[CSRGraph], x: Tensor) -> Tensor:
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    for operator, graph, rows, result in zip(operators, graphs, x, out, strict=True):
        torch.addcmul(_product(operator, rows), graph.diagonal.to(x.dtype), rows, out=result)
    return out


def beside_mean(graph: CSRGraph, target_places: Tensor, x: Tensor) -> Tensor:
    """x(v) ‖ mean of x(u) over the neighbours u of v; zeros for targets without edges.

    Args:
        graph: Targets × sources.
        target_places: int64 (targets,), distinct: the targets' places among the sources.
        x: Float (sources, d).

    Returns:
        (targets, 2 d).
    """
    if graph.values is None and kernels_fit(x):
        table: Tensor = _BesideMean.apply(x, graph, target_places)  # type: ignore[no-untyped-call]  # torch's apply is untyped
        return table
    return torch.cat([x.index_select(0, target_places), aggregate_mean(graph, x)], dim=1)


class _BesideMean(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, graph: CSRGraph, target_places: Tensor) -> Tensor:
        ctx.graph, ctx.target_places, ctx.sources = graph, target_places, len(x)
        x = x.contiguous()
        table = x.new_empty(len(target_places), 2 * x.shape[1])
        _put(
            graph.indptr.numpy(),
            graph.sources.numpy(),
            target_places.numpy(),
            x.detach().numpy(),
            table.numpy(),
        )
        return table

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        gradient = gradients[0].contiguous()
        by_x = gradient.new_zeros(ctx.sources, gradient.shape[1] // 2)
        _put_back(
            ctx.graph.indptr.numpy(),
            ctx.graph.sources.numpy(),
            ctx.target_places.numpy(),
            gradient.numpy(),
            by_x.numpy(),
        )
        return by_x, None, None


@njit(cache=True, nogil=True)
def _add(total, row):  # type: ignore[no-untyped-def]  # compiled
    for k in range(len(row)):
        total[k] += row[k]


@njit(cache=True, nogil=True)
def _put(indptr, sources, target_places, x, table):  # type: ignore[no-untyped-def]  # compiled
    """Fill ``beside_mean``'s table."""
    d = x.shape[1]
    for i in range(len(target_places)):
        table[i, :d] = x[target_places[i]]
        mean, begin, end = table[i, d:], indptr[i], indptr[i + 1]
        mean[:] = 0
        for e in range(begin, end):
            _add(mean, x[sources[e]])
        if end - begin > 1:
            mean /= x.dtype.type(end - begin)


@njit(cache=True, nogil=True)
def _put_back(indptr, sources, target_places, gradient, by_x):  # type: ignore[no-untyped-def]  # compiled
    """Add the gradient of ``x`` to zeros, given that of the table."""
    d = by_x.shape[1]
    for i in range(len(target_places)):
        begin, end = indptr[i], indptr[i + 1]
        _add(by_x[target_places[i]], gradient[i, :d])
        if end > begin:
            share = gradient[i, d:] / by_x.dtype.type(end - begin)
            for e in range(begin, end):
                _add(by_x[sources[e]], share)
