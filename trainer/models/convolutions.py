"""Graph stages: a node's next row from its neighbours' rows in the same snapshot."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from typing_extensions import override

from freshet_graph.trainer.models.stages import GraphStage
from freshet_graph.trainer.nn.aggregate import aggregate_mean, aggregate_normalised, beside_mean
from freshet_graph.trainer.nn.graph import CSRGraph


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

    @override
    def forward(self, graph: CSRGraph, target_rows: Tensor, x: Tensor, weights: Any) -> Tensor:
        # aggregate first: blocks have many sources and few targets
        neighbours = aggregate_mean(graph, x)
        return torch.relu(torch.addmm(self.own(target_rows), neighbours, self.neighbours.weight.t()))

    def gather(self, graph: CSRGraph, target_places: Tensor, x: Tensor) -> Tensor:
        """See ``GraphStage.gather``: both rows of a target side by side."""
        return beside_mean(graph, target_places, x)

    @override
    def gathered(self, table: Tensor) -> Tensor:
        both = torch.cat([self.own.weight, self.neighbours.weight], dim=1)
        return torch.relu(nn.functional.linear(table, both, self.own.bias))

    @override
    def alone(self, target_rows: Tensor, weights: Any) -> Tensor:
        return torch.relu(self.own(target_rows))


class LaplacianAggregation(GraphStage):
    """D^−½(A + I)D^−½ X (Kipf and Welling 2017), for a next stage with the weights."""

    keeps_zeros: ClassVar[bool] = True

    def forward(self, graph: CSRGraph, target_rows: Tensor, x: Tensor, weights: Any) -> Tensor:
        """See ``GraphStage.forward``; the graph is symmetric, or some rows of such."""
        own_rows = None if target_rows is x else target_rows.unsqueeze(0)
        return aggregate_normalised([graph], x.unsqueeze(0), own_rows)[0]

    @override
    def per_snapshot(self, graphs: Sequence[CSRGraph], x: Tensor, weights: Sequence[Any]) -> Tensor:
        return aggregate_normalised(graphs, x)

    @override
    def alone(self, target_rows: Tensor, weights: Any) -> Tensor:
        return target_rows


class LaplacianConvolution(GraphStage):
    """f(D^−½(A + I)D^−½ X W + b) (Kipf and Welling 2017).

    Args:
        inputs: Width of X.
        outputs: Width of the result.
        bias: Whether there is b.
        activation: f, which may change its argument in place; None: the identity.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        bias: bool = True,
        activation: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs, bias=bias)
        self._activation = activation
        nn.init.xavier_uniform_(self.linear.weight)
        if bias:
            nn.init.zeros_(self.linear.bias)

    def forward(self, graph: CSRGraph, target_rows: Tensor, x: Tensor, weights: Any) -> Tensor:
        """See ``GraphStage.forward``; the graph is symmetric, or some rows of such."""
        return self._convolved(
            [graph], x.unsqueeze(0), None if target_rows is x else target_rows.unsqueeze(0)
        )[0]

    def per_snapshot(self, graphs: Sequence[CSRGraph], x: Tensor, weights: Sequence[Any]) -> Tensor:
        """See ``GraphStage.per_snapshot``: one product with W for all snapshots."""
        return self._convolved(graphs, x, None)

    def _convolved(self, graphs: Sequence[CSRGraph], x: Tensor, target_rows: Tensor | None) -> Tensor:
        if self.linear.in_features <= self.linear.out_features:  # the narrower side is aggregated
            return self._activated(self.linear(aggregate_normalised(graphs, x, target_rows)))
        narrow = partial(nn.functional.linear, weight=self.linear.weight)
        aggregated = aggregate_normalised(
            graphs, narrow(x), None if target_rows is None else narrow(target_rows)
        )
        return self._activated(aggregated if self.linear.bias is None else aggregated + self.linear.bias)

    def alone(self, target_rows: Tensor, weights: Any) -> Tensor:
        """See ``GraphStage.alone``: without neighbours the operator is the identity."""
        return self._activated(self.linear(target_rows))

    def _activated(self, rows: Tensor) -> Tensor:
        return rows if self._activation is None else self._activation(rows)


class ConcatenatedConvolution(GraphStage):
    """A convolution beside its inputs: CD-GCN's skip connection.

    Args:
        inputs: Width of X.
        outputs: Width of the convolution; rows have both widths.
        skip: ``aggregated``: relu(ÃX ‖ ÃXW), as ESDG has it; ``inputs``: X ‖ relu(ÃXW), as Manessi et al. (2020) have it.
    """

    def __init__(self, inputs: int, outputs: int, *, skip: str) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs, bias=False)
        self._skip = skip
        nn.init.xavier_uniform_(self.linear.weight)

    def forward(self, graph: CSRGraph, target_rows: Tensor, x: Tensor, weights: Any) -> Tensor:
        """See ``GraphStage.forward``; the graph is symmetric, or some rows of such."""
        table = None if target_rows is x else target_rows.unsqueeze(0)
        return self._beside(target_rows, aggregate_normalised([graph], x.unsqueeze(0), table)[0])

    @override
    def per_snapshot(self, graphs: Sequence[CSRGraph], x: Tensor, weights: Sequence[Any]) -> Tensor:
        return self._beside(x, aggregate_normalised(graphs, x))

    @override
    def alone(self, target_rows: Tensor, weights: Any) -> Tensor:
        return self._beside(target_rows, target_rows)

    def _beside(self, x: Tensor, aggregated: Tensor) -> Tensor:
        convolved = self.linear(aggregated)
        if self._skip == "inputs":
            return torch.cat([x, torch.relu_(convolved)], dim=-1)
        return torch.relu_(torch.cat([aggregated, convolved], dim=-1))
