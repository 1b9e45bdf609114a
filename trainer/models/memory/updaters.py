"""The memory updater: a node's next state from its state and the message (TGN equation 4)."""

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad

_ROWS_STEP = 512


class Gated(nn.GRUCell):
    """A gated recurrent unit over a message in two parts; TGN and TIGE use it.

    Attributes:
        products: Type that matrix products are made in while training; None: that of the states.
    """

    products: torch.dtype | None = None

    def forward(self, message: tuple[Tensor, Tensor], state: Tensor) -> Tensor:  # type: ignore[override]
        """Next states (n, d) from messages of n rows and states (n, d)."""
        x, h = _products(self, message, state)
        d = self.hidden_size
        gates = torch.sigmoid(x[:, : 2 * d] + h[:, : 2 * d])
        reset, keep = gates[:, :d], gates[:, d:]
        new = torch.tanh(torch.addcmul(x[:, 2 * d :], reset, h[:, 2 * d :]))
        return torch.lerp(new, state, keep)


class Plain(nn.RNNCell):
    """A recurrent unit with tanh over a message in two parts; JODIE and DyRep use it. ``products``: see ``Gated``."""

    products: torch.dtype | None = None

    def forward(self, message: tuple[Tensor, Tensor], state: Tensor) -> Tensor:  # type: ignore[override]
        """Next states (n, d) from messages of n rows and states (n, d)."""
        x, h = _products(self, message, state)
        return torch.tanh(x + h)


def _products(cell: "Gated | Plain", message: tuple[Tensor, Tensor], state: Tensor) -> tuple[Tensor, Tensor]:
    """W_i · message + b_i and W_h · state + b_h; while training in the cell's ``products``."""
    mailed, timed = message
    if not cell.training or cell.products is None:
        weight, width = cell.weight_ih, mailed.shape[1]
        x = linear(mailed, weight[:, :width], cell.bias_ih) + linear(timed, weight[:, width:])
        return x, linear(state, cell.weight_hh, cell.bias_hh)
    # kernels for small types are made for one shape each: padded, few shapes occur
    rows = len(state)
    more = -rows % _ROWS_STEP
    mailed, timed, hidden = (pad(part.to(cell.products), (0, 0, 0, more)) for part in (mailed, timed, state))
    x = linear(torch.cat([mailed, timed], dim=1), cell.weight_ih.to(cell.products))[:rows]
    h = linear(hidden, cell.weight_hh.to(cell.products))[:rows]
    return x.to(state.dtype) + cell.bias_ih, h.to(state.dtype) + cell.bias_hh


UPDATERS: dict[str, type[Gated] | type[Plain]] = {"gru": Gated, "rnn": Plain}
