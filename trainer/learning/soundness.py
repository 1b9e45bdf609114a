"""Numbers that are none: where they are found, and how all ranks agree on leaving a step out."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn


def is_sound(state: Any) -> bool:
    """Whether all floating-point tensors of nested dictionaries and lists are finite; asked of each device once."""
    by_device: dict[torch.device, list[Tensor]] = {}
    for each in _tensors(state):
        if each.is_floating_point():
            by_device.setdefault(each.device, []).append(each.reshape(-1))
    return all(bool(torch.isfinite(torch.cat(parts)).all()) for parts in by_device.values())


def _tensors(state: Any) -> Iterator[Tensor]:
    if isinstance(state, Tensor):
        yield state
    elif isinstance(state, dict | list | tuple):
        for value in state.values() if isinstance(state, dict) else state:
            yield from _tensors(value)


def copied(state: Any) -> Any:
    """Nested dictionaries and lists with copies of their tensors: a tenth of ``copy.deepcopy``'s time."""
    if isinstance(state, Tensor):
        return state.detach().clone()
    if isinstance(state, dict):
        return {key: copied(value) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(copied(value) for value in state)
    return state


def outcome(loss: Tensor, left_out: Tensor) -> Tensor:
    """A step's loss, and 1 if it was left out, else 0; float64 (2,), for ``told``."""
    return torch.stack([loss.detach().double(), left_out.double()])


def told(outcomes: list[Tensor]) -> list[tuple[float, bool]]:
    """What became of steps, asked of the device once: loss, and whether it was left out."""
    rows = torch.stack(outcomes).tolist() if outcomes else []
    return [(loss, bool(left_out)) for loss, left_out in rows]


def spoil(parameters: Iterable[nn.Parameter], loss: Tensor) -> None:
    """Make a gradient NaN if the loss is not finite, so that it is still none when gradients are summed over ranks.

    A loss that is not finite can have finite gradients: that of the logit +∞ of what did not happen is 1. Nobody asks
    whether it is, because the host would wait for a GPU's answer: 0 · loss is 0 or NaN.
    """
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad += 0 * loss.detach()
            return
