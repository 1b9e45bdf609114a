"""A layout that holds every row: all nodes of a horizon in all of its snapshots, on one rank."""

from typing import Any

import torch
from torch import Tensor

from trainer.models.interface import SnapshotModel
from trainer.models.stages import Carry, CellStage, GraphStage
from trainer.timeline.horizon import Horizon


class WholeLayout:
    """The layout of one rank that holds every row; the reference of all others.

    Args:
        horizon: The snapshots, at least one.
        model: Encodes their nodes.

    Attributes:
        steps: Snapshots.
    """

    def __init__(self, horizon: Horizon, model: SnapshotModel) -> None:
        self.steps = len(horizon.taus)
        self._horizon = horizon
        self._there = horizon.there
        self._graphs = model.operators(horizon.graphs())
        rows = torch.stack([model.encode(horizon.inputs(at)) for at in range(self.steps)])
        # A signature needs no store: without this a node would have one before it has come.
        self._rows = rows * self._there.unsqueeze(2)

    def inputs(self) -> Tensor:
        """See ``Layout.inputs``: (t, n, d)."""
        return self._rows

    def along_graph(self, stage: GraphStage, weights: list[Any], x: Tensor) -> Tensor:
        """See ``Layout.along_graph``."""
        first = self.steps - len(weights)
        return stage.each(self._graphs[first:], x[len(x) - len(weights) :], weights)

    def summaries(self, stage: GraphStage, x: Tensor) -> list[Tensor]:
        """See ``Layout.summaries``."""
        return [stage.summary(graph, rows) for graph, rows in zip(self._graphs, x, strict=True)]

    def along_both(self, stage: CellStage, x: Tensor, carry: Carry) -> tuple[Tensor, Carry]:
        """See ``Layout.along_both``; the state of a node that has not come yet is zero."""
        state, found = carry, []
        for graph, rows, there in zip(self._horizon.directed, x, self._there, strict=True):
            state = stage(graph, rows, state) * there.unsqueeze(1)
            found.append(state)
        return torch.stack(found), state

    def to_nodes(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """See ``Layout.to_nodes``: they are there; a stage's bias gives no row to a node that has not come."""
        there = self._there[self.steps - len(x) :]
        return x * there.unsqueeze(2), there

    def to_snapshots(self, rows: Tensor) -> Tensor:
        """See ``Layout.to_snapshots``: they are there."""
        return rows

    def embeddings(self, x: Tensor) -> Tensor:
        """See ``Layout.embeddings``."""
        return self.to_nodes(x)[0]
