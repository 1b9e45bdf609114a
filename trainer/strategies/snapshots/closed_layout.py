"""The layout of a closure: every stage has exactly the rows that the stages above it need."""

from functools import cached_property
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from trainer.device import to_device
from trainer.models.stages import Carry, CellStage, GraphStage
from trainer.nn.csr_graph import CSRGraph
from trainer.strategies.snapshots.closed_batch import Closure, Level


class BlockGraph(CSRGraph):
    """Edges of a level, or of one of its snapshots, with tables that a host thread prepared.

    Args:
        level: The edges.
        device: Where to.
        at: Place of the snapshot; None: all of them, side by side.
    """

    def __init__(self, level: Level, device: torch.device, at: int | None = None) -> None:
        self._level, self._device = level, device
        self._rows, self._below = slice(0, sum(level.targets_of)), slice(0, sum(level.sources_of))
        if at is not None:
            first, below = sum(level.targets_of[:at]), sum(level.sources_of[:at])
            self._rows = slice(first, first + level.targets_of[at])
            self._below = slice(below, below + level.sources_of[at])
        self._edges = slice(int(level.starts[self._rows.start]), int(level.starts[self._rows.stop]))
        super().__init__(
            self._begins(level.starts, self._rows),
            self._tensor(level.sources[self._edges] - self._below.start),
            self._below.stop - self._below.start,
            values=None if level.values is None else self._tensor(level.values[self._edges]),
        )

    @cached_property
    def own(self) -> Tensor:
        """Integers (targets,), the targets' own rows among the sources."""
        return self._tensor(self._level.own[self._rows] - self._below.start)

    @cached_property
    def diagonal(self) -> Tensor:
        """See ``CSRGraph.diagonal``: by the degrees in the whole snapshot."""
        assert self._level.scale is not None
        return self._tensor(self._level.scale[self._rows]).square().unsqueeze(1)

    @cached_property
    def operator(self) -> CSRGraph:
        """See ``CSRGraph.operator``: by the degrees in the whole snapshot."""
        assert self._level.scaled is not None
        return _Known(
            self, self._tensor(self._level.scaled[self._edges]), self._turned(self._level.back_scaled)
        )

    @cached_property
    def transpose(self) -> CSRGraph:
        """See ``CSRGraph.transpose``; it is already made."""
        return self._turned(self._level.back_values)

    def _turned(self, values: NDArray[Any] | None) -> CSRGraph:
        return CSRGraph(
            self._begins(self._level.back_starts, self._below),
            self._tensor(self._level.back_targets[self._edges] - self._rows.start),
            self.num_targets,
            values=None if values is None else self._tensor(values[self._edges]),
        )

    def _begins(self, starts: NDArray[Any], rows: slice) -> Tensor:
        return self._tensor(starts[rows.start : rows.stop + 1] - starts[rows.start])

    def _tensor(self, array: NDArray[Any]) -> Tensor:
        return to_device(array, self._device)


class _Known(CSRGraph):
    """A graph whose transpose is known."""

    def __init__(self, graph: CSRGraph, values: Tensor, transpose: CSRGraph) -> None:
        super().__init__(graph.indptr, graph.sources, graph.num_sources, values=values)
        self.__dict__["transpose"] = transpose


class ClosedLayout:
    """Rows of some nodes in every snapshot of a batch, computed by one rank alone.

    Args:
        closure: Of the nodes.
        inputs: (m, d), encoded inputs of its lowest rows.
        device: Where rows live.

    Attributes:
        steps: Snapshots.
    """

    def __init__(self, closure: Closure, inputs: Tensor, device: torch.device) -> None:
        self.steps = len(closure.lowest_of)
        self._present, self._device = self.steps, device
        # A signature follows from the id: without this a node would have one before it has come.
        self._there = to_device(closure.there, device)
        self._inputs = inputs * self._there.unsqueeze(1)
        self._levels = iter(closure.levels)

    def inputs(self) -> Tensor:
        """See ``Layout.inputs``: (m, d), snapshot after snapshot."""
        return self._inputs

    def along_graph(self, stage: GraphStage, weights: list[Any], x: Tensor) -> Tensor:
        """See ``Layout.along_graph``: one product, unless the weights evolve."""
        level = next(self._levels)
        self._present = len(weights)
        first = self.steps - len(weights)
        self._there = to_device(level.there[sum(level.targets_of[:first]) :], self._device)
        if not first and all(weight is None for weight in weights):
            graph = BlockGraph(level, self._device)
            return stage(graph, x.index_select(0, graph.own), x, None)
        sizes = level.sources_of[len(level.sources_of) - len(weights) :]
        x = x[len(x) - sum(sizes) :]
        found = []
        for at, (rows, weight) in enumerate(
            zip(torch.split(x, list(sizes)), weights, strict=True), start=first
        ):
            graph = BlockGraph(level, self._device, at)
            found.append(stage(graph, rows.index_select(0, graph.own), rows, weight))
        return torch.cat(found)

    def summaries(self, stage: GraphStage, x: Tensor) -> list[Tensor]:
        """Not possible: the snapshot's other rows are missing."""
        raise AssertionError(f"{type(stage).__name__} was not refused")

    def along_both(self, stage: CellStage, x: Tensor, carry: Carry) -> tuple[Tensor, Carry]:
        """Not possible: a cell looks farther with every snapshot."""
        raise AssertionError(f"{type(stage).__name__} was not refused")

    def to_nodes(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """See ``Layout.to_nodes``; a stage's bias gives no row to a node that has not come."""
        there = self._there.view(self._present, -1)
        return x.view(*there.shape, x.shape[1]) * there.unsqueeze(2), there

    def to_snapshots(self, rows: Tensor) -> Tensor:
        """See ``Layout.to_snapshots``."""
        return rows.flatten(0, 1)

    def embeddings(self, x: Tensor) -> Tensor:
        """See ``Layout.embeddings``."""
        return self.to_nodes(x)[0]
