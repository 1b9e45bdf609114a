"""Numbers that are none: where they are found, and how all ranks agree on leaving a step out."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn


def is_sound(state: Any) -> bool:
    """Whether all floating-point tensors of nested dictionaries and lists are finite."""
    if isinstance(state, Tensor):
        return not state.is_floating_point() or bool(torch.isfinite(state).all())
    if isinstance(state, dict):
        return all(is_sound(value) for value in state.values())
    if isinstance(state, list | tuple):
        return all(is_sound(value) for value in state)
    return True


def spoil(parameters: Iterable[nn.Parameter]) -> None:
    """Make a gradient NaN, so that it is still none when gradients are summed over ranks, and all leave the step out.

    A loss that is not finite can have finite gradients: that of the logit +∞ of what did not happen is 1.
    """
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad.fill_(torch.nan)
            return
