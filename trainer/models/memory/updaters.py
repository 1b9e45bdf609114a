"""The memory updater: a node's next state from its mail (TGN equation 4).

The mail's row [own ‖ other ‖ e] has the state itself in front, and most weights of a cell meet it twice: as the state
and, with ``own``, as part of the message. So W_i · message + W_h · state is one product with the row, with the weights
of both added up, a sixth of the work less.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad

from trainer.nn.products import Table


class Gated(nn.GRUCell):
    """A gated recurrent unit over [own ‖ other ‖ e ‖ φ(Δt)]; TGN and TIGE use it.

    Args:
        message: Width of the message.
        memory: d, width of states.
        own: Whether the state is part of the message.

    Attributes:
        products: Type that matrix products are made in while training; None: that of the states.
    """

    products: torch.dtype | None = None

    def __init__(self, message: int, memory: int, *, own: bool) -> None:
        super().__init__(message, memory)
        self.own = own

    def forward(self, message: tuple[Tensor, Tensor]) -> Tensor:  # type: ignore[override]
        """Next states (n, d) from mails' rows (n, 2 d + edges) and φ (n, T)."""
        row, timed = message
        d = self.hidden_size
        # the new state's part of W_h stands alone: what it gives is multiplied with the reset gate
        twice = pad(self.weight_hh[: 2 * d], (0, row.shape[1] - d, 0, d))
        by_row, by_time = _weights(self, row.shape[1])
        bias = self.bias_ih + pad(self.bias_hh[: 2 * d], (0, d))
        updated: Tensor = _Gates.apply(  # type: ignore[no-untyped-call]  # torch's apply is untyped
            row, timed, by_row + twice, by_time, bias, self.weight_hh[2 * d :], self.bias_hh[2 * d :],
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
        """Next states (n, d) from mails' rows (n, 2 d + edges) and φ (n, T)."""
        row, timed = message
        by_row, by_time = _weights(self, row.shape[1])
        by_row = by_row + pad(self.weight_hh, (0, row.shape[1] - self.hidden_size))
        bias = self.bias_ih + self.bias_hh
        products = self.products if self.training else None
        if products is None:
            return torch.tanh(linear(row, by_row, bias) + linear(timed, by_time))
        halved = [linear(x.to(products), w.to(products)) for x, w in ((row, by_row), (timed, by_time))]
        return torch.tanh((halved[0] + halved[1]).to(row.dtype) + bias)


def _weights(cell: Gated | Plain, width: int) -> tuple[Tensor, Tensor]:
    """W_i as it meets the mail's row of ``width``, and as it meets φ."""
    message = width if cell.own else width - cell.hidden_size
    by_row = cell.weight_ih[:, :message]
    return by_row if cell.own else pad(by_row, (cell.hidden_size, 0)), cell.weight_ih[:, message:]


class _Gates(torch.autograd.Function):
    """The gated unit of the weights above; its gradient is four products and one pass over the gates.

    ``row`` has no gradient: states in a mail are as they were when it was left.
    """

    @staticmethod
    def forward(
        ctx: Any,
        row: Tensor,
        timed: Tensor,
        by_row: Tensor,
        by_time: Tensor,
        bias: Tensor,
        by_state: Tensor,
        state_bias: Tensor,
        products: torch.dtype | None,
    ) -> Tensor:
        d = by_state.shape[1]
        state = row[:, :d]
        x, h = Table(row, products), Table(timed, products)
        gates = x.times(by_row).add_(h.times(by_time)).add_(bias)
        reset, keep = gates[:, : 2 * d].sigmoid_().chunk(2, dim=1)
        told = x.columns(0, d).times(by_state).add_(state_bias)
        new = gates[:, 2 * d :].addcmul_(reset, told).tanh_()
        ctx.save_for_backward(row, timed, by_time, gates, told)
        ctx.products = products
        return torch.lerp(new, state, keep)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        row, timed, by_time, gates, told = ctx.saved_tensors
        d = told.shape[1]
        reset, keep, new = gates.chunk(3, dim=1)
        by_gates = torch.empty_like(gates)
        by_reset, by_keep, by_new = by_gates.chunk(3, dim=1)
        torch.mul(gradients[0], 1 - keep, out=by_new)
        by_new.mul_(1 - new * new)
        torch.mul(gradients[0], row[:, :d] - new, out=by_keep)
        by_keep.mul_(keep).mul_(1 - keep)
        by_told = by_new * reset
        torch.mul(by_told, told, out=by_reset)
        by_reset.mul_(1 - reset)
        x, h = Table(row, ctx.products), Table(timed, ctx.products)
        g, t = Table(by_gates, ctx.products), Table(by_told, ctx.products)
        return (
            None,
            g.times(by_time.t()) if ctx.needs_input_grad[1] else None,
            g.summed_with(x),
            g.summed_with(h),
            by_gates.sum(dim=0),
            t.summed_with(x.columns(0, d)),
            by_told.sum(dim=0),
            None,
        )


UPDATERS: dict[str, type[Gated] | type[Plain]] = {"gru": Gated, "rnn": Plain}
