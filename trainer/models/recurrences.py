"""Time stages: a node's next row from its own rows in earlier snapshots."""

import torch
from torch import Tensor, nn
from typing_extensions import override

from freshet_graph.trainer.models.stages import Carry, TimeStage
from freshet_graph.trainer.nn.means import RectifiedMeans
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
        return self._with_carry(rows, carry, len(rows))

    @override
    def last(self, rows: Tensor, present: Tensor, carry: Carry) -> tuple[Tensor, Carry]:
        if carry is None and not len(rows):
            return super().last(rows, present, carry)
        return self._with_carry(rows, carry, 1)

    def means(self, every: Tensor, newest: int) -> Tensor:
        """The ``newest`` last means, (newest, n, d'), of rows (t, n, d)."""
        ends = range(len(every) - newest + 1, len(every) + 1)
        every_mean = (every[max(0, end - self.bandwidth) : end].mean(dim=0, keepdim=True) for end in ends)
        return torch.cat([every[:0], *every_mean])

    def _with_carry(self, rows: Tensor, carry: Carry, newest: int) -> tuple[Tensor, Carry]:
        every = rows if carry is None else torch.cat([carry, rows])
        return self.means(every, newest), every[max(0, len(every) - self.bandwidth + 1) :]


class RectifiedMean(MovingMean):
    """TM-GCN's layer after its aggregation: the M-product of relu(ÃX W); the carry is rows of ÃX.

    Args:
        inputs: Width of X.
        width: Of the result.
        bandwidth: Snapshots that a mean is over.
    """

    def __init__(self, inputs: int, width: int, bandwidth: int) -> None:
        super().__init__(bandwidth)
        self.linear = nn.Linear(inputs, width, bias=False)
        nn.init.xavier_uniform_(self.linear.weight)

    @override
    def means(self, every: Tensor, newest: int) -> Tensor:
        means: Tensor = RectifiedMeans.apply(every, self.linear.weight, newest, self.bandwidth)  # type: ignore[no-untyped-call]
        return means


class GatedConvolution(TimeStage):
    """T-GCN's cell over aggregated inputs ÃX (Zhao et al. 2020, equations 3 to 6).

    f = ÃX W + b, u = σ(W_u[f_u, h] + b_u), r = σ(W_r[f_r, h] + b_r), c = tanh(W_c[f_c, r ∘ h] + b_c),
    h' = u ∘ h + (1 − u) ∘ c. The state of a node that has not come yet is zero. f is linear, so its weights are multiplied
    with those of the gates, and no row of f is ever made.

    Args:
        inputs: Width of X.
        width: Of the state.
        shared: Whether one convolution f of that width serves all three gates, as in the paper; else there are f_u, f_r and
            f_c, as PyTorch Geometric Temporal has it.
    """

    def __init__(self, inputs: int, width: int, *, shared: bool) -> None:
        super().__init__()
        self.width = width
        self.linear = nn.Linear(inputs, width if shared else 3 * width)
        nn.init.xavier_uniform_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)
        self.update, self.reset, self.candidate = (nn.Linear(2 * width, width) for _ in range(3))

    def forward(self, rows: Tensor, present: Tensor, carry: Carry) -> tuple[Tensor, Carry]:
        """See ``TimeStage.forward``; the carry is the state."""
        return self._states(rows, present, carry, newest=False)

    @override
    def last(self, rows: Tensor, present: Tensor, carry: Carry) -> tuple[Tensor, Carry]:
        if not units_fit(rows):
            return super().last(rows, present, carry)
        return self._states(rows, present, carry, newest=True)

    def _states(self, rows: Tensor, present: Tensor, carry: Carry, *, newest: bool) -> tuple[Tensor, Carry]:
        d = self.width
        state = rows.new_zeros(rows.shape[1], d) if carry is None else carry
        of_inputs, bias, of_state = self._weights()
        if units_fit(rows):
            states = UnrolledGru.apply(rows, of_inputs, bias, of_state, present, state, newest)  # type: ignore[no-untyped-call]
            return states, states[-1]
        inputs = nn.functional.linear(rows, of_inputs, bias)  # one product over all snapshots
        outputs = []
        for step in range(len(rows)):
            for_update, for_reset = (state @ of_state[: 2 * d].t()).chunk(2, dim=1)
            of_update, of_reset, of_candidate = inputs[step].chunk(3, dim=1)
            update, reset = torch.sigmoid(of_update + for_update), torch.sigmoid(of_reset + for_reset)
            candidate = torch.tanh(torch.addmm(of_candidate, reset * state, of_state[2 * d :].t()))
            state = torch.where(present[step].unsqueeze(1), torch.lerp(candidate, state, update), state)
            outputs.append(state)
        return torch.stack(outputs), state

    def _weights(self) -> tuple[Tensor, Tensor, Tensor]:
        """From ÃX to the gates (3 d, inputs), their biases (3 d,), and from the state (3 d, d)."""
        d, gates = self.width, (self.update, self.reset, self.candidate)
        of_f = torch.stack([gate.weight[:, :d] for gate in gates])
        weight, bias = (
            self.linear.weight.view(-1, d, self.linear.in_features),
            self.linear.bias.view(-1, d, 1),
        )
        biases = torch.cat([gate.bias for gate in gates]) + torch.matmul(of_f, bias).flatten()
        return (
            torch.matmul(of_f, weight).flatten(0, 1),
            biases,
            torch.cat([gate.weight[:, d:] for gate in gates]),
        )


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
