"""Time stages: what a node's row becomes from its own rows in the snapshots before."""

import torch
from torch import Tensor, nn

from trainer.models.stages import Carry, TimeStage


class LastLinear(TimeStage, nn.Linear):
    """A linear model over a node's rows in the last ``window`` snapshots (DistDy section 5.1); before the first they are zero.

    Args:
        window: Snapshots.
        width: Of rows, in and out.
    """

    def __init__(self, window: int, width: int) -> None:
        nn.Linear.__init__(self, window * width, width)
        self.window = window

    def forward(self, rows: Tensor, there: Tensor, carry: Carry) -> tuple[Tensor, Carry]:  # type: ignore[override]
        """See ``TimeStage.forward``; the carry is the last ``window`` − 1 rows."""
        every = self._with_past(rows, carry)
        found = [self._at(every[at : at + self.window]) for at in range(len(rows))]
        return torch.stack(found), every[len(every) - self.window + 1 :]

    def last(self, rows: Tensor, there: Tensor, carry: Carry) -> tuple[Tensor, Carry]:
        """See ``TimeStage.last``."""
        every = self._with_past(rows, carry)
        if not len(rows):  # nothing was there yet
            every = torch.cat([every[:1], every]) if len(every) else rows.new_zeros(1, *rows.shape[1:])
        return self._at(every[-self.window :]).unsqueeze(0), every[len(every) - self.window + 1 :]

    def _with_past(self, rows: Tensor, carry: Carry) -> Tensor:
        before = rows.new_zeros(self.window - 1, *rows.shape[1:]) if carry is None else carry
        return torch.cat([before, rows])

    def _at(self, rows: Tensor) -> Tensor:
        return nn.Linear.forward(self, rows.permute(1, 0, 2).flatten(1))


class GatedConvolution(TimeStage):
    """The gates of T-GCN over convolved inputs (Zhao et al. 2020, equations 3 to 6).

    u = σ(W_u[f_u, h] + b_u), r = σ(W_r[f_r, h] + b_r), c = tanh(W_c[f_c, r ∘ h] + b_c), h' = u ∘ h + (1 − u) ∘ c. The
    state of a node that has not come yet is zero.

    Args:
        width: Of the state.
        shared: Whether one convolution f of that width serves all three gates, as in the paper; else the rows hold f_u, f_r
            and f_c side by side, as PyTorch Geometric Temporal has it.
    """

    def __init__(self, width: int, *, shared: bool) -> None:
        super().__init__()
        self.width = width
        self._shared = shared
        self.update, self.reset, self.candidate = (nn.Linear(2 * width, width) for _ in range(3))

    def forward(self, rows: Tensor, there: Tensor, carry: Carry) -> tuple[Tensor, Carry]:
        """See ``TimeStage.forward``; the carry is the state."""
        d = self.width
        by_gate = [rows] * 3 if self._shared else torch.split(rows, d, dim=2)
        # what the gates take from their convolutions is one product over all snapshots
        inputs = [
            nn.functional.linear(convolved, gate.weight[:, :d], gate.bias)
            for convolved, gate in zip(by_gate, (self.update, self.reset, self.candidate), strict=True)
        ]
        of_state = torch.cat([self.update.weight[:, d:], self.reset.weight[:, d:]]).t()
        of_kept = self.candidate.weight[:, d:].t()
        state = rows.new_zeros(rows.shape[1], d) if carry is None else carry
        found = []
        for at in range(len(rows)):
            for_update, for_reset = (state @ of_state).split(d, dim=1)
            update = torch.sigmoid(inputs[0][at] + for_update)
            reset = torch.sigmoid(inputs[1][at] + for_reset)
            candidate = torch.tanh(torch.addmm(inputs[2][at], reset * state, of_kept))
            state = torch.where(there[at].unsqueeze(1), torch.lerp(candidate, state, update), state)
            found.append(state)
        return torch.stack(found), state
