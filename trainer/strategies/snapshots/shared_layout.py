"""A layout of ranks that hold whole snapshots for graph stages and whole nodes for time stages (ESDG section 4.2)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainer.device import to_device
from trainer.models.interface import SnapshotModel
from trainer.models.stages import Carry, CellStage, GraphStage
from trainer.nn.csr_graph import CSRGraph
from trainer.nn.rows import rows as rows_of
from trainer.ranks import Ranks
from trainer.strategies.snapshots.cells import Crossing, divided
from trainer.timeline.horizon import Horizon

Int64 = NDArray[np.int64]
Sent = Literal["all", "active"]


@dataclass(frozen=True, slots=True)
class Held:
    """Rows between graph stages.

    Attributes:
        snapshots: (own snapshots, n, d); with ``active`` rows the others' are nobody's.
        alone: (cells, d), rows of this rank's nodes where they have no edge; None where all rows cross.
    """

    snapshots: Tensor
    alone: Tensor | None


class SharedLayout:
    """The layout of ranks among which a block's snapshots are divided; its nodes are, too, for time stages.

    The snapshots go to ranks in order, the nodes by their number modulo the ranks. Where a time stage follows a graph stage,
    rows cross from those who have the snapshot to those who have the node, and back where another graph stage follows. After
    the last stage they stay where they are. The graph stages of a node without an edge look at its own row only, so with
    ``active`` rows whoever has the node computes them, and only the others cross.

    Args:
        horizon: All snapshots.
        model: Its stages.
        block: Places of the snapshots of this block, at least one.
        ranks: All ranks make a layout together.
        sent: Which rows cross.

    Attributes:
        steps: Snapshots of the block.
        mine: Places in the block of this rank's snapshots.
    """

    def __init__(
        self, horizon: Horizon, model: SnapshotModel, block: range, ranks: Ranks, sent: Sent
    ) -> None:
        self.steps, self.mine = len(block), divided(len(block), ranks.size)[ranks.rank]
        self._horizon, self._model, self._block, self._ranks = horizon, model, block, ranks
        along = [stage.along for stage in model.stages]
        self._by_node = "time" in along
        nothing = _empty(horizon.there)
        combines = model.operators([nothing])[0] is not nothing
        # Operators made of several graphs have other edges than the snapshot, and rows of a last graph stage are all wanted.
        self._active = sent == "active" and self._by_node and along[-1] == "time" and not combines
        places = [block[at] for at in self.mine]
        self._graphs = self._operators(places) if combines else [horizon.graph(place) for place in places]
        there = horizon.there[block.start : block.stop]
        self._there, self._there_own = (
            there[self.mine.start : self.mine.stop],
            there[:, ranks.rank :: ranks.size],
        )
        self._ties: list[Tensor] = []
        if self._by_node:
            everyone = np.ones(len(horizon.nodes), np.bool_)
            moving = [horizon.active(place) if self._active else everyone for place in block]
            self._crossing = Crossing.of(moving, ranks.rank, ranks.size)
            self._of_snapshots = to_device(self._crossing.of_snapshots, ranks.device)
            self._alone = to_device(self._crossing.alone, ranks.device)
            self._of_nodes = to_device(self._crossing.of_nodes, ranks.device)
            filled = np.concatenate([self._crossing.of_nodes, self._crossing.alone])
            self._filled = to_device(
                np.argsort(filled[: None if self._active else len(self._crossing.of_nodes)]), ranks.device
            )

    def inputs(self) -> Held:
        """See ``Layout.inputs``: whole snapshots from the store, and what this rank's nodes have alone."""
        encoded = [self._model.encode(self._horizon.inputs(self._block[at])) for at in self.mine]
        width, n = self._model.inputs, len(self._horizon.nodes)
        snapshots = torch.stack(encoded) if encoded else self._zeros(0, n, width)
        alone = self._inputs_alone() if self._active else None
        return Held(snapshots * self._there.unsqueeze(2), alone)

    def along_graph(self, stage: GraphStage, weights: list[Any], x: Held) -> Held:
        """See ``Layout.along_graph``."""
        first = self.steps - len(weights)
        newest = [at for at in self.mine if at >= first]
        own = [weights[at - first] for at in newest]
        graphs, rows = (
            self._graphs[len(self.mine) - len(newest) :],
            x.snapshots[len(x.snapshots) - len(newest) :],
        )
        if newest:
            found = stage.each(graphs, rows, own)
        else:  # nobody's rows, which the weights have made all the same: ranks agree on what has a gradient
            none = stage.alone(x.snapshots.new_zeros(0, x.snapshots.shape[2]), weights[0])
            found = none.reshape(0, x.snapshots.shape[1], none.shape[-1])
        return Held(found, None if x.alone is None else self._along_alone(stage, weights, x.alone))

    def summaries(self, stage: GraphStage, x: Held) -> list[Tensor]:
        """See ``Layout.summaries``: every rank gets those of all snapshots."""
        none = stage.summary(_empty(x.snapshots), x.snapshots.new_zeros(0, x.snapshots.shape[2]))
        each = len(none)
        own = [stage.summary(graph, rows) for graph, rows in zip(self._graphs, x.snapshots, strict=True)]
        table = torch.cat([none[:0], *own])
        if (
            torch.is_grad_enabled() and not table.requires_grad
        ):  # no snapshot here: other ranks' have a gradient
            table = table.detach().requires_grad_()
        sizes = [each * len(share) for share in divided(self.steps, self._ranks.size)]
        every = self._tied(self._ranks.gather_rows(table, sizes, "summaries"))
        return list(torch.split(every, each))

    def along_both(self, stage: CellStage, x: Held, carry: Carry) -> tuple[Held, Carry]:
        """Not possible: the state of a snapshot is made of that of the one before."""
        raise AssertionError(f"{type(stage).__name__} was not refused")

    def to_nodes(self, x: Held) -> tuple[Tensor, Tensor]:
        """See ``Layout.to_nodes``: this rank's nodes in all snapshots of the block."""
        width = x.snapshots.shape[2]
        leaving = x.snapshots.reshape(-1, width).index_select(0, self._of_snapshots)
        arrived = self._crossed(leaving, self._crossing.to_ranks, self._crossing.from_ranks, "rows_to_nodes")
        if x.alone is not None:
            arrived = torch.cat([arrived, x.alone])
        rows = rows_of(arrived, self._filled).view(*self._there_own.shape, width)
        return rows * self._there_own.unsqueeze(2), self._there_own

    def to_snapshots(self, rows: Tensor) -> Held:
        """See ``Layout.to_snapshots``."""
        flat, width = rows.reshape(-1, rows.shape[2]), rows.shape[2]
        leaving = flat.index_select(0, self._of_nodes)
        arrived = self._crossed(
            leaving, self._crossing.from_ranks, self._crossing.to_ranks, "rows_to_snapshots"
        )
        n = len(self._horizon.nodes)
        snapshots = arrived.new_zeros(len(self.mine) * n, width).index_copy(0, self._of_snapshots, arrived)
        alone = flat.index_select(0, self._alone) if self._active else None
        return Held(snapshots.view(len(self.mine), n, width), alone)

    def embeddings(self, x: Held) -> Tensor:
        """See ``Layout.embeddings``: of this rank's snapshots, newest last; they go nowhere."""
        return x.snapshots * self._there[len(self._there) - len(x.snapshots) :].unsqueeze(2)

    def tie(self) -> Tensor:
        """Zero, with a gradient of zero to whatever crossed: its way back is taken on every rank or on none."""
        return torch.stack([tie.sum() for tie in self._ties]).sum() if self._ties else self._zeros()

    def _crossed(self, rows: Tensor, sent: Sequence[int], received: Sequence[int], purpose: str) -> Tensor:
        return self._tied(self._ranks.exchange(rows, sent, received, purpose))

    def _tied(self, arrived: Tensor) -> Tensor:
        if arrived.requires_grad:
            self._ties.append(arrived[:0])
        return arrived

    def _inputs_alone(self) -> Tensor:
        rank, size, found = self._ranks.rank, self._ranks.size, []
        for at, here in enumerate(self._alone_by_step()):
            rows = self._model.encode(self._horizon.inputs_alone(self._block[at], rank + here * size))
            there = self._there_own[at].index_select(0, to_device(here, rows.device))
            found.append(rows * there.unsqueeze(1))
        return torch.cat(found)

    def _along_alone(self, stage: GraphStage, weights: list[Any], alone: Tensor) -> Tensor:
        if all(each is weights[0] for each in weights):
            return stage.alone(alone, weights[0])
        parts = torch.split(alone, [len(here) for here in self._alone_by_step()])
        return torch.cat([stage.alone(part, each) for part, each in zip(parts, weights, strict=True)])

    def _alone_by_step(self) -> list[Int64]:
        """This rank's nodes, numbered among its own, that have no edge; a list for each snapshot."""
        alone, width = self._crossing.alone, self._there_own.shape[1]
        ends = np.searchsorted(alone, np.arange(1, self.steps) * width)
        return [part - at * width for at, part in enumerate(np.split(alone, ends))]

    def _operators(self, places: list[int]) -> list[CSRGraph]:
        graphs = [self._horizon.graph(place) for place in range(places[-1] + 1)] if places else []
        return self._model.operators(graphs)[places[0] :] if places else []

    def _zeros(self, *shape: int) -> Tensor:
        like = next(self._model.parameters())
        return like.new_zeros(shape)


def _empty(like: Tensor) -> CSRGraph:
    """A graph without nodes."""
    return CSRGraph(
        torch.zeros(1, dtype=torch.int64, device=like.device),
        torch.zeros(0, dtype=torch.int64, device=like.device),
        0,
        symmetric=True,
    )
