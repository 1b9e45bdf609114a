"""A layout of ranks that hold whole snapshots for graph stages and whole nodes for time stages (ESDG section 4.2)."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from freshet_graph.stream.arrays.kinds import Bool, Int64
from freshet_graph.trainer.device import to_device
from freshet_graph.trainer.models.interface import SnapshotModel
from freshet_graph.trainer.models.stages import GraphStage
from freshet_graph.trainer.nn.rows import distinct_rows
from freshet_graph.trainer.strategies.esdg.blocks import BlockLayout
from freshet_graph.trainer.strategies.esdg.mesh import GroupSnapshots, Mesh, tied
from freshet_graph.trainer.strategies.snapshots.whole import combines, empty_graph, operators
from freshet_graph.trainer.timeline.timeline import Horizon
from freshet_graph.trainer.wire.exchange import Handle


def divided(steps: int, parts: int) -> list[range]:
    """Consecutive snapshots of each part, in numbers as equal as possible; the last part always has the newest."""
    ends = [steps * part // parts for part in range(parts + 1)]
    return [range(first, end) for first, end in pairwise(ends)]


@dataclass(frozen=True, slots=True)
class Crossing:
    """The cells that cross when a piece of a block turns from snapshots to nodes; on the way back they cross in reverse.

    A rank holds whole snapshots, ``divided`` among ranks, or whole nodes: those whose number modulo the ranks is its own.
    Every rank's snapshots are divided into the same number of pieces.

    Attributes:
        mine: Places in the block of this rank's snapshots of the piece.
        of_snapshots: int64, places in their (snapshots, nodes) table, in order of the rank with the node.
        to_ranks: Number for each rank.
        of_nodes: int64, places in this rank's (steps, own nodes) table, in order of the rank with the snapshot.
        from_ranks: Number from each rank.
    """

    mine: range
    of_snapshots: Int64
    to_ranks: list[int]
    of_nodes: Int64
    from_ranks: list[int]


def crossings(moving: Bool, rank: int, ranks: int, pieces: int) -> list[Crossing]:
    """The cells of a block that cross, piece by piece.

    Args:
        moving: bool (steps, n): the nodes whose rows cross, in each snapshot; equal on all ranks.
        rank: This rank.
        ranks: Number of ranks.
        pieces: Number of pieces.
    """
    n, moving_here = moving.shape[1], moving[:, rank::ranks]
    width, crossed = moving_here.shape[1], []
    shares = [
        [range(share.start + piece.start, share.start + piece.stop) for piece in divided(len(share), pieces)]
        for share in divided(len(moving), ranks)
    ]
    for number in range(pieces):
        mine = shares[rank][number]
        out, into = [], []
        for other in range(ranks):
            step, node = np.nonzero(moving[mine.start : mine.stop, other::ranks])
            out.append(step * n + other + node * ranks)
            theirs = shares[other][number]
            into.append(theirs.start * width + np.flatnonzero(moving_here[theirs.start : theirs.stop]))
        to_ranks, from_ranks = ([len(part) for part in parts] for parts in (out, into))
        crossed.append(Crossing(mine, np.concatenate(out), to_ranks, np.concatenate(into), from_ranks))
    return crossed


Sent = Literal["all", "active"]

PIECES = 4
"""Most pieces of a block's rows: about one of them is not hidden."""
PIECE_CELLS = 4096
"""Smallest piece, over all ranks; smaller ones cost more than they hide."""


@dataclass(frozen=True, slots=True)
class StageRows:
    """Rows between graph stages, computed on demand.

    Attributes:
        pieces: (own snapshots of the piece, own nodes, d) each.
        alone: (cells, d), rows of this rank's nodes over time in snapshots without an edge of theirs; None if all rows cross.
        every: As ``pieces`` with all nodes, if every rank has those.
    """

    pieces: list[Handle[Tensor]]
    alone: Handle[Tensor] | None
    every: list[Handle[Tensor]] | None = None


