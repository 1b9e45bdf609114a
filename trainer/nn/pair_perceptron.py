"""The second half of a perceptron over pairs of rows, on the host, without a table of (pairs, width)."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from stream.kernels import njit

# Sums may be taken in any order, or numbers would be added one at a time; NaN stays NaN.
_SUMS = {"reassoc", "contract", "nsz"}


class PairPerceptron(torch.autograd.Function):
    """w · relu(either[u] in front + either[v] behind + b) + c for pairs (u, v)."""

    @staticmethod
    def forward(
        ctx: Any, either: Tensor, at_src: Tensor, at_dst: Tensor, bias: Tensor, weight: Tensor, last: Tensor
    ) -> Tensor:
        """Logits (q,).

        Args:
            ctx: Of autograd.
            either: (n, 2 w), the first layer's product with each row as a source, and behind it as a destination.
            at_src: int64 (q,).
            at_dst: int64 (q,).
            bias: (w,), of the first layer.
            weight: (1, w), of the second.
            last: (1,), its bias.
        """
        inputs = [part.detach().contiguous() for part in (either, at_src, at_dst, bias, weight)]
        logits = last.detach().repeat(len(at_src))
        score_pairs(*(part.numpy() for part in inputs), logits.numpy())
        ctx.save_for_backward(*inputs)
        return logits

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of ``either``, ``bias``, ``weight`` and ``last``."""
        inputs, gradient = ctx.saved_tensors, gradients[0].contiguous()
        by_either, by_bias, by_weight = (torch.zeros_like(inputs[i]) for i in (0, 3, 4))
        arrays = (part.numpy() for part in (*inputs, gradient))
        score_pairs_back(*arrays, by_either.numpy(), by_bias.numpy(), by_weight.numpy())
        return by_either, None, None, by_bias, by_weight, gradient.sum().view(1)


@njit(cache=True, nogil=True, fastmath=_SUMS)
def _score(src, dst, bias, weight):  # type: ignore[no-untyped-def]  # compiled
    total = bias.dtype.type(0)
    for j in range(len(bias)):
        hidden = src[j] + dst[j] + bias[j]
        total += (bias.dtype.type(0) if hidden <= 0 else hidden) * weight[j]
    return total


@njit(cache=True, nogil=True)
def score_pairs(either, at_src, at_dst, bias, weight, logits):  # type: ignore[no-untyped-def]  # compiled
    """Add the logits of ``PairPerceptron`` without their bias to (q,)."""
    width = len(bias)
    for i in range(len(at_src)):
        src, dst = either[np.uint64(at_src[i]), :width], either[np.uint64(at_dst[i]), width:]
        logits[i] += _score(src, dst, bias, weight[0])


@njit(cache=True, nogil=True, fastmath=_SUMS)
def _hidden(src, dst, bias, hidden):  # type: ignore[no-untyped-def]  # compiled
    for j in range(len(bias)):
        total = src[j] + dst[j] + bias[j]
        hidden[j] = bias.dtype.type(0) if total <= 0 else total


@njit(cache=True, nogil=True, fastmath=_SUMS)
def _pass(change, weight, hidden, by_src, by_dst):  # type: ignore[no-untyped-def]  # compiled
    for j in range(len(weight)):
        passed = weight.dtype.type(0) if hidden[j] <= 0 else change * weight[j]
        by_src[j] += passed
        by_dst[j] += passed


@njit(cache=True, nogil=True, fastmath=_SUMS)
def _sum(change, weight, hidden, by_bias, by_weight):  # type: ignore[no-untyped-def]  # compiled
    for j in range(len(weight)):
        by_bias[j] += weight.dtype.type(0) if hidden[j] <= 0 else change * weight[j]
        by_weight[j] += change * hidden[j]


@njit(cache=True, nogil=True)
def score_pairs_back(either, at_src, at_dst, bias, weight, gradient, by_either, by_bias, by_weight):  # type: ignore[no-untyped-def]  # compiled
    """Add the gradients of ``score_pairs``, given that of the logits (q,)."""
    width = len(bias)
    hidden = np.empty_like(bias)
    for i in range(len(at_src)):
        u, v = np.uint64(at_src[i]), np.uint64(at_dst[i])
        _hidden(either[u, :width], either[v, width:], bias, hidden)
        _pass(gradient[i], weight[0], hidden, by_either[u, :width], by_either[v, width:])
        _sum(gradient[i], weight[0], hidden, by_bias, by_weight[0])
