"""The memory updater: a node's next state from its mail (TGN equation 4).

The mail's row [own ‖ other ‖ e] begins with the state itself, and most weights of a cell meet it twice: as the state
and, with ``own``, as part of the message. So W_i · message + W_h · state is one product of the row with the sum of both
weights, a sixth of the work less.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad

from trainer.nn.gated_unit import GatedUnit


class Gated(nn.GRUCell):
    """A gated recurrent unit over [own ‖ other ‖ e ‖ φ(Δt)]; TGN and TIGE use it.

    Args:
        message: Width of the message.
        memory: d, width of states.
        own: Whether the state is part of the message.

    Attributes:
        products: Type of matrix products while training; None: that of the states.
    """

    products: torch.dtype | None = None

    def __init__(self, message: int, memory: int, *, own: bool) -> None:
        super().__init__(message, memory)
        self.own = own

    def forward(self, message: tuple[Tensor, Tensor]) -> Tensor:  # type: ignore[override]
        """Next states (n, d) from mails' rows (n, d + other + edges) and φ (n, T)."""
        updated: Tensor = GatedUnit.apply(  # type: ignore[no-untyped-call]  # torch's apply is untyped
            *message, self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh, self.own,
            self.products if self.training else None,
        )  # fmt: skip
        return updated


class Plain(nn.RNNCell):
    """A recurrent unit with tanh over a message; JODIE and DyRep use it. See ``Gated``."""

    products: torch.dtype | None = None

    def __init__(self, message: int, memory: int, *, own: bool) -> None:
        super().__init__(message, memory)
        self.own = own

    def forward(self, message: tuple[Tensor, Tensor]) -> Tensor:  # type: ignore[override]
        """Next states (n, d) from mails' rows (n, d + other + edges) and φ (n, T)."""
        row, timed = message
        by_row, by_time = _weights(self, row.shape[1])
        by_row = by_row + pad(self.weight_hh, (0, row.shape[1] - self.hidden_size))
        bias = self.bias_ih + self.bias_hh
        products = self.products if self.training else None
        if products is None:
            return torch.tanh(linear(row, by_row, bias) + linear(timed, by_time))
        halved = [linear(x.to(products), w.to(products)) for x, w in ((row, by_row), (timed, by_time))]
        return torch.tanh((halved[0] + halved[1]).to(row.dtype) + bias)


def _weights(cell: Plain, width: int) -> tuple[Tensor, Tensor]:
    """The parts of W_i for the mail's row of ``width`` and for φ."""
    message = width if cell.own else width - cell.hidden_size
    by_row = cell.weight_ih[:, :message]
    return by_row if cell.own else pad(by_row, (cell.hidden_size, 0)), cell.weight_ih[:, message:]


UPDATERS: dict[str, type[Gated] | type[Plain]] = {"gru": Gated, "rnn": Plain}
