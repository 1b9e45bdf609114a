"""One buffer under the gradients of all parameters, so that they cross ranks at once and uncopied."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class GradientBuffer:
    """Contiguous gradients of parameters of one type, and beside them the loss and, on a host, which gradients exist.

    Attributes:
        has_flags: Whether it holds which gradients exist. On a GPU the host would wait for their sum.
    """

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self._parameters = parameters
        self.has_flags = parameters[0].device.type == "cpu"
        sizes = [each.numel() for each in parameters]
        self._flat = torch.zeros(
            sum(sizes) + 1 + len(parameters) * self.has_flags,
            dtype=parameters[0].dtype,
            device=parameters[0].device,
        )
        *views, self._loss, self._flags = torch.split(
            self._flat, [*sizes, 1, len(parameters) * self.has_flags]
        )
        self._views = [view.view_as(each) for view, each in zip(views, parameters, strict=True)]

    def serves(self, parameters: list[nn.Parameter]) -> bool:
        """Whether it was made for these parameters, with their present types and device."""
        return len(parameters) == len(self._parameters) and all(
            a is b and a.dtype == self._flat.dtype and a.device == self._flat.device
            for a, b in zip(parameters, self._parameters, strict=True)
        )

    def take(self, loss: Tensor | None, there: Sequence[bool]) -> Tensor:
        """The buffer with a copy of each gradient, zeros for missing ones; of the loss; and of which gradients exist."""
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
        self._loss.copy_(loss.detach()) if loss is not None else self._loss.zero_()
        if self.has_flags:
            self._flags.copy_(torch.tensor(there))
        return self._flat

    def there(self) -> list[bool]:
        """Which gradients exist on any rank, after the buffers of all were summed."""
        return (self._flags > 0).tolist()

    def give(self, there: Sequence[bool]) -> Tensor:
        """Set gradients to views of the buffer, of each parameter that is ``there``; returns the loss, a scalar."""
        for parameter, view, has in zip(self._parameters, self._views, there, strict=True):
            parameter.grad = view if has else None
        return self._loss[0].clone()
