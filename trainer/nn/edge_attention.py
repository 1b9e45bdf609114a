"""Attention over edges: a softmax over a node's neighbours and itself, and the weighted sum, in one operation.

Nothing of size edges × heads is stored. exp LeakyReLU(t + s) is eᵗ · eˢ above the bend and eᵗᐟ⁵ · eˢᐟ⁵ below it: exponentials of
nodes, none of edges. A weight's derivative is the weight times a slope. So gradients need only two sums per row, above and below
the bend; the other factors of a derivative belong to the row and are taken out of the sum.

Both sides' numbers are read before one is chosen: an unpredictable branch would cost as much as the sums. Weights are
spread over the columns of their heads, because loops over whole rows are twice as fast as loops over heads.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import embedding_bag

from freshet_graph.stream.kernels import njit
from freshet_graph.trainer.nn.compiled import kernels_fit
from freshet_graph.trainer.nn.graph import CSRGraph

_WIDE = {
    "nogil": True,
    "fastmath": {"reassoc", "contract", "nsz", "arcp"},  # sums in any order; NaN stays NaN
    "error_model": "numpy",  # a division that may raise is a branch
}


@njit(cache=True, inline="always", **_WIDE)
def _put(wide, h, d, above, below):  # type: ignore[no-untyped-def]  # compiled
    """Fill a head's columns."""
    for k in range(h * d, (h + 1) * d):
        wide[0, np.uint64(k)] = above
        wide[1, np.uint64(k)] = below


@njit(cache=True, inline="always", **_WIDE)
def _add(sides, wide, values, j):  # type: ignore[no-untyped-def]  # compiled
    """Add row j of values to both sums by their weights."""
    for k in range(sides.shape[1]):
        column = np.uint64(k)
        sides[0, column] += wide[0, column] * values[j, column]
        sides[1, column] += wide[1, column] * values[j, column]


@njit(cache=True, **_WIDE)
def attend(indptr, sources, counts, values, ends, starts, slope, out):  # type: ignore[no-untyped-def]  # compiled
    """Σ_j α_ij v_j over the neighbours j of each target i and the source i itself, head by head.

    Args:
        indptr: int (T + 1,), edges by target.
        sources: int (E,).
        counts: (E,), how often each edge counts; empty: once.
        values: (S, H · d), v; a head has d columns.
        ends: (S, 3 H): s, eˢ and e to the power of slope · s, all of s less the head's largest.
        starts: (T, 3 H): t plus that largest, and the factors of weights above and below the bend.
        slope: Of LeakyReLU below zero.
        out: Filled: sums (T, H · d); the same with weights times slopes; sums (T, H) of weights times slopes; the
            softmax's denominators (T, H).
    """
    sums, sloped, steep, total = out
    (targets, heads), kind = total.shape, sums.dtype.type
    d, zero, one, slope = sums.shape[1] // heads, kind(0), kind(1), kind(slope)
    sides, wide = np.empty((2, heads * d), sums.dtype), np.empty((2, heads * d), sums.dtype)
    weights = np.empty((2, heads), sums.dtype)
    for target in range(targets):
        i, begin, end = np.uint64(target), indptr[target], indptr[target + 1]
        sides[:] = 0
        weights[:] = 0
        for e in range(begin, end + 1):
            itself = e == end
            j = i if itself else np.uint64(sources[e])
            count = counts[e] if len(counts) and not itself else one
            for h in range(heads):
                score = starts[i, h] + ends[j, h]
                first, second = ends[j, heads + h], ends[j, 2 * heads + h]
                above = count * (first if score > 0 else zero)
                below = count * (zero if score > 0 else second)
                weights[0, h] += above
                weights[1, h] += below
                _put(wide, h, d, above, below)
            _add(sides, wide, values, j)
        for h in range(heads):
            above, below = starts[i, heads + h], starts[i, 2 * heads + h]
            total[i, h] = above * weights[0, h] + below * weights[1, h]
            above, below = above / total[i, h], below / total[i, h]
            steep[i, h] = above * weights[0, h] + slope * (below * weights[1, h])
            _put(wide, h, d, above, below)
        for k in range(heads * d):
            column = np.uint64(k)
            first, second = wide[0, column] * sides[0, column], wide[1, column] * sides[1, column]
            sums[i, column] = first + second
            sloped[i, column] = first + slope * second
        if begin == end:  # products of exponentials are not exact
            sums[i] = values[i]


