"""Exchanges of rows with gradients that travel back the same way; both directions can be awaited later."""

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from trainer.wire.traffic import Flight

T = TypeVar("T")
Launch = Callable[[Tensor, Sequence[int], Sequence[int], str], Flight]
"""Begins an exchange of rows: how many go to each rank, how many come from each, and the purpose."""


class Handle(Generic[T]):
    """The result of a collective that has begun; ``arrive`` waits and makes it.

    Every handle is waited for, in one order on all ranks: gradients set out in the opposite order.
    """

    def __init__(self, arrive: Callable[[], T]) -> None:
        self._arrive = arrive
        self._found: list[T] = []

    def wait(self) -> T:
        """The result, the same object at each call."""
        if not self._found:
            self._found.append(self._arrive())
        return self._found[0]


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
