"""Ranks as a mesh: groups that divide the snapshots, and in each group ranks that divide the nodes of one snapshot."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from freshet_graph.stream.arrays.kinds import Bool
from freshet_graph.stream.service.failure import Failure
from freshet_graph.trainer.device import to_device
from freshet_graph.trainer.models.stages import GraphStage
from freshet_graph.trainer.nn.graph import CSRGraph, RowBlock
from freshet_graph.trainer.nn.rows import distinct_rows
from freshet_graph.trainer.ranks import Ranks


@dataclass(frozen=True, slots=True)
class Mesh:
    """S groups of V ranks, group after group: rank s · V + v.

    Snapshots are divided among groups. In its group's snapshots rank v has the rows of every V-th node from the v-th on.
    Over time it has every (S · V)-th node from its own number on, so rows that turn from snapshots to nodes stay among the
    S ranks with one v.

    Attributes:
        ranks: All.
        across: Those with this rank's v, one of each group.
        within: This rank's group.
    """

    ranks: Ranks
    across: Ranks
    within: Ranks

    @classmethod
    def of(cls, ranks: Ranks, sides: Sequence[int]) -> "Mesh":
        """A mesh with sides S and V, or by default with every rank as a group; a collective.

        Raises:
            Failure: S · V is not the number of ranks.
        """
        if not sides or list(sides) == [ranks.size, 1]:
            return cls(ranks, ranks, Ranks(device=ranks.device, traffic=ranks.traffic))
        groups, in_group = sides
        if groups * in_group != ranks.size:
            raise Failure(
                f"strategy_params of snapshot: mesh {list(sides)} is of {groups * in_group} ranks, found {ranks.size}. Start as "
                "many, or leave mesh out"
            )
        within, across = ranks.split(groups, in_group)
        return cls(ranks, across, within)

    @property
    def nodes(self) -> slice:
        """First number and step of the nodes whose rows this rank has in its group's snapshots."""
        return slice(self.within.rank, None, self.within.size)

    @property
    def local_nodes(self) -> slice:
        """First number and step of the nodes that this rank has over time."""
        return slice(self.ranks.rank, None, self.ranks.size)


class GroupSnapshots:
    """The snapshots of a group, of which each rank has the rows of its nodes.

    Args:
        mesh: Of ranks.
        graphs: Of the snapshots, square.
        active: Of each, bool (n,): the nodes with an edge.
        ties: Collects empty tensors with the way back of rows from other ranks.
    """

    def __init__(
        self, mesh: Mesh, graphs: Sequence[CSRGraph], active: Callable[[int], Bool], ties: list[Tensor]
    ) -> None:
        self._within, self._graphs, self._active, self._ties = mesh.within, graphs, active, ties

    def convolved(
        self,
        stage: GraphStage,
        numbers: range,
        rows: Tensor,
        weights: Sequence[object],
        every: Tensor | None = None,
    ) -> Tensor:
        """A stage in some of the snapshots.

        Args:
            stage: Looks along the graph.
            numbers: Of the snapshots.
            rows: (t, own nodes, d).
            weights: Of each snapshot.
            every: (t, n, d), the rows of all nodes; None: they are on other ranks.

        Returns:
            (t, own nodes, d').
        """
        if self._within.size == 1:
            return stage.per_snapshot([self._graphs[step] for step in numbers], rows, weights)
        active = [self._active(step) for step in numbers]
        if every is None:
            linked = self._gathered(rows, active)
        else:
            linked = [x[to_device(np.flatnonzero(a), x.device)] for x, a in zip(every, active, strict=True)]
        return torch.stack(
            [
                stage(self._blocks[step], target_rows, x, weight)
                for step, target_rows, x, weight in zip(numbers, rows, linked, weights, strict=True)
            ]
        )

    def whole(self, rows: Tensor, nodes: int) -> Tensor:
        """Rows (t, n, d) of all nodes from every rank's (t, own nodes, d), on every rank of the group; differentiable."""
        size, steps, width = self._within.size, len(rows), rows.shape[2]
        if size == 1:
            return rows
        counts = [len(range(part, nodes, size)) for part in range(size)]
        sizes = [steps * count for count in counts]
        arrived = tied(self._ties, self._within.gather_rows(rows.reshape(-1, width), sizes, "rows_in_group"))
        parts = [
            part.view(steps, count, width)
            for part, count in zip(torch.split(arrived, sizes), counts, strict=True)
        ]
        node = np.arange(nodes)
        place = np.concatenate([[0], np.cumsum(counts)])[node % size] + node // size
        return torch.cat(parts, dim=1).index_select(1, to_device(place, rows.device))

    def _gathered(self, rows: Tensor, active: list[Bool]) -> list[Tensor]:
        """The rows of all nodes with an edge, of each snapshot."""
        size, rank = self._within.size, self._within.rank
        linked = np.stack(active)
        cells = [np.flatnonzero(linked[:, part::size]) for part in range(size)]
        flat = rows.reshape(-1, rows.shape[2])
        leaving = distinct_rows(flat, to_device(cells[rank], flat.device))
        sizes = [len(cells_of_step) for cells_of_step in cells]
        arrived = tied(self._ties, self._within.gather_rows(leaving, sizes, "rows_in_group"))
        keys = []  # of what arrived: in order of snapshots, then of nodes
        for part in range(size):
            step, node = np.nonzero(linked[:, part::size])
            keys.append(step * linked.shape[1] + part + node * size)
        order = np.argsort(np.concatenate(keys))
        ordered = distinct_rows(arrived, to_device(order, arrived.device))
        return list(torch.split(ordered, [int(cells_of_step.sum()) for cells_of_step in active]))

    @cached_property
    def _blocks(self) -> list[RowBlock]:
        return [RowBlock(graph, self._within.rank, self._within.size) for graph in self._graphs]


def tied(ties: list[Tensor], arrived: Tensor) -> Tensor:
    """Arrived rows, whose way back, if there is one, is added to a list as an empty tensor."""
    if arrived.requires_grad:
        ties.append(arrived[:0])
    return arrived