@njit(cache=True, **_WIDE)
def attend_back(indptr, targets, counts, values, ends, starts, slope, gradient, gradients):  # type: ignore[no-untyped-def]  # compiled
    """Gradients of ``attend`` by the sources' values and scores.

    Args:
        indptr: int (S + 1,), edges by source.
        targets: int (E,).
        counts: See ``attend``, in this order of edges.
        values: See ``attend``.
        ends: See ``attend``.
        starts: (T, 4 H): as in ``attend``, the factors divided by the denominators; and the products of ``gradient`` with
            the sums.
        slope: See ``attend``.
        gradient: (T, H · d), of the sums.
        gradients: Filled: gradients of ``values`` and of s.
    """
    by_values, by_scores = gradients
    (sources, heads), kind = by_scores.shape, values.dtype.type
    d, zero, one, slope = values.shape[1] // heads, kind(0), kind(1), kind(slope)
    sides, wide = np.empty((2, heads * d), values.dtype), np.empty((2, heads * d), values.dtype)
    means, products = np.empty((2, heads), values.dtype), np.empty(heads * d, values.dtype)
    for source in range(sources):
        j, begin, end = np.uint64(source), indptr[source], indptr[source + 1]
        sides[:] = 0
        means[:] = 0
        for e in range(begin, end + 1 if source < len(starts) else end):
            itself = e == end
            i = j if itself else np.uint64(targets[e])
            count = counts[e] if len(counts) and not itself else one
            for h in range(heads):
                score = starts[i, h] + ends[j, h]
                first, second = starts[i, heads + h], starts[i, 2 * heads + h]
                above = count * (first if score > 0 else zero)
                below = count * (zero if score > 0 else second)
                means[0, h] += above * starts[i, 3 * heads + h]
                means[1, h] += below * starts[i, 3 * heads + h]
                _put(wide, h, d, above, below)
            _add(sides, wide, gradient, i)
        for h in range(heads):
            above, below = ends[j, heads + h], ends[j, 2 * heads + h]
            by_scores[j, h] = -(above * means[0, h] + slope * (below * means[1, h]))
            _put(wide, h, d, above, below)
        for k in range(heads * d):
            column = np.uint64(k)
            first, second = wide[0, column] * sides[0, column], wide[1, column] * sides[1, column]
            by_values[j, column] = first + second
            products[column] = values[j, column] * (first + slope * second)
        for h in range(heads):
            for k in range(h * d, (h + 1) * d):
                by_scores[j, h] += products[np.uint64(k)]


SLOPE = 0.2
"""Slope of LeakyReLU below zero (Veličković et al. 2018)."""

_RANGE = 60.0
"""Scores of sources farther apart than this are not computed as products: e⁷² is a float32, e⁸⁹ is not."""


def edge_attention(graph: CSRGraph, values: Tensor, by_source: Tensor, by_target: Tensor) -> Tensor:
    """Σ_j α_ij v_j over j ∈ N(i) ∪ {i} with α_ij ∝ w_ij exp LeakyReLU(t_i + s_j), each head by itself.

    An edge of value w weighs as much as w edges do; a node itself weighs once.

    Args:
        graph: Targets × sources, T ≤ S: target i is source i. Its values are positive.
        values: float (S, H, d), v.
        by_source: (S, H), s.
        by_target: (T, H), t.

    Returns:
        (T, H, d); of a target without edges exactly its own v.

    Note:
        The gradient reads the transpose and stores nothing per edge. A symmetric graph is its own transpose.
    """
    attended: Tensor = _Attention.apply(graph, values, by_source, by_target)  # type: ignore[no-untyped-call]  # torch's apply is untyped
    return attended


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, graph: CSRGraph, *tensors: Tensor) -> Tensor:
        values, by_source, by_target = (tensor.contiguous() for tensor in tensors)
        ctx.compiled = kernels_fit(values) and _near(by_source)
        ctx.graph = graph
        out = (_on_host if ctx.compiled else _anywhere)(graph, values, by_source, by_target)
        ctx.save_for_backward(values, by_source, by_target, *out)
        return out[0]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        values, by_source, by_target, sums, sloped, steep, logs = ctx.saved_tensors
        gradient = gradients[0].contiguous()
        means = (gradient * sums).sum(dim=2)
        back = _back_on_host if ctx.compiled else _back_anywhere
        by_inputs = back(ctx.graph, values, by_source, by_target, logs, gradient, means)
        return None, *by_inputs, (gradient * sloped).sum(dim=2) - means * steep


def _near(by_source: Tensor) -> bool:
    return len(by_source) > 0 and bool(torch.all(by_source.amax(0) - by_source.amin(0) <= _RANGE))


def _bent(scores: Tensor) -> Tensor:
    return torch.where(scores > 0, scores, SLOPE * scores)


