"""Rows of a table by position, with a reproducible gradient."""

from typing import Any

from torch import Tensor
from torch.autograd import Function
from torch.nn.functional import embedding


def rows(table: Tensor, place: Tensor) -> Tensor:
    """Rows (…, d) of a table (n, d) at int64 places (…); the gradient is one dense sum, always in the same order.

    The gradient of ``table[place]`` adds repeated rows in the order of threads, and takes several times as long.
    """
    return embedding(place, table)


def distinct_rows(table: Tensor, place: Tensor) -> Tensor:
    """As ``rows`` for distinct places (m,): the gradient is put back without a sum."""
    rows: Tensor = _Distinct.apply(table, place)  # type: ignore[no-untyped-call]  # torch's apply is untyped
    return rows


class _Distinct(Function):
    @staticmethod
    def forward(ctx: Any, table: Tensor, place: Tensor) -> Tensor:
        ctx.place, ctx.length = place, len(table)
        return table.index_select(0, place)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        shape = ctx.length, *gradients[0].shape[1:]
        whole = ctx.length == len(ctx.place)
        table = gradients[0].new_empty(shape) if whole else gradients[0].new_zeros(shape)
        return table.index_copy_(0, ctx.place, gradients[0]), None
