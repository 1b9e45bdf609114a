"""One buffer under the gradients of all parameters, so that they cross ranks at once and uncopied."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class GradientBuffer:
    """Contiguous gradients of parameters of one type."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self._parameters = parameters
        self._flat = torch.zeros(
            sum(each.numel() for each in parameters), dtype=parameters[0].dtype, device=parameters[0].device
        )
        views = torch.split(self._flat, [each.numel() for each in parameters])
        self._views = [view.view_as(each) for view, each in zip(views, parameters, strict=True)]

    def serves(self, parameters: list[nn.Parameter]) -> bool:
        """Whether it was made for these parameters, with their present types and device."""
        return len(parameters) == len(self._parameters) and all(
            a is b and a.dtype == self._flat.dtype and a.device == self._flat.device
            for a, b in zip(parameters, self._parameters, strict=True)
        )

    def take(self) -> Tensor:
        """The buffer with a copy of each gradient; zeros for missing ones."""
        found = [(view, each.grad) for view, each in zip(self._views, self._parameters, strict=True)]
        for view, gradient in found:
            if gradient is None:
                view.zero_()
        elsewhere = [
            (view, gradient)
            for view, gradient in found
            if gradient is not None and gradient.data_ptr() != view.data_ptr()
        ]
        if elsewhere:
            torch._foreach_copy_([view for view, _ in elsewhere], [gradient for _, gradient in elsewhere])
        return self._flat

    def give(self, there: Sequence[int]) -> None:
        """Set gradients to views of the buffer: of each parameter whose entry is 1, because some rank has its gradient."""
        for parameter, view, has in zip(self._parameters, self._views, there, strict=True):
            parameter.grad = view if has else None
