"""Rows of a table by position, with a gradient that two runs agree on."""

from typing import Any

from torch import Tensor
from torch.autograd import Function
from torch.nn.functional import embedding


def rows(table: Tensor, place: Tensor) -> Tensor:
    """Rows of a table; the gradient is one dense sum, always in the same order.

    That of ``table[place]`` adds up repeated rows in whatever order the threads come, and takes several times as long.

    Args:
        table: (n, d).
        place: int64 (…).

    Returns:
        (…, d).
    """
    return embedding(place, table)


def distinct_rows(table: Tensor, place: Tensor) -> Tensor:
    """As ``rows`` where no place is there twice: the gradient is put back and not summed.

    Args:
        table: (n, d).
        place: int64 (m,), distinct.

    Returns:
        (m, d).
    """
    found: Tensor = _Distinct.apply(table, place)  # type: ignore[no-untyped-call]  # torch's apply is untyped
    return found


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
