"""A layout that holds every row: all nodes of a horizon in all of its snapshots, on one rank."""

from typing import Any

import torch
from torch import Tensor

from trainer.models.interface import SnapshotModel
from trainer.models.stages import Carry, CellStage, GraphStage
from trainer.nn.csr_graph import CSRGraph
from trainer.timeline.timeline import Horizon


class WholeLayout:
    """The layout of one rank that holds every row; the reference of all others.

    Args:
        horizon: Snapshots.
        model: Encodes their nodes.
        block: Places of the snapshots of the pass, at least one; None: all of them.

    Attributes:
        steps: Snapshots of the pass.
        there: Which nodes have come, bool (t, n).
        rows: Inputs of all nodes, (t, n, d).
    """

    def __init__(self, horizon: Horizon, model: SnapshotModel, block: range | None = None) -> None:
        block = range(len(horizon.taus)) if block is None else block
        self.steps, self._block = len(block), block
        self._horizon = horizon
        self.there = horizon.there[block.start : block.stop]
        self._graphs = operators(horizon, model, block)
        rows = torch.stack([model.encode(horizon.inputs(at)) for at in block])
        # A signature follows from the id: without this a node would have one before it has come.
        self.rows = rows * self.there.unsqueeze(2)

    def inputs(self) -> Tensor:
        """See ``Layout.inputs``: (t, n, d)."""
        return self.rows

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
        graphs = self._horizon.directed[self._block.start : self._block.stop]
        for graph, rows, there in zip(graphs, x, self.there, strict=True):
            state = stage(graph, rows, state) * there.unsqueeze(1)
            found.append(state)
        return torch.stack(found), state

    def to_nodes(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """See ``Layout.to_nodes``: the same rows, without those that a stage's bias gives to nodes that have not come."""
        there = self.there[self.steps - len(x) :]
        return x * there.unsqueeze(2), there

    def to_snapshots(self, rows: Tensor) -> Tensor:
        """See ``Layout.to_snapshots``: the same rows."""
        return rows

    def embeddings(self, x: Tensor) -> Tensor:
        """See ``Layout.embeddings``."""
        return self.to_nodes(x)[0]

    def tie(self) -> Tensor:
        """Zero: nothing has crossed ranks."""
        return self.rows.new_zeros(())


def combines(model: SnapshotModel, like: Tensor) -> bool:
    """Whether a model's operators combine the graphs of several snapshots."""
    nothing = empty_graph(like)
    return model.operators([nothing])[0] is not nothing


def operators(horizon: Horizon, model: SnapshotModel, places: range) -> list[CSRGraph]:
    """Operators of a model's graph stages in some snapshots; earlier graphs are made only if they are part of one."""
    if not places or not combines(model, horizon.there):
        return [horizon.graph(at) for at in places]
    return model.operators([horizon.graph(at) for at in range(places.stop)])[places.start :]


def empty_graph(like: Tensor) -> CSRGraph:
    """A graph without nodes, on a tensor's device."""
    indptr, sources = (torch.zeros(n, dtype=torch.int64, device=like.device) for n in (1, 0))
    return CSRGraph(indptr, sources, 0, symmetric=True)
