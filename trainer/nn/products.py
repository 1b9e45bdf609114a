"""Products of tables and weights, which training may compute in a smaller type."""

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad
from typing_extensions import override

_SHORTEST = 64


def dense(
    rows: Tensor, weight: Tensor, bias: Tensor | None = None, dtype: torch.dtype | None = None
) -> Tensor:
    """``torch.nn.functional.linear`` of rows (n, w), a weight (out, w) and a bias (out,).

    Product and gradients are computed in ``dtype`` (None: that of the rows). torch compiles a product in a smaller type for
    each shape (half a millisecond), so the table is padded with rows of zeros to few lengths.
    """
    if dtype is None:
        return linear(rows, weight, bias)
    count = len(rows)
    table = pad(rows.to(dtype), (0, 0, 0, -count % _step(count)))
    product = linear(table, weight.to(dtype))[:count].to(rows.dtype)
    return product if bias is None else product + bias


class Dense(nn.Linear):
    """A linear layer of rows (…, w), computed by ``dense``.

    Attributes:
        products: Type of the product while training; None: that of the rows.
    """

    products: torch.dtype | None = None

    @override
    def forward(self, input: Tensor) -> Tensor:  # torch's name
        rows = input.reshape(-1, self.in_features)
        product = dense(rows, self.weight, self.bias, self.products if self.training else None)
        return product.view(*input.shape[:-1], self.out_features)


def _step(rows: int) -> int:
    """Padded lengths are multiples of this: at most an eighth longer, and sixteen from one power of two to the next."""
    return max(_SHORTEST, 1 << max(rows.bit_length() - 4, 0))
