"""Tensors on their way between ranks: exchanges of rows whose gradients travel back, and the buffers in which they cross."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from freshet_graph.trainer.wire.traffic import Flight

T = TypeVar("T")
Launch = Callable[[Tensor, Sequence[int], Sequence[int], str], Flight]
"""Begins an exchange of rows: how many go to each rank, how many come from each, and the purpose."""


class Handle(Generic[T]):
    """The result of a collective that has begun; ``arrive`` waits and makes it.

    Every handle is waited for, in one order on all ranks: gradients set out in the opposite order.
    """

    def __init__(self, arrive: Callable[[], T]) -> None:
        self._arrive = arrive
        self._outcome: list[T] = []

    def wait(self) -> T:
        """The result, the same object at each call."""
        if not self._outcome:
            self._outcome.append(self._arrive())
        return self._outcome[0]


def begin_exchange(
    rows: Tensor, sent: Sequence[int], received: Sequence[int], purpose: str, launch: Launch
) -> Handle[Tensor]:
    """Send blocks of rows to every rank; ``wait`` returns theirs.

    The gradient sets out where the rows were waited for and is waited for where they set out. So computation between the
    two hides the way there, and its backward pass hides the way back.

    Args:
        rows: (Σ sent, …), rank 0's first.
        sent: Rows for each rank.
        received: Rows from each rank.
        purpose: Label of the cost; that of the gradient is ``<purpose>_gradients``.
        launch: Begins either direction.
    """
    route = _Route(list(sent), list(received), purpose, launch)
    tie: Tensor = _Depart.apply(rows, route)  # type: ignore[no-untyped-call]  # torch's apply is untyped
    return Handle(lambda: _Arrive.apply(tie, route))  # type: ignore[no-untyped-call]  # torch's apply is untyped


class _Route:
    """One exchange and, maybe, its way back."""

    def __init__(self, sent: list[int], received: list[int], purpose: str, launch: Launch) -> None:
        self._sent, self._received, self._purpose, self._launch = sent, received, purpose, launch
        self._flight: Flight | None = None

    def set_out(self, rows: Tensor) -> None:
        self._flight = self._launch(rows, self._sent, self._received, self._purpose)

    def turn_back(self, gradient: Tensor) -> None:
        self._flight = self._launch(gradient, self._received, self._sent, f"{self._purpose}_gradients")

    def arrived(self) -> Tensor:
        assert self._flight is not None
        flight, self._flight = self._flight, None  # the rows belong to the caller, not to the graph
        return flight.wait()


class _Depart(torch.autograd.Function):
    """Rows in, an empty tensor out: it ties both ends together, because rows and their gradient differ in shape."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, route: _Route) -> Tensor:
        ctx.route = route
        route.set_out(rows)
        return rows.new_empty(0)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor, None]:
        return ctx.route.arrived(), None


class _Arrive(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tie: Tensor, route: _Route) -> Tensor:
        ctx.route = route
        return route.arrived()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        ctx.route.turn_back(gradients[0])
        return gradients[0].new_empty(0), None


def packed(tables: Sequence[Tensor]) -> Tensor:
    """Tables (n, …) of any types and one device as one: uint8 (n, bytes)."""
    return torch.cat(
        [_copied(table.reshape(len(table), _width(table))).view(torch.uint8) for table in tables], dim=1
    )


def unpacked(rows: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """The tables of ``packed`` rows; ``like``: tables of their types and shapes, of any length."""
    parts = torch.split(rows, [_width(table) * table.element_size() for table in like], dim=1)
    return [
        _copied(part).view(-1).view(table.dtype).view(len(rows), *table.shape[1:])
        for part, table in zip(parts, like, strict=True)
    ]


def _width(table: Tensor) -> int:
    return math.prod(table.shape[1:])


def _copied(table: Tensor) -> Tensor:
    """A copy, which can be read as another type; a single row counts as contiguous whatever its strides."""
    return table.clone(memory_format=torch.contiguous_format)


class GradientBuffer:
    """Contiguous gradients of parameters of one type, and beside them the loss and, on a host, which gradients exist.

    Attributes:
        has_flags: Whether it holds which gradients exist. On a GPU the host would wait for their sum.
    """

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self._parameters = parameters
        self.has_flags = parameters[0].device.type == "cpu"
        sizes = [parameter.numel() for parameter in parameters]
        self._flat = torch.zeros(
            sum(sizes) + 1 + len(parameters) * self.has_flags,
            dtype=parameters[0].dtype,
            device=parameters[0].device,
        )
        *views, self._loss, self._flags = torch.split(
            self._flat, [*sizes, 1, len(parameters) * self.has_flags]
        )
        self._views = [view.view_as(parameter) for view, parameter in zip(views, parameters, strict=True)]

    def serves(self, parameters: list[nn.Parameter]) -> bool:
        """Whether it was made for these parameters, with their present types and device."""
        return len(parameters) == len(self._parameters) and all(
            a is b and a.dtype == self._flat.dtype and a.device == self._flat.device
            for a, b in zip(parameters, self._parameters, strict=True)
        )

    def filled_with(self, loss: Tensor | None, has_gradient: Sequence[bool]) -> Tensor:
        """The buffer with a copy of each gradient, zeros for missing ones; of the loss; and of which gradients exist."""
        gradients = [
            (view, parameter.grad) for view, parameter in zip(self._views, self._parameters, strict=True)
        ]
        for view, gradient in gradients:
            if gradient is None:
                view.zero_()
        elsewhere = [
            (view, gradient)
            for view, gradient in gradients
            if gradient is not None and gradient.data_ptr() != view.data_ptr()
        ]
        if elsewhere:
            torch._foreach_copy_([view for view, _ in elsewhere], [gradient for _, gradient in elsewhere])
        self._loss.copy_(loss.detach()) if loss is not None else self._loss.zero_()
        if self.has_flags:
            self._flags.copy_(torch.tensor(has_gradient))
        return self._flat

    def has_gradient(self) -> list[bool]:
        """Which gradients exist on any rank, after the buffers of all were summed."""
        return (self._flags > 0).tolist()

    def hand_out(self, has_gradient: Sequence[bool]) -> Tensor:
        """Set gradients to views of the buffer, of parameters with ``has_gradient``; returns the loss, a scalar."""
        for parameter, view, has in zip(self._parameters, self._views, has_gradient, strict=True):
            parameter.grad = view if has else None
        return self._loss[0].clone()
