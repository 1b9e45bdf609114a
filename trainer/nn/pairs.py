"""Pairs of rows on the host: their product and what is known of them side by side, and a perceptron without a table of pairs."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from stream.kernels import njit
from trainer.nn.compiled import kernels_fit
from trainer.nn.products import padded

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


def pair_table(src: Tensor, dst: Tensor, told: Tensor) -> Tensor:
    """Put src ⊙ dst ‖ src ‖ dst ‖ told into one table.

    Args:
        src: Float (q, d).
        dst: Float (q, d).
        told: Float (q, e), without a gradient.

    Returns:
        (≥ q, 3 d + e); rows beyond q are zero. On the host there are as many as products want.
    """
    if kernels_fit(src) and src.dtype == dst.dtype:
        table: Tensor = _PairTable.apply(src, dst, told.to(src.dtype))  # type: ignore[no-untyped-call]  # torch's apply is untyped
        return table
    return torch.cat([src * dst, src, dst, told.to(src.dtype)], dim=1)


class _PairTable(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, src: Tensor, dst: Tensor, told: Tensor) -> Tensor:
        src, dst = src.contiguous(), dst.contiguous()
        ctx.save_for_backward(src, dst)
        table = src.new_empty(padded(len(src), src), 3 * src.shape[1] + told.shape[1])
        _put(src.detach().numpy(), dst.detach().numpy(), told.contiguous().numpy(), table.numpy())
        return table

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        src, dst = ctx.saved_tensors
        by_src, by_dst = torch.empty_like(src), torch.empty_like(dst)
        gradient = gradients[0].contiguous()
        _put_back(src.numpy(), dst.numpy(), gradient.numpy(), by_src.numpy(), by_dst.numpy())
        return by_src, by_dst, None


@njit(cache=True, nogil=True)
def _product(one, other, out):  # type: ignore[no-untyped-def]  # compiled
    for k in range(len(out)):
        out[k] = one[k] * other[k]


@njit(cache=True, nogil=True)
def _passed(gradient, other, itself, out):  # type: ignore[no-untyped-def]  # compiled
    for k in range(len(out)):
        out[k] = gradient[k] * other[k] + itself[k]


@njit(cache=True, nogil=True)
def _put(src, dst, told, table):  # type: ignore[no-untyped-def]  # compiled
    """Fill ``pair_table``'s table."""
    d = src.shape[1]
    for i in range(len(src)):
        row = table[i]
        _product(src[i], dst[i], row[:d])
        row[d : 2 * d] = src[i]
        row[2 * d : 3 * d] = dst[i]
        row[3 * d :] = told[i]
    table[len(src) :] = 0


@njit(cache=True, nogil=True)
def _put_back(src, dst, gradient, by_src, by_dst):  # type: ignore[no-untyped-def]  # compiled
    """Fill the gradients of ``src`` and ``dst``, given that of the table."""
    d = src.shape[1]
    for i in range(len(src)):
        row = gradient[i]
        _passed(row[:d], dst[i], row[d : 2 * d], by_src[i])
        _passed(row[:d], src[i], row[2 * d : 3 * d], by_dst[i])
