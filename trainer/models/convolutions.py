"""Graph stages: what a node's row becomes from its neighbours' rows in the same snapshot."""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from trainer.models.stages import GraphStage
from trainer.nn.aggregate import aggregate_mean, aggregate_normalised
from trainer.nn.csr_graph import CSRGraph


class Sage(GraphStage):
    """GraphSAGE with mean aggregation: relu(W₁ h(v) + W₂ · mean of h(u) over the neighbours u of v + b) (Hamilton et al. 2017).

    Args:
        inputs: Width of h.
        outputs: Width of the result.
        fanout: Neighbours that strategies which sample draw; None takes all.
    """

    samples: ClassVar[bool] = True

    def __init__(self, inputs: int, outputs: int, fanout: int | None) -> None:
        super().__init__()
        self.fanout = fanout
        self.own = nn.Linear(inputs, outputs)
        self.neighbours = nn.Linear(inputs, outputs, bias=False)
        for linear in (self.own, self.neighbours):
            nn.init.xavier_uniform_(linear.weight, gain=nn.init.calculate_gain("relu"))
        nn.init.zeros_(self.own.bias)

    def forward(self, graph: CSRGraph, own: Tensor, x: Tensor, weights: Any) -> Tensor:
        """See ``GraphStage.forward``."""
        # aggregate first: blocks have many sources and few targets
        return torch.relu(torch.addmm(self.own(own), aggregate_mean(graph, x), self.neighbours.weight.t()))

    def alone(self, own: Tensor, weights: Any) -> Tensor:
        """See ``GraphStage.alone``."""
        return torch.relu(self.own(own))


class LaplacianConvolution(GraphStage):
    """D^−½(A + I)D^−½ X W + b, without a non-linearity (Kipf and Welling 2017).

    Args:
        inputs: Width of X.
        outputs: Width of the result.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)
        nn.init.xavier_uniform_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, graph: CSRGraph, own: Tensor, x: Tensor, weights: Any) -> Tensor:
        """See ``GraphStage.forward``; the graph is symmetric."""
        if self.linear.in_features <= self.linear.out_features:  # the narrower side is aggregated
            wide: Tensor = self.linear(aggregate_normalised(graph, x))
            return wide
        return aggregate_normalised(graph, x @ self.linear.weight.t()) + self.linear.bias

    def alone(self, own: Tensor, weights: Any) -> Tensor:
        """See ``GraphStage.alone``: without neighbours the operator is the identity."""
        rows: Tensor = self.linear(own)
        return rows