def _ends(by_source: Tensor, by_target: Tensor, logs: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """The factors of the kernels' weights, and the shifts of their logarithms; see ``attend``."""
    largest = by_source.amax(dim=0)
    s, t = by_source - largest, by_target + largest
    taken = _bent(t) if logs is None else logs
    ends = torch.cat([s, s.exp(), (SLOPE * s).exp()], dim=1)
    return ends, torch.cat([t, (t - taken).exp(), (SLOPE * t - taken).exp()], dim=1), taken


def _on_host(graph: CSRGraph, values: Tensor, by_source: Tensor, by_target: Tensor) -> tuple[Tensor, ...]:
    ends, starts, taken = _ends(by_source, by_target, None)
    sums = values.new_empty(len(by_target), *values.shape[1:])
    out = (sums, torch.empty_like(sums), torch.empty_like(by_target), torch.empty_like(by_target))
    attend(*_arrays(*_edges(graph, values), values, ends, starts), SLOPE, tuple(_arrays(*out)))
    return *out[:3], taken + out[3].log()


def _back_on_host(graph: CSRGraph, *tensors: Tensor) -> tuple[Tensor, ...]:
    values, by_source, by_target, logs, gradient, means = tensors
    ends, starts, _ = _ends(by_source, by_target, logs)
    gradients = (torch.empty_like(values), torch.empty_like(by_source))
    known = _arrays(*_edges(graph.transpose, values), values, ends, torch.cat([starts, means], dim=1))
    attend_back(*known, SLOPE, *_arrays(gradient), tuple(_arrays(*gradients)))
    return gradients


def _edges(graph: CSRGraph, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    counts = like.new_empty(0) if graph.values is None else graph.values.to(like.dtype)
    return graph.indptr, graph.sources, counts


def _arrays(*tensors: Tensor) -> list[NDArray[Any]]:
    """Arrays for kernels, heads side by side."""
    return [tensor.detach().flatten(1).numpy() if tensor.dim() > 1 else tensor.numpy() for tensor in tensors]


def _anywhere(graph: CSRGraph, values: Tensor, by_source: Tensor, by_target: Tensor) -> tuple[Tensor, ...]:
    """The same in torch operations, each of which sums in a fixed order on any device."""
    to, targets = graph.targets, len(by_target)
    scores, own_scores = by_target[to] + by_source[graph.sources], by_target + by_source[:targets]
    largest = _bent(torch.maximum(_reduced(graph, scores, "max"), own_scores))  # LeakyReLU keeps order
    weights, sloped = _weights(scores, largest[to], graph.values)
    self_weights, own_sloped = _weights(own_scores, largest, None)
    total = self_weights + _reduced(graph, weights, "sum")
    means = [
        (mine.unsqueeze(2) * values[:targets] + _weighted(graph, of_edges, values)) / total.unsqueeze(2)
        for mine, of_edges in ((self_weights, weights), (own_sloped, sloped))
    ]
    steep = (own_sloped + _reduced(graph, sloped, "sum")) / total
    return *means, steep, largest + torch.log(total)


def _back_anywhere(graph: CSRGraph, *tensors: Tensor) -> tuple[Tensor, ...]:
    values, by_source, by_target, logs, gradient, means = tensors
    back, targets = graph.transpose, len(by_target)
    to = back.sources
    weights, sloped = _weights(by_target[to] + by_source[back.targets], logs[to], back.values)
    self_weights, own_sloped = _weights(by_target + by_source[:targets], logs, None)
    by_values = _weighted(back, weights, gradient)
    by_values[:targets] += self_weights.unsqueeze(2) * gradient
    by_scores = (_weighted(back, sloped, gradient) * values).sum(dim=2) - _reduced(
        back, sloped * means[to], "sum"
    )
    by_scores[:targets] += own_sloped * ((gradient * values[:targets]).sum(dim=2) - means)
    return by_values, by_scores


def _weights(scores: Tensor, logs: Tensor, counts: Tensor | None) -> tuple[Tensor, Tensor]:
    """Counts times exp(LeakyReLU(scores) − logs), and the same times LeakyReLU's slopes."""
    weights = torch.exp(_bent(scores) - logs)
    if counts is not None:
        weights = weights * counts.to(weights.dtype).unsqueeze(1)
    return weights, torch.where(scores > 0, weights, SLOPE * weights)


def _reduced(graph: CSRGraph, of_edges: Tensor, how: str) -> Tensor:
    initial = 0 if how == "sum" else -torch.inf
    return torch.segment_reduce(of_edges, how, offsets=graph.indptr.long(), initial=initial)


def _weighted(graph: CSRGraph, weights: Tensor, values: Tensor) -> Tensor:
    """Sums (T, H, d) of the rows of (S, H, d) by weights (E, H)."""
    if not len(weights):
        return values.new_zeros(graph.num_targets, *values.shape[1:])
    sums = [
        embedding_bag(
            graph.sources,
            table,
            graph.indptr,
            mode="sum",
            per_sample_weights=weight,
            include_last_offset=True,
        )
        for table, weight in zip(values.unbind(1), weights.t().contiguous(), strict=True)
    ]
    return torch.stack(sums, dim=1)
