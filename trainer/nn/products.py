"""Matrix products of tables with many rows, on the host by oneDNN.

torch gives float32 products to MKL, which does not use the widest registers of processors by other makers than Intel:
where it was measured, oneDNN reached 235 GFLOP/s per core and MKL 105 (docs/performance.md). oneDNN compiles a kernel for
each new shape (half a millisecond and 0.6 MB), so tables are padded with rows of zeros to few lengths.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad

from trainer.nn.compiled import on_host

_SHORTEST = 64
_WORTH = 5_000_000
_WORTH_HALVED = 2_000_000
"""Multiplications below which copies and calls cost more than oneDNN saves, in float32 and in a smaller type."""
_HAS_ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")  # type: ignore[no-untyped-call]


class Table:
    """Rows (n, w) ready for products, which are computed in ``dtype`` (None: that of the rows)."""

    def __init__(self, rows: Tensor, dtype: torch.dtype | None = None) -> None:
        self._count, self._dtype = rows.shape[0], rows.dtype
        compiled = on_host(rows) and (dtype is not None or rows.dtype == torch.float32)
        self._rows = rows if dtype is None else rows.to(dtype)
        missing = -self._count % _step(self._count) if compiled else 0
        if missing:
            self._rows = pad(self._rows, (0, 0, 0, missing))
        self._onednn = compiled and dtype is None and _HAS_ONEDNN and self._count > 0

    def times(self, weight: Tensor) -> Tensor:
        """Rows · weightᵀ (n, out), with a weight (out, w)."""
        return self._times(self._rows, weight)[: self._count].to(self._dtype)

    def summed_with(self, other: "Table") -> Tensor:
        """(w, w'), the sum of the outer products of the rows of two tables."""
        return self._times(self._rows.t(), other._rows.t()).to(self._dtype)

    def _times(self, rows: Tensor, weight: Tensor) -> Tensor:
        if self._onednn:
            left, right = _whole(rows), _whole(weight)
            product: Tensor = torch.ops.mkldnn._linear_pointwise(left, right, None, "none", [], "")
            return product
        return linear(rows, weight.to(rows.dtype))


def padded(count: int, like: Tensor) -> int:
    """Rows of a table of ``count`` rows as products want it, where ``like`` is."""
    return count + -count % _step(count) if on_host(like) else count


def side_by_side(*parts: Tensor) -> Tensor:
    """Tables (n, w) as one, padded with rows of zeros for products: (≥ n, sum of widths)."""
    table = torch.cat(parts, dim=1)
    missing = padded(len(table), table) - len(table)
    return pad(table, (0, 0, 0, missing)) if missing else table


def table_product(
    table: Tensor, weight: Tensor, bias: Tensor, count: int, *, rectify: bool = False
) -> Tensor:
    """Make rows · weightᵀ + bias of the first rows of a table, (count, out); if asked, relu of it.

    Args:
        table: (≥ count, w); on the host as many rows as ``padded`` says.
        weight: (out, w).
        bias: (out,).
        count: Rows that are wanted.
        rectify: Whether negative numbers become 0.
    """
    by_onednn = on_host(table) and table.dtype == torch.float32 and _HAS_ONEDNN and count
    if by_onednn and table.shape[1] == weight.shape[1]:  # torch names widths that do not fit, oneDNN does not
        product: Tensor = _TableProduct.apply(table, weight, bias, count, rectify)  # type: ignore[no-untyped-call]  # torch's apply is untyped
        return product
    product = linear(table[:count], weight, bias)
    return torch.relu(product) if rectify else product


def dense(
    rows: Tensor, weight: Tensor, bias: Tensor | None = None, dtype: torch.dtype | None = None
) -> Tensor:
    """``torch.nn.functional.linear`` of rows (n, w), a weight (out, w) and a bias (out,).

    Product and gradients are computed in ``dtype`` (None: that of the rows).
    """
    large = len(rows) * weight.numel() >= (_WORTH if dtype is None else _WORTH_HALVED)
    if not (on_host(rows) and rows.dtype == torch.float32 and large):
        return linear(rows, weight, bias)
    product: Tensor = _Dense.apply(rows, weight, dtype)  # type: ignore[no-untyped-call]  # torch's apply is untyped
    return product if bias is None else product + bias


class Dense(nn.Linear):
    """A linear layer of rows (…, w), computed by ``dense``.

    Attributes:
        products: Type of the product while training; None: that of the rows.
    """

    products: torch.dtype | None = None

    def forward(self, input: Tensor) -> Tensor:  # torch's name
        """See ``dense``."""
        rows = input.reshape(-1, self.in_features)
        product = dense(rows, self.weight, self.bias, self.products if self.training else None)
        return product.view(*input.shape[:-1], self.out_features)


class _Dense(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, dtype: torch.dtype | None) -> Tensor:
        table = Table(rows, dtype)
        ctx.table, ctx.dtype = table, dtype  # a padded input, which lives as long as the graph
        ctx.save_for_backward(weight)
        return table.times(weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        (weight,) = ctx.saved_tensors
        by_product = Table(gradients[0], ctx.dtype)
        return (
            by_product.times(weight.t()) if ctx.needs_input_grad[0] else None,
            by_product.summed_with(ctx.table) if ctx.needs_input_grad[1] else None,
            None,
        )


class _TableProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, table: Tensor, weight: Tensor, bias: Tensor, count: int, rectify: bool) -> Tensor:
        product: Tensor = torch.ops.mkldnn._linear_pointwise(table, _whole(weight), bias, "none", [], "")
        rows = product[:count]
        if rectify:
            rows.relu_()  # oneDNN's own makes 0 of NaN
        ctx.save_for_backward(table, weight, *([rows] if rectify else []))
        return rows

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor, Tensor, None, None]:
        table, weight, *outputs = ctx.saved_tensors
        passed, count = table.new_empty(len(table), len(weight)), len(gradients[0])
        passed[count:] = 0
        if outputs:
            torch.ops.aten.threshold_backward.grad_input(
                gradients[0], outputs[0], 0, grad_input=passed[:count]
            )
        else:
            passed[:count] = gradients[0]
        by_product = Table(passed)
        return (
            by_product.times(weight.t()) if ctx.needs_input_grad[0] else None,
            by_product.summed_with(Table(table)),
            passed.sum(dim=0),
            None,
            None,
        )


def _whole(table: Tensor) -> Tensor:
    """The table, or a copy if it is a cut of another: oneDNN's product with a cut weight is a thousand times slower."""
    return table if table.is_contiguous() or table.t().is_contiguous() else table.contiguous()


def _step(rows: int) -> int:
    """Padded lengths are multiples of this: at most an eighth longer, and sixteen from one power of two to the next."""
    return max(_SHORTEST, 1 << max(rows.bit_length() - 4, 0))
