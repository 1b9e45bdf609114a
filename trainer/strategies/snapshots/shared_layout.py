"""A layout of ranks that hold whole snapshots for graph stages and whole nodes for time stages (ESDG section 4.2)."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from stream.arrays.kinds import Int64
from trainer.device import to_device
from trainer.models.interface import SnapshotModel
from trainer.models.stages import Carry, CellStage, GraphStage
from trainer.nn.rows import distinct_rows
from trainer.strategies.snapshots.cells import crossings, divided
from trainer.strategies.snapshots.mesh import Mesh, Snapshots, tied
from trainer.strategies.snapshots.whole_layout import combines, empty_graph, operators
from trainer.timeline.timeline import Horizon
from trainer.wire.exchange import Handle

Sent = Literal["all", "active"]

PIECES = 4
"""Most pieces of a block's rows: about one of them is not hidden."""
PIECE_CELLS = 4096
"""Smallest piece, over all ranks; smaller ones cost more than they hide."""


@dataclass(frozen=True, slots=True)
class Held:
    """Rows between graph stages, computed on demand.

    Attributes:
        pieces: (own snapshots of the piece, own nodes, d) each.
        alone: (cells, d), rows of this rank's nodes over time in snapshots without an edge of theirs; None if all rows cross.
        every: As ``pieces`` with all nodes, if every rank has those.
    """

    pieces: list[Handle[Tensor]]
    alone: Handle[Tensor] | None
    every: list[Handle[Tensor]] | None = None


