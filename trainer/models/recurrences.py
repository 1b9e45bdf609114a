"""Time stages: a node's next row from its own rows in earlier snapshots."""

from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from freshet_graph.trainer.models.stages import Carry, TimeStage
from freshet_graph.trainer.nn.recurrent import UnrolledGru, UnrolledLstm, units_fit


class LastLinear(TimeStage, nn.Linear):
    """A linear model over a node's rows in the last ``window`` snapshots (DistDy section 5.1); before the first they are zero.

    Args:
        window: Snapshots.
        width: Of rows, in and out.
    """

    def __init__(self, window: int, width: int) -> None:
        nn.Linear.__init__(self, window * width, width)
        self.window = window

    def forward(self, rows: Tensor, present: Tensor, carry: Carry) -> tuple[Tensor, Carry]:  # type: ignore[override]
        """See ``TimeStage.forward``; the carry is the last ``window`` − 1 rows."""
        every = self._with_past(rows, carry)
        outputs = [self._output(every[step : step + self.window]) for step in range(len(rows))]
        return torch.stack(outputs), every[len(every) - self.window + 1 :]

    @override
    def last(self, rows: Tensor, present: Tensor, carry: Carry) -> tuple[Tensor, Carry]:
        if carry is None and len(rows) == self.window:  # as in most passes: nothing is missing
            return self._output(rows).unsqueeze(0), rows[1:]
        every = self._with_past(rows, carry)
        if not len(rows):  # no node has come yet
            every = torch.cat([every[:1], every]) if len(every) else rows.new_zeros(1, *rows.shape[1:])
        return self._output(every[-self.window :]).unsqueeze(0), every[len(every) - self.window + 1 :]

    def before_any(self, rows: Tensor) -> Tensor:
        """See ``TimeStage.before_any``: the bias, as for a window of zero rows."""
        return rows + self.bias

    def _with_past(self, rows: Tensor, carry: Carry) -> Tensor:
        before = rows.new_zeros(self.window - 1, *rows.shape[1:]) if carry is None else carry
        return torch.cat([before, rows])

    def _output(self, rows: Tensor) -> Tensor:
        return nn.functional.linear(rows.permute(1, 0, 2).flatten(1), self.weight, self.bias)


class MovingMean(TimeStage):
    """The M-product of TM-GCN: the mean of a node's last min(``bandwidth``, t) rows (Malik et al. 2021).

    The carry is the rows that the next means need; without one t counts from the block's first snapshot.
    """

    def __init__(self, bandwidth: int) -> None:
        super().__init__()
        self.bandwidth = bandwidth

    @override
    def forward(self, rows: Tensor, present: Tensor, carry: Carry) -> tuple[Tensor, Carry]:
        every, next_carry = self._with_past(rows, carry)
        means: Tensor = _Means.apply(every, len(rows), self.bandwidth)  # type: ignore[no-untyped-call]
        return means, next_carry

    @override
    def last(self, rows: Tensor, present: Tensor, carry: Carry) -> tuple[Tensor, Carry]:
        every, next_carry = self._with_past(rows, carry)
        return every[-self.bandwidth :].mean(dim=0, keepdim=True), next_carry

    def _with_past(self, rows: Tensor, carry: Carry) -> tuple[Tensor, Tensor]:
        every = rows if carry is None else torch.cat([carry, rows])
        return every, every[max(0, len(every) - self.bandwidth + 1) :]


