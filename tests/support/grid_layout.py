"""The plainest layout for stages, and what their weights are as arrays."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from freshet_graph.trainer.models.stages import CellStage, GraphStage, Stage
from freshet_graph.trainer.nn.graph import CSRGraph, DirectedGraph


class Grid:
    """A layout that holds all snapshots and all nodes."""

    def __init__(self, graphs: list[CSRGraph], x: Tensor, there: Tensor) -> None:
        self.steps, self._graphs, self._x, self._there = len(graphs), graphs, x, there

    def inputs(self) -> Tensor:
        return self._x

    def along_graph(self, stage: GraphStage, weights: list[Any], x: Tensor) -> Tensor:
        first = self.steps - len(weights)
        return stage.per_snapshot(self._graphs[first:], x[len(x) - len(weights) :], weights)

    def summaries(self, stage: GraphStage, x: Tensor) -> list[Tensor]:
        return [stage.summary(g, row) for g, row in zip(self._graphs, x, strict=True)]

    def along_both(self, stage: CellStage, x: Tensor, carry: Any) -> tuple[Tensor, Any]:
        state, found = carry, []
        for graph, rows, there in zip(self._graphs, x, self._there, strict=True):
            state = stage(DirectedGraph(graph, graph.transpose), rows, state) * there.unsqueeze(1)
            found.append(state)
        return torch.stack(found), state

    def to_nodes(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, self._there[self.steps - len(x) :]

    def to_snapshots(self, rows: Tensor) -> Tensor:
        return rows

    def embeddings(self, x: Tensor) -> Tensor:
        return x


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def arrays(stage: Stage) -> dict[str, np.ndarray]:
    return {name: value.detach().numpy() for name, value in stage.named_parameters()}