class SharedLayout:
    """The layout of ranks that divide a block's snapshots and, for time stages, its nodes.

    Ranks get snapshots in order, and nodes by their number modulo the ranks. Between a graph stage and a time stage, rows
    cross from the rank with the snapshot to the rank with the node; before another graph stage they cross back. After the
    last stage they stay. The graph stages of a node without an edge read its own row only, so with ``active`` rows the rank
    with the node computes them, and only the others cross.

    Rows cross in pieces of a few snapshots. While one crosses, a graph stage computes another: the next one on the way to
    nodes, and the previous one on the way back.

    Args:
        horizon: All snapshots.
        model: Its stages.
        block: Places of the snapshots of this block, at least one.
        mesh: All ranks make a layout together.
        sent: Rows that cross.
        overlap: Whether a piece is computed while another crosses; otherwise each is waited for at once.

    Attributes:
        steps: Snapshots of the block.
        mine: Places in the block of this rank's snapshots.
    """

    def __init__(
        self, horizon: Horizon, model: SnapshotModel, block: range, mesh: Mesh, sent: Sent, *, overlap: bool
    ) -> None:
        groups, device = mesh.across, mesh.ranks.device
        self.steps, self.mine = len(block), divided(len(block), groups.size)[groups.rank]
        self._horizon, self._model, self._block = horizon, model, block
        self._mesh, self._overlap = mesh, overlap
        along = [stage.along for stage in model.stages]
        # Combined operators have other edges than the snapshot, and all rows of a last graph stage are wanted.
        self._active = sent == "active" and "time" in along and along[-1] == "time"
        self._active = self._active and not combines(model, horizon.there)
        there = horizon.there[block.start : block.stop]
        self._there, self._there_own = there[self.mine.start : self.mine.stop], there[:, mesh.own]
        self._ties: list[Tensor] = []
        places = block[self.mine.start : self.mine.stop]
        self._graphs = operators(horizon, model, places)
        self._snapshots = Snapshots(mesh, self._graphs, lambda at: horizon.active(places[at]), self._ties)
        self._alone: list[Int64] = []
        self._pieces = [self.mine]
        if "time" in along:
            linked = np.stack([horizon.active(place) for place in block])
            moving = linked if self._active else np.ones_like(linked)
            most = min(PIECES, -(-self.steps // groups.size), int(moving.sum()) // PIECE_CELLS)
            self._crossings = crossings(moving[:, mesh.nodes], groups.rank, groups.size, max(1, most))
            self._pieces = [crossing.mine for crossing in self._crossings]
            self._alone = [np.flatnonzero(~own) for own in moving[:, mesh.own]]
            self._of_snapshots = [to_device(each.of_snapshots, device) for each in self._crossings]
            width = self._there_own.shape[1]
            cells = [at * width + alone for at, alone in enumerate(self._alone)]
            order = np.concatenate([*(each.of_nodes for each in self._crossings), *cells])
            self._of_nodes, self._filled = to_device(order, device), to_device(np.argsort(order), device)

    def inputs(self) -> Held:
        """See ``Layout.inputs``: whole snapshots from the store, and rows of this rank's nodes without edges."""
        every = [Handle(partial(self._inputs, piece)) for piece in self._pieces]
        alone = Handle(self._inputs_alone) if self._active else None
        if self._mesh.within.size == 1:
            return Held(every, alone)
        return Held([Handle(partial(self._of_own, each)) for each in every], alone, every)

    def along_graph(self, stage: GraphStage, weights: list[Any], x: Held) -> Held:
        """See ``Layout.along_graph``."""
        pieces = [
            Handle(partial(self._convolved, stage, weights, x, number)) for number in range(len(self._pieces))
        ]
        return Held(pieces, x.alone and Handle(partial(self._along_alone, stage, weights, x.alone)))

    def summaries(self, stage: GraphStage, x: Held) -> list[Tensor]:
        """See ``Layout.summaries``: every rank gets those of all snapshots."""
        rows = torch.cat([piece.wait() for piece in x.every or x.pieces])
        if x.every is None:
            rows = self._snapshots.whole(rows, len(self._horizon.nodes))
        none = stage.summary(empty_graph(rows), rows.new_zeros(0, rows.shape[2]))
        each = len(none)
        own = [stage.summary(graph, of_one) for graph, of_one in zip(self._graphs, rows, strict=True)]
        table = torch.cat([none[:0], *own])
        # without a snapshot on this rank: other ranks' tables have a gradient
        if torch.is_grad_enabled() and not table.requires_grad:
            table = table.detach().requires_grad_()
        sizes = [each * len(share) for share in divided(self.steps, self._mesh.across.size)]
        every = tied(self._ties, self._mesh.across.gather_rows(table, sizes, "summaries"))
        return list(torch.split(every, each))

    def along_both(self, stage: CellStage, x: Held, carry: Carry) -> tuple[Held, Carry]:
        """Not possible: the state of a snapshot depends on the one before."""
        raise AssertionError(f"{type(stage).__name__} was not refused")

    def to_nodes(self, x: Held) -> tuple[Tensor, Tensor]:
        """See ``Layout.to_nodes``: this rank's nodes in all snapshots of the block."""
        under_way = [
            self._crossed(
                distinct_rows(piece.wait().flatten(0, 1), place),
                each.to_ranks,
                each.from_ranks,
                "rows_to_nodes",
            )
            for piece, place, each in zip(x.pieces, self._of_snapshots, self._crossings, strict=True)
        ]
        alone = [] if x.alone is None else [x.alone.wait()]
        arrived = torch.cat([*(each.wait() for each in under_way), *alone])
        rows = distinct_rows(arrived, self._filled).view(*self._there_own.shape, arrived.shape[1])
        return rows * self._there_own.unsqueeze(2), self._there_own

    def to_snapshots(self, rows: Tensor) -> Held:
        """See ``Layout.to_snapshots``."""
        counts = [len(each.of_nodes) for each in self._crossings]
        ordered = distinct_rows(rows.flatten(0, 1), self._of_nodes)
        *leaving, alone = torch.split(ordered, [*counts, len(ordered) - sum(counts)])
        under_way = [
            self._crossed(part, each.from_ranks, each.to_ranks, "rows_to_snapshots")
            for part, each in zip(leaving, self._crossings, strict=True)
        ]
        pieces = [Handle(partial(self._placed, number, each)) for number, each in enumerate(under_way)]
        return Held(pieces, Handle(lambda: alone) if self._active else None)

    def embeddings(self, x: Held) -> Tensor:
        """See ``Layout.embeddings``: all nodes' of this rank's snapshots, newest last; they stay in the group."""
        rows = torch.cat([piece.wait() for piece in x.pieces])
        there = self._there[len(self._there) - len(rows) :, self._mesh.nodes]
        return self._snapshots.whole(rows * there.unsqueeze(2), len(self._horizon.nodes))

    def tie(self) -> Tensor:
        """See ``BlockLayout.tie``."""
        return torch.stack([tie.sum() for tie in self._ties]).sum() if self._ties else self._zeros()

    def _inputs(self, piece: range) -> Tensor:
        """Rows (t, n, d) of all nodes in this rank's snapshots of a piece."""
        if not piece:
            return self._zeros(0, len(self._horizon.nodes), self._model.inputs)
        rows = torch.stack([self._model.encode(self._horizon.inputs(self._block[at])) for at in piece])
        first = self.mine.start
        return rows * self._there[piece.start - first : piece.stop - first].unsqueeze(2)

    def _of_own(self, every: Handle[Tensor]) -> Tensor:
        return every.wait()[:, self._mesh.nodes]

    def _inputs_alone(self) -> Tensor:
        found, own = [], self._mesh.own
        for place, alone, there in zip(self._block, self._alone, self._there_own, strict=True):
            rows = self._model.encode(self._horizon.inputs_alone(place, own, alone))
            found.append(rows * there.index_select(0, to_device(alone, rows.device)).unsqueeze(1))
        return torch.cat(found)

    def _convolved(self, stage: GraphStage, weights: list[Any], x: Held, number: int) -> Tensor:
        rows = x.pieces[number].wait()  # every crossing is waited for, even if its rows are not wanted
        first = self.steps - len(weights)
        newest = [at for at in self._pieces[number] if at >= first]
        if not newest:  # empty rows, but of these weights, so that they have a gradient on all ranks
            none = stage.alone(rows.new_zeros(0, rows.shape[2]), weights[0])
            return none.reshape(0, rows.shape[1], none.shape[-1])
        own = [weights[at - first] for at in newest]
        every = None if x.every is None else x.every[number].wait()[-len(newest) :]
        here = range(newest[0] - self.mine.start, newest[-1] + 1 - self.mine.start)
        return self._snapshots.convolved(stage, here, rows[-len(newest) :], own, every)

    def _along_alone(self, stage: GraphStage, weights: list[Any], x: Handle[Tensor]) -> Tensor:
        alone = x.wait()
        if all(each is weights[0] for each in weights):
            return stage.alone(alone, weights[0])
        parts = torch.split(alone, [len(here) for here in self._alone])
        return torch.cat([stage.alone(part, each) for part, each in zip(parts, weights, strict=True)])

    def _placed(self, number: int, arriving: Handle[Tensor]) -> Tensor:
        """Rows (t, own nodes, d) of a piece; zeros where none has come."""
        arrived, steps = arriving.wait(), len(self._pieces[number])
        nodes = len(range(len(self._horizon.nodes))[self._mesh.nodes])
        table = arrived.new_zeros(steps * nodes, arrived.shape[1])
        placed = table.index_copy(0, self._of_snapshots[number], arrived)
        return placed.view(steps, nodes, arrived.shape[1])

    def _crossed(
        self, rows: Tensor, sent: Sequence[int], received: Sequence[int], purpose: str
    ) -> Handle[Tensor]:
        arriving = self._mesh.across.begin_exchange(rows, sent, received, purpose)
        handle = Handle(lambda: tied(self._ties, arriving.wait()))
        if not self._overlap:
            handle.wait()
        return handle

    def _zeros(self, *shape: int) -> Tensor:
        like = next(self._model.parameters())
        return like.new_zeros(shape)