class _Means(torch.autograd.Function):
    """Means over the last ``bandwidth`` rows of the newest ``steps``; autograd's slices would cost steps² copies."""

    @staticmethod
    def forward(ctx: Any, every: Tensor, steps: int, bandwidth: int) -> Tensor:
        ctx.past, ctx.bandwidth = len(every) - steps, bandwidth
        out = every.new_empty(steps, *every.shape[1:])
        for end, result in enumerate(out, ctx.past + 1):
            torch.mean(every[max(0, end - bandwidth) : end], dim=0, out=result)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (gradient,), past, b = gradients, ctx.past, ctx.bandwidth
        counts = torch.arange(past + 1, past + len(gradient) + 1, device=gradient.device).clamp(max=b)
        shares = gradient / counts.view(-1, 1, 1)
        out = gradient.new_empty(past + len(gradient), *gradient.shape[1:])
        for first, result in enumerate(out, -past):
            torch.sum(shares[max(0, first) : max(0, first + b)], dim=0, out=result)
        return out, None, None


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

    def forward(self, rows: Tensor, present: Tensor, carry: Carry) -> tuple[Tensor, Carry]:
        """See ``TimeStage.forward``; the carry is the state."""
        d, gates = self.width, (self.update, self.reset, self.candidate)
        state = rows.new_zeros(rows.shape[1], d) if carry is None else carry
        if units_fit(rows):
            weights, biases = (torch.cat([getattr(gate, of) for gate in gates]) for of in ("weight", "bias"))
            states = UnrolledGru.apply(rows, weights, biases, present, state)  # type: ignore[no-untyped-call]
            return states, states[-1]
        by_gate = [rows] * 3 if self._shared else torch.split(rows, d, dim=2)
        # the gates' products with their convolutions, over all snapshots at once
        inputs = [
            nn.functional.linear(convolved, gate.weight[:, :d], gate.bias)
            for convolved, gate in zip(by_gate, gates, strict=True)
        ]
        of_state = torch.cat([self.update.weight[:, d:], self.reset.weight[:, d:]])
        of_kept = self.candidate.weight[:, d:]
        outputs = []
        for step in range(len(rows)):
            for_update, for_reset = (state @ of_state.t()).chunk(2, dim=1)
            update = torch.sigmoid(inputs[0][step] + for_update)
            reset = torch.sigmoid(inputs[1][step] + for_reset)
            candidate = torch.tanh(torch.addmm(inputs[2][step], reset * state, of_kept.t()))
            state = torch.where(present[step].unsqueeze(1), torch.lerp(candidate, state, update), state)
            outputs.append(state)
        return torch.stack(outputs), state


class Lstm(TimeStage):
    """One long short-term memory that all nodes share (Hochreiter and Schmidhuber 1997; Gers et al. 2000).

    i, f, o = σ(W x + U h + b), g = tanh(W x + U h + b), c' = f ∘ c + i ∘ g, h' = o ∘ tanh c'. The state of a node that
    has not come yet is zero.

    Args:
        inputs: Width of x.
        width: Of h and c.
    """

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.width = width
        self.of_inputs = nn.Linear(inputs, 4 * width)  # rows: i, f, g, o, as torch.nn.LSTM has them
        self.of_state = nn.Linear(width, 4 * width, bias=False)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -(width**-0.5), width**-0.5)

    def forward(self, rows: Tensor, present: Tensor, carry: Carry) -> tuple[Tensor, Carry]:
        """See ``TimeStage.forward``; the carry is (h, c)."""
        none = rows.new_zeros(rows.shape[1], self.width)
        h, c = (none, none) if carry is None else carry
        if units_fit(rows):
            states, c = UnrolledLstm.apply(  # type: ignore[no-untyped-call]
                rows, self.of_inputs.weight, self.of_inputs.bias, self.of_state.weight, present, h, c
            )
            return states, (states[-1], c)
        pre = self.of_inputs(rows)  # one product over all snapshots
        outputs = []
        for of_inputs, come in zip(pre, present.unsqueeze(2), strict=True):
            gates = torch.addmm(of_inputs, h, self.of_state.weight.t())
            opened, forgotten, candidate, shown = gates.chunk(4, dim=1)
            cell = torch.sigmoid(forgotten) * c + torch.sigmoid(opened) * torch.tanh(candidate)
            h = torch.where(come, torch.sigmoid(shown) * torch.tanh(cell), h)
            c = torch.where(come, cell, c)
            outputs.append(h)
        return torch.stack(outputs), (h, c)
