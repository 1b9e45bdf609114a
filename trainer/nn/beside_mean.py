"""A row's own numbers beside the mean of its neighbours', in one table: one product with both weights makes GraphSAGE of it."""

from typing import Any

import torch
from torch import Tensor

from stream.kernels import njit
from trainer.nn.aggregate import aggregate_mean
from trainer.nn.compiled import kernels_fit
from trainer.nn.csr_graph import CSRGraph
from trainer.nn.products import padded


def beside_mean(graph: CSRGraph, own: Tensor, x: Tensor) -> Tensor:
    """x(v) ‖ mean of x(u) over the neighbours u of v; zeros for targets without edges.

    Args:
        graph: Targets × sources.
        own: int64 (targets,), distinct: the targets' places among the sources.
        x: Float (sources, d).

    Returns:
        (≥ targets, 2 d); rows beyond the targets are zero. On the host there are as many as products want.
    """
    if graph.values is None and kernels_fit(x):
        table: Tensor = _BesideMean.apply(x, graph, own)  # type: ignore[no-untyped-call]  # torch's apply is untyped
        return table
    return torch.cat([x.index_select(0, own), aggregate_mean(graph, x)], dim=1)


class _BesideMean(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, graph: CSRGraph, own: Tensor) -> Tensor:
        ctx.graph, ctx.own, ctx.sources = graph, own, len(x)
        x = x.contiguous()
        table = x.new_empty(padded(len(own), x), 2 * x.shape[1])
        _put(graph.indptr.numpy(), graph.sources.numpy(), own.numpy(), x.detach().numpy(), table.numpy())
        return table

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        gradient = gradients[0].contiguous()
        found = gradient.new_zeros(ctx.sources, gradient.shape[1] // 2)
        _put_back(
            ctx.graph.indptr.numpy(),
            ctx.graph.sources.numpy(),
            ctx.own.numpy(),
            gradient.numpy(),
            found.numpy(),
        )
        return found, None, None


@njit(cache=True, nogil=True)
def _add(total, row):  # type: ignore[no-untyped-def]  # compiled
    for k in range(len(row)):
        total[k] += row[k]


@njit(cache=True, nogil=True)
def _put(indptr, sources, own, x, table):  # type: ignore[no-untyped-def]  # compiled
    """Fill ``beside_mean``'s table."""
    d = x.shape[1]
    for i in range(len(own)):
        table[i, :d] = x[own[i]]
        mean, begin, end = table[i, d:], indptr[i], indptr[i + 1]
        mean[:] = 0
        for e in range(begin, end):
            _add(mean, x[sources[e]])
        if end - begin > 1:
            mean /= x.dtype.type(end - begin)
    table[len(own) :] = 0


@njit(cache=True, nogil=True)
def _put_back(indptr, sources, own, gradient, found):  # type: ignore[no-untyped-def]  # compiled
    """Add the gradient of ``x`` to zeros, given that of the table."""
    d = found.shape[1]
    for i in range(len(own)):
        begin, end = indptr[i], indptr[i + 1]
        _add(found[own[i]], gradient[i, :d])
        if end > begin:
            share = gradient[i, d:] / found.dtype.type(end - begin)
            for e in range(begin, end):
                _add(found[sources[e]], share)
