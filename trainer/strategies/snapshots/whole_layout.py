"""A layout that holds every row: all nodes of a horizon in all of its snapshots, on one rank."""

from typing import Any

import torch
from torch import Tensor

from trainer.models.interface import SnapshotModel
from trainer.models.stages import Carry, CellStage, GraphStage
from trainer.timeline.timeline import Horizon


class WholeLayout:
    """The layout of one rank that holds every row; the reference of all others.

    Args:
        horizon: The snapshots, at least one.
        model: Encodes their nodes.
        device: Where rows live.

    Attributes:
        steps: Snapshots.
    """

    def __init__(self, horizon: Horizon, model: SnapshotModel, device: torch.device) -> None:
        self.steps = len(horizon.taus)
        self._there = horizon.there(device)
        self._graphs = horizon.graphs(device)
        rows = torch.stack([model.encode(inputs) for inputs in horizon.inputs(device)])
        # A signature needs no store: without this a node would have one before it has come.
        self._rows = rows * self._there.unsqueeze(2)

    def inputs(self) -> Tensor:
        """See ``Layout.inputs``: (t, n, d)."""
        return self._rows

    def along_graph(self, stage: GraphStage, weights: list[Any], x: Tensor) -> Tensor:
        """See ``Layout.along_graph``: snapshot by snapshot."""
        return torch.stack(
            [stage(graph, rows, rows, own) for graph, rows, own in zip(self._graphs, x, weights, strict=True)]
        )

    def along_both(self, stage: CellStage, x: Tensor, carry: Carry) -> tuple[Tensor, Carry]:
        """See ``Layout.along_both``."""
        state, found = carry, []
        for graph, rows in zip(self._graphs, x, strict=True):
            state = stage(graph, rows, state)
            found.append(state)
        return torch.stack(found), state

    def to_nodes(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """See ``Layout.to_nodes``: they are there; a stage's bias gives no row to a node that has not come."""
        return x * self._there.unsqueeze(2), self._there

    def to_snapshots(self, rows: Tensor) -> Tensor:
        """See ``Layout.to_snapshots``: they are there."""
        return rows
