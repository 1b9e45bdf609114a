"""``dcrnn``: diffusion along directed edges inside the gates of a recurrent cell (DCRNN, Li et al. 2018; as DynaHB trains it).

A cell stage makes a node's next state from inputs and states of its neighbours in the same snapshot.
"""

from collections.abc import Sequence
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from typing_extensions import override

from freshet_graph.schemas.section import Section
from freshet_graph.trainer.models.interface import MODELS, ModelShape
from freshet_graph.trainer.models.layered import LayeredModel, LayeredOptions
from freshet_graph.trainer.models.stages import CellStage, Stage
from freshet_graph.trainer.nn.aggregate import aggregate_mean
from freshet_graph.trainer.nn.graph import DirectedGraph


class DiffusionCell(CellStage):
    """A gated recurrent unit whose products are diffusion convolutions (DCRNN, Li et al. 2018, equations 2 and 3).

    X ⋆ Θ = X Θ₀ + Σ_{0<k<K} ((D_O⁻¹W)ᵏ X Θ_k + (D_I⁻¹Wᵀ)ᵏ X Θ'_k) + b, u = σ([X, h] ⋆ Θ_u), r = σ([X, h] ⋆ Θ_r),
    c = tanh([X, r ∘ h] ⋆ Θ_c), h' = u ∘ h + (1 − u) ∘ c. Walks stop at a node that they cannot leave.

    Args:
        inputs: Width of X.
        width: Of the state.
        terms: K, of the sum over powers.
    """

    def __init__(self, inputs: int, width: int, terms: int) -> None:
        super().__init__()
        self.width, self.terms = width, terms
        # The candidate reads reset states, and the reset gates read states: terms − 1 hops each.
        self.hops = 2 * (terms - 1)
        matrices = 2 * terms - 1
        self.of_inputs = nn.Linear(matrices * inputs, 3 * width)
        self.of_state = nn.Linear(matrices * width, 2 * width, bias=False)
        self.of_reset = nn.Linear(matrices * width, width, bias=False)
        for linear in (self.of_inputs, self.of_state, self.of_reset):
            for gate in linear.weight.chunk(len(linear.weight) // width):
                nn.init.xavier_uniform_(gate)
        nn.init.zeros_(self.of_inputs.bias)
        nn.init.ones_(self.of_inputs.bias[: 2 * width])  # gates begin open, as in the authors' code

    @override
    def forward(self, graph: DirectedGraph | None, x: Tensor, state: Tensor | None) -> Tensor:
        inputs = self.of_inputs(self._diffused(graph, x))
        if state is None:
            state = x.new_zeros(len(x), self.width)
        both = 2 * self.width
        gates = torch.sigmoid(inputs[:, :both] + self.of_state(self._diffused(graph, state)))
        update, reset = gates.chunk(2, dim=1)
        candidate = torch.tanh(inputs[:, both:] + self.of_reset(self._diffused(graph, reset * state)))
        return torch.lerp(candidate, state, update)

    def _diffused(self, graph: DirectedGraph | None, x: Tensor) -> Tensor:
        """X and its walks of each length, along edges and against them, side by side."""
        walks = [x]
        for step in (graph.out_of, graph.into) if graph is not None else ():
            walked = x
            for _ in range(1, self.terms):
                walked = aggregate_mean(step, walked)
                walks.append(walked)
        return torch.cat(walks, dim=1)


class DcrnnOptions(LayeredOptions):
    """Options of ``dcrnn``."""

    terms: int = Field(
        2,
        ge=1,
        le=64,
        description="K, the terms of a diffusion: 1 looks at no neighbour; the authors' max_diffusion_step is K − 1.",
    )


@MODELS.register
class Dcrnn(LayeredModel):
    """DCRNN's encoder: states are convolved with inputs, so a layer is one cell."""

    name: ClassVar[str] = "dcrnn"
    Options: ClassVar[type[Section]] = DcrnnOptions

    def __init__(self, shape: ModelShape, options: DcrnnOptions) -> None:
        self._terms = options.terms
        super().__init__(shape, options)

    @override
    def layer(self, inputs: int) -> Sequence[Stage]:
        return [DiffusionCell(inputs, self.width, self._terms)]
