"""Attention over gathered rows, fused: what a neighbour is made of is put together in the cache and never stored."""

from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor

# Sums may be taken in any order, or they would be added up one number at a time; NaN stays NaN.
_SUMS = {"reassoc", "contract", "nsz", "arcp"}


class GatheredAttention(torch.autograd.Function):
    """Σ_k w_k c_k with w = softmax(q·c · scale) and c_k = [states[place_k] ‖ edge_k ‖ time_k], all heads and rows.

    One table of (R, K, C) costs more than the arithmetic: with ten neighbours in batches of 2,000 it is 11 MB, written and
    read several times. The products are small ones, too (two heads times ten neighbours a row), for which a batched
    matrix product is a hundred times slower than for large ones. Rows are worked on in order, on one thread, so the
    gradient of a state that many rows look at is always the same.
    """

    @staticmethod
    def forward(
        ctx: Any,
        asked: Tensor,
        states: Tensor,
        place: Tensor,
        edge: Tensor,
        time: Tensor,
        there: Tensor,
        kept: Tensor,
        scale: float,
    ) -> Tensor:
        """Gathered (R, H, C).

        Args:
            ctx: Of autograd.
            asked: (R, H, C), q of each head.
            states: (n, d).
            place: int64 (R, K), neighbours among the states.
            edge: (R, K, edges), without gradient.
            time: (R, K, T).
            there: bool (R, K), which neighbours exist.
            kept: (R, H, K), what a weight is multiplied with: 0 if it is dropped.
            scale: Of products.
        """
        gathered = torch.empty_like(asked, memory_format=torch.contiguous_format)
        weights = torch.zeros_like(kept)
        inputs = [each.contiguous() for each in (asked, states, place, edge, time, there, kept)]
        _attend(*(each.detach().numpy() for each in inputs), scale, gathered.numpy(), weights.numpy())
        ctx.save_for_backward(*inputs, weights)
        ctx.scale = scale
        return gathered

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of ``asked``, ``states`` and ``time``."""
        *inputs, weights = ctx.saved_tensors
        asked, states, time = inputs[0], inputs[1], inputs[4]
        by_asked, by_states, by_time = (
            torch.empty_like(asked), torch.zeros_like(states), torch.empty_like(time)
        )  # fmt: skip
        _attend_back(
            *(each.detach().numpy() for each in (*inputs, weights, gradients[0].contiguous())),
            ctx.scale,
            (by_asked.numpy(), by_states.numpy(), by_time.numpy()),
        )
        return by_asked, by_states, None, None, by_time, None, None, None


@njit(cache=True, nogil=True)
def _put_together(context, state, edge, time):  # type: ignore[no-untyped-def]  # compiled
    width, edges = len(state), len(edge)
    for j in range(width):
        context[j] = state[j]
    for j in range(edges):
        context[width + j] = edge[j]
    for j in range(len(time)):
        context[width + edges + j] = time[j]


@njit(cache=True, nogil=True, fastmath=_SUMS)
def _dot(a, b):  # type: ignore[no-untyped-def]  # compiled
    total = a[0] * b[0]
    for j in range(1, len(a)):
        total += a[j] * b[j]
    return total


@njit(cache=True, nogil=True, fastmath=_SUMS)
def _add(to, factor, what):  # type: ignore[no-untyped-def]  # compiled
    for j in range(len(to)):
        to[j] += factor * what[j]


@njit(cache=True, nogil=True, fastmath=_SUMS)
def _add_both(to, first, one, second, other):  # type: ignore[no-untyped-def]  # compiled
    for j in range(len(to)):
        to[j] += first * one[j] + second * other[j]


@njit(cache=True, nogil=True)
def _attend(asked, states, place, edge, time, there, kept, scale, gathered, weights):  # type: ignore[no-untyped-def]  # compiled
    rows, heads, width = asked.shape
    neighbours = place.shape[1]
    context = np.empty((neighbours, width), asked.dtype)
    for r in range(rows):
        for k in range(neighbours):
            if there[r, k]:
                _put_together(context[k], states[place[r, k]], edge[r, k], time[r, k])
        for h in range(heads):
            weight = weights[r, h]
            gathered[r, h] = 0
            largest = -np.inf
            for k in range(neighbours):
                if there[r, k]:
                    weight[k] = _dot(asked[r, h], context[k]) * scale
                    largest = max(largest, weight[k])
            total = 0.0
            for k in range(neighbours):
                if there[r, k]:
                    weight[k] = np.exp(weight[k] - largest)
                    total += weight[k]
            for k in range(neighbours):
                if there[r, k]:
                    weight[k] /= total
                    _add(gathered[r, h], weight[k] * kept[r, h, k], context[k])


@njit(cache=True, nogil=True)
def _attend_back(asked, states, place, edge, time, there, kept, weights, gradient, scale, out):  # type: ignore[no-untyped-def]  # compiled
    by_asked, by_states, by_time = out
    rows, heads, width = asked.shape
    neighbours, spent = place.shape[1], states.shape[1]
    timed = spent + edge.shape[2]
    context = np.empty((neighbours, width), asked.dtype)
    by_score = np.empty((heads, neighbours), asked.dtype)
    for r in range(rows):
        for k in range(neighbours):
            if there[r, k]:
                _put_together(context[k], states[place[r, k]], edge[r, k], time[r, k])
        for h in range(heads):
            by_asked[r, h] = 0
            mean = asked.dtype.type(0)
            for k in range(neighbours):
                if there[r, k]:
                    by_score[h, k] = _dot(gradient[r, h], context[k]) * kept[r, h, k]
                    mean += by_score[h, k] * weights[r, h, k]
            for k in range(neighbours):
                if there[r, k]:
                    by_score[h, k] = weights[r, h, k] * (by_score[h, k] - mean) * scale
                    _add(by_asked[r, h], by_score[h, k], context[k])
        for k in range(neighbours):
            by_time[r, k] = 0
            if there[r, k]:
                state, span = by_states[place[r, k]], by_time[r, k]
                for h in range(heads):
                    score, weight = by_score[h, k], weights[r, h, k] * kept[r, h, k]
                    query, told = asked[r, h], gradient[r, h]
                    _add_both(state, score, query[:spent], weight, told[:spent])
                    _add_both(span, score, query[timed:], weight, told[timed:])