class SharedLayout(BlockLayout):
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
        self._active = self._active and not combines(model, horizon.present)
        present = horizon.present[block.start : block.stop]
        self._present, self._present_own = (
            present[self.mine.start : self.mine.stop],
            present[:, mesh.local_nodes],
        )
        self._ties: list[Tensor] = []
        places = block[self.mine.start : self.mine.stop]
        self._graphs = operators(horizon, model, places)
        self._snapshots = GroupSnapshots(
            mesh, self._graphs, lambda step: horizon.active(places[step]), self._ties
        )
        self._alone: list[Int64] = []
        self._pieces = [self.mine]
        if "time" in along:
            linked = np.stack([horizon.active(place) for place in block])
            moving = linked if self._active else np.ones_like(linked)
            most = min(PIECES, -(-self.steps // groups.size), int(moving.sum()) // PIECE_CELLS)
            self._crossings = crossings(moving[:, mesh.nodes], groups.rank, groups.size, max(1, most))
            self._pieces = [crossing.mine for crossing in self._crossings]
            self._alone = [np.flatnonzero(~moving_here) for moving_here in moving[:, mesh.local_nodes]]
            self._of_snapshots = [to_device(crossing.of_snapshots, device) for crossing in self._crossings]
            width = self._present_own.shape[1]
            cells = [step * width + alone for step, alone in enumerate(self._alone)]
            order = np.concatenate([*(crossing.of_nodes for crossing in self._crossings), *cells])
            self._of_nodes, self._filled = to_device(order, device), to_device(np.argsort(order), device)

    @override
    def inputs(self) -> StageRows:
        """Whole snapshots from the store, and rows of this rank's nodes without edges."""
        every = [Handle(partial(self._inputs, piece)) for piece in self._pieces]
        alone = Handle(self._inputs_alone) if self._active else None
        if self._mesh.within.size == 1:
            return StageRows(every, alone)
        return StageRows([Handle(partial(self._of_own, whole)) for whole in every], alone, every)

    @override
    def along_graph(self, stage: GraphStage, weights: list[Any], x: StageRows) -> StageRows:
        pieces = [
            Handle(partial(self._convolved, stage, weights, x, number)) for number in range(len(self._pieces))
        ]
        return StageRows(pieces, x.alone and Handle(partial(self._along_alone, stage, weights, x.alone)))

    @override
    def summaries(self, stage: GraphStage, x: StageRows) -> list[Tensor]:
        """Every rank gets those of all snapshots."""
        rows = torch.cat([piece.wait() for piece in x.every or x.pieces])
        if x.every is None:
            rows = self._snapshots.whole(rows, len(self._horizon.nodes))
        none = stage.summary(empty_graph(rows), rows.new_zeros(0, rows.shape[2]))
        summary_rows = len(none)
        summaries = [stage.summary(graph, of_one) for graph, of_one in zip(self._graphs, rows, strict=True)]
        table = torch.cat([none[:0], *summaries])
        # without a snapshot on this rank: other ranks' tables have a gradient
        if torch.is_grad_enabled() and not table.requires_grad:
            table = table.detach().requires_grad_()
        sizes = [summary_rows * len(share) for share in divided(self.steps, self._mesh.across.size)]
        every = tied(self._ties, self._mesh.across.gather_rows(table, sizes, "summaries"))
        return list(torch.split(every, summary_rows))

    @override
    def to_nodes(self, x: StageRows) -> tuple[Tensor, Tensor]:
        """This rank's nodes in all snapshots of the block."""
        under_way = []
        for piece, place, crossing in zip(x.pieces, self._of_snapshots, self._crossings, strict=True):
            leaving = distinct_rows(piece.wait().flatten(0, 1), place)
            under_way.append(self._crossed(leaving, crossing.to_ranks, crossing.from_ranks, "rows_to_nodes"))
        alone = [] if x.alone is None else [x.alone.wait()]
        arrived = torch.cat([*(crossed.wait() for crossed in under_way), *alone])
        rows = distinct_rows(arrived, self._filled).view(*self._present_own.shape, arrived.shape[1])
        return rows * self._present_own.unsqueeze(2), self._present_own

    @override
    def to_snapshots(self, rows: Tensor) -> StageRows:
        counts = [len(crossing.of_nodes) for crossing in self._crossings]
        ordered = distinct_rows(rows.flatten(0, 1), self._of_nodes)
        *leaving, alone = torch.split(ordered, [*counts, len(ordered) - sum(counts)])
        under_way = [
            self._crossed(part, crossing.from_ranks, crossing.to_ranks, "rows_to_snapshots")
            for part, crossing in zip(leaving, self._crossings, strict=True)
        ]
        pieces = [
            Handle(partial(self._placed, number, crossing)) for number, crossing in enumerate(under_way)
        ]
        return StageRows(pieces, Handle(lambda: alone) if self._active else None)

    @override
    def embeddings(self, x: StageRows) -> Tensor:
        """All nodes' of this rank's snapshots, newest last; they stay in the group."""
        rows = torch.cat([piece.wait() for piece in x.pieces])
        present = self._present[len(self._present) - len(rows) :, self._mesh.nodes]
        return self._snapshots.whole(rows * present.unsqueeze(2), len(self._horizon.nodes))

    @override
    def tie(self) -> Tensor:
        return torch.stack([tie.sum() for tie in self._ties]).sum() if self._ties else self._zeros()

    def _inputs(self, piece: range) -> Tensor:
        """Rows (t, n, d) of all nodes in this rank's snapshots of a piece."""
        if not piece:
            return self._zeros(0, len(self._horizon.nodes), self._model.inputs)
        rows = torch.stack([self._model.encode(self._horizon.inputs(self._block[step])) for step in piece])
        first = self.mine.start
        return rows * self._present[piece.start - first : piece.stop - first].unsqueeze(2)

    def _of_own(self, every: Handle[Tensor]) -> Tensor:
        return every.wait()[:, self._mesh.nodes]

    def _inputs_alone(self) -> Tensor:
        table, local_nodes = [], self._mesh.local_nodes
        for place, alone, present in zip(self._block, self._alone, self._present_own, strict=True):
            rows = self._model.encode(self._horizon.inputs_alone(place, local_nodes, alone))
            table.append(rows * present.index_select(0, to_device(alone, rows.device)).unsqueeze(1))
        return torch.cat(table)

    def _convolved(self, stage: GraphStage, weights: list[Any], x: StageRows, number: int) -> Tensor:
        rows = x.pieces[number].wait()  # every crossing is waited for, even if its rows are not wanted
        first = self.steps - len(weights)
        newest = [step for step in self._pieces[number] if step >= first]
        if not newest:  # empty rows, but of these rows and weights, so that they have a gradient on all ranks
            none = stage.alone(rows.flatten(0, 1)[:0], weights[0])
            return none.reshape(0, rows.shape[1], none.shape[-1])
        newest_weights = [weights[step - first] for step in newest]
        every = None if x.every is None else x.every[number].wait()[-len(newest) :]
        here = range(newest[0] - self.mine.start, newest[-1] + 1 - self.mine.start)
        return self._snapshots.convolved(stage, here, rows[-len(newest) :], newest_weights, every)

    def _along_alone(self, stage: GraphStage, weights: list[Any], x: Handle[Tensor]) -> Tensor:
        alone = x.wait()
        if all(weight is weights[0] for weight in weights):
            return stage.alone(alone, weights[0])
        parts = torch.split(alone, [len(here) for here in self._alone])
        return torch.cat([stage.alone(part, weight) for part, weight in zip(parts, weights, strict=True)])

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
