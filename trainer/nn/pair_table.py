"""Two rows of a pair, their product and what is known of the pair, side by side in one table."""

from typing import Any

import torch
from torch import Tensor

from stream.kernels import njit
from trainer.nn.compiled import kernels_fit
from trainer.nn.products import padded


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
