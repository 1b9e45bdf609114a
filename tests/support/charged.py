"""An operation that costs virtual seconds on a fake link."""

from typing import Any

import torch
from thread_ranks import ThreadRanks
from torch import Tensor


class Charged(torch.autograd.Function):
    """What it is given, for so many virtual seconds there, and twice as many back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: ThreadRanks, seconds: float) -> Tensor:
        ctx.ranks, ctx.seconds = ranks, seconds
        ranks.compute(seconds)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        ctx.ranks.compute(2 * ctx.seconds)
        return gradients[0], None, None
