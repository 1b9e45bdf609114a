"""``evolvegcn-o``, ``evolvegcn-h``: convolutions whose weights are the state of a recurrent cell (Pareja et al. 2020)."""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from typing_extensions import override

from freshet_graph.schemas.section import Section
from freshet_graph.trainer.models.interface import MODELS, ModelShape
from freshet_graph.trainer.models.layered import ConvolvedOptions, LayeredModel
from freshet_graph.trainer.models.stages import Carry, GraphStage, Stage
from freshet_graph.trainer.nn.aggregate import aggregate_normalised
from freshet_graph.trainer.nn.graph import CSRGraph


class MatrixCell(nn.Module):
    """A recurrent cell whose input and state are matrices (d, h), which it multiplies from the left.

    Args:
        rows: d.
        columns: h.
        gates: Of the cell, the candidate among them.
    """

    def __init__(self, rows: int, columns: int, gates: int) -> None:
        super().__init__()
        self.of_input, self.of_state = (nn.Parameter(torch.empty(gates * rows, rows)) for _ in range(2))
        self.bias = nn.Parameter(torch.zeros(gates * rows, columns))
        for weight in (self.of_input, self.of_state):
            nn.init.uniform_(weight, -(rows**-0.5), rows**-0.5)

    def begun(self, weight: Tensor) -> tuple[Tensor, ...]:
        """The state before the first snapshot."""
        raise NotImplementedError

    def forward(self, x: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The next state, whose first matrix is the weights W, from an input (d, h) and a state of matrices (d, h)."""
        raise NotImplementedError


class MatrixGru(MatrixCell):
    """Z = σ(U_z X + V_z W + B_z), R = σ(U_r X + V_r W + B_r), H = tanh(U_h X + V_h (R ∘ W) + B_h), W' = (1 − Z) ∘ W + Z ∘ H."""

    def __init__(self, rows: int, columns: int) -> None:
        super().__init__(rows, columns, gates=3)  # update, reset, candidate

    @override
    def begun(self, weight: Tensor) -> tuple[Tensor, ...]:
        return (weight,)

    @override
    def forward(self, x: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        (weight,), d = state, len(x)
        of_input = torch.addmm(self.bias, self.of_input, x)
        gates = torch.sigmoid(torch.addmm(of_input[: 2 * d], self.of_state[: 2 * d], weight))
        update, reset = gates.chunk(2)
        candidate = torch.tanh(torch.addmm(of_input[2 * d :], self.of_state[2 * d :], reset * weight))
        return (torch.lerp(weight, candidate, update),)


class MatrixLstm(MatrixCell):
    """I, F, O = σ(U X + V W + B), G = tanh(U X + V W + B), C' = F ∘ C + I ∘ G, W' = O ∘ tanh C'; C begins at zero."""

    def __init__(self, rows: int, columns: int) -> None:
        super().__init__(rows, columns, gates=4)  # input, forget, candidate, output

    @override
    def begun(self, weight: Tensor) -> tuple[Tensor, ...]:
        return weight, torch.zeros_like(weight)

    @override
    def forward(self, x: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        weight, memory = state
        every = torch.addmm(torch.addmm(self.bias, self.of_input, x), self.of_state, weight)
        taken, retained, candidate, shown = every.chunk(4)
        memory = torch.sigmoid(retained) * memory + torch.sigmoid(taken) * torch.tanh(candidate)
        return torch.sigmoid(shown) * torch.tanh(memory), memory


CELLS: dict[str, type[MatrixGru | MatrixLstm]] = {"gru": MatrixGru, "lstm": MatrixLstm}


class EvolvingConvolution(GraphStage):
    """relu(D^−½(A + I)D^−½ X_t W_t) with W_t = cell(W_{t−1}, W_{t−1}), the -O version of the paper.

    W_0 is learned, and a block without a carry begins with it. The carry is the cell's state.

    Args:
        inputs: d, width of X.
        outputs: h, width of the result.
        cell: ``gru`` or ``lstm``.
    """

    def __init__(self, inputs: int, outputs: int, cell: str) -> None:
        super().__init__()
        self.initial = nn.Parameter(torch.empty(inputs, outputs))
        nn.init.uniform_(self.initial, -(outputs**-0.5), outputs**-0.5)
        self.cell = CELLS[cell](inputs, outputs)

    @override
    def weights(
        self, steps: int, carry: Carry, summaries: list[Tensor] | None = None
    ) -> tuple[list[Any], Carry]:
        state: tuple[Tensor, ...] = self.cell.begun(self.initial) if carry is None else carry
        by_step = []
        for step in range(steps):
            state = self.cell(state[0] if summaries is None else summaries[step].t(), state)
            by_step.append(state[0])
        return by_step, state

    def forward(self, graph: CSRGraph, target_rows: Tensor, x: Tensor, weights: Any) -> Tensor:
        """See ``GraphStage.forward``; the graph is symmetric, or some rows of such."""
        return self._convolved(
            [graph], x.unsqueeze(0), [weights], None if target_rows is x else target_rows.unsqueeze(0)
        )[0]

    @override
    def per_snapshot(self, graphs: Sequence[CSRGraph], x: Tensor, weights: Sequence[Any]) -> Tensor:
        return self._convolved(graphs, x, weights, None)

    @staticmethod
    def _convolved(
        graphs: Sequence[CSRGraph], x: Tensor, weights: Sequence[Any], target_rows: Tensor | None
    ) -> Tensor:
        by_snapshot = torch.stack(list(weights))
        if by_snapshot.shape[1] <= by_snapshot.shape[2]:  # the narrower side is aggregated
            return torch.relu_(torch.bmm(aggregate_normalised(graphs, x, target_rows), by_snapshot))
        narrow = None if target_rows is None else torch.bmm(target_rows, by_snapshot)
        return torch.relu_(aggregate_normalised(graphs, torch.bmm(x, by_snapshot), narrow))

    @override
    def alone(self, target_rows: Tensor, weights: Any) -> Tensor:
        return torch.relu_(target_rows @ weights)


class SummarisedConvolution(EvolvingConvolution):
    """As ``EvolvingConvolution`` with W_t = cell(Sᵀ, W_{t−1}), the -H version; S (h, d) is the summary of X_t.

    y = X p/‖p‖, the h nodes of the largest y are chosen, S = (X ∘ tanh y) of them (the paper's section 3.3). Only nodes
    with an edge are chosen; if there are fewer than h, the last is repeated.
    """

    summarises = True

    def __init__(self, inputs: int, outputs: int, cell: str) -> None:
        super().__init__(inputs, outputs, cell)
        self.scorer = nn.Parameter(torch.empty(inputs))
        nn.init.uniform_(self.scorer, -(inputs**-0.5), inputs**-0.5)

    @override
    def summary(self, graph: CSRGraph, x: Tensor) -> Tensor:
        k = self.initial.shape[1]
        if not len(x):
            return x.new_zeros(k, x.shape[1])
        live = graph.degrees > 0
        scores = x @ (self.scorer / self.scorer.norm())
        best = scores.detach().masked_fill(~live, -torch.inf).topk(min(k, len(x))).indices
        count = live.sum()  # stays on the device
        place = torch.arange(k, device=x.device).minimum(count - 1).clamp(min=0)
        chosen = best[place]
        summary = x.index_select(0, chosen) * torch.tanh(scores.index_select(0, chosen)).unsqueeze(1)
        return summary.where(count > 0, 0)


class EvolveGcnOptions(ConvolvedOptions):
    """Options of ``evolvegcn-o`` and ``evolvegcn-h``."""

    cell: Literal["gru", "lstm"] = Field(
        "gru",
        description="Recurrent cell of the weights: gru, as in the authors' code, or lstm, as in the paper of -o.",
    )


@MODELS.register
class EvolveGcnO(LayeredModel):
    """EvolveGCN-O: weights evolve by themselves, so only the newest snapshot's graph is needed for its embeddings."""

    name: ClassVar[str] = "evolvegcn-o"
    Options: ClassVar[type[Section]] = EvolveGcnOptions
    evolving: ClassVar[type[EvolvingConvolution]] = EvolvingConvolution

    def __init__(self, shape: ModelShape, options: EvolveGcnOptions) -> None:
        self._cell = options.cell
        super().__init__(shape, options)

    @override
    def layer(self, inputs: int) -> Sequence[Stage]:
        return [self.convolution(self.evolving(inputs, self.width, self._cell), inputs, self.width)]


@MODELS.register
class EvolveGcnH(EvolveGcnO):
    """EvolveGCN-H: weights evolve by a summary of each snapshot: the rows of its ``hidden`` best nodes.

    Here ``gru`` is the cell of both the paper and the authors' code.
    """

    name: ClassVar[str] = "evolvegcn-h"
    evolving: ClassVar[type[EvolvingConvolution]] = SummarisedConvolution
