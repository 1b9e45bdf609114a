"""A snapshot model is a row of stages. The direction of a stage decides where a strategy may cut the window.

The window is a grid of snapshots × nodes. A graph stage looks along the nodes of one snapshot, a time stage along the
snapshots of one node, a cell stage along both at once. So a strategy that holds whole snapshots runs graph stages
locally, one that holds nodes over time runs time stages locally, and ``unroll`` is the same for both.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from typing_extensions import override

from freshet_graph.trainer.nn.graph import CSRGraph, DirectedGraph

Carry = Any
"""State that a stage takes over from the previous block of snapshots: tensors, or tuples of them; None at the beginning."""

Along = Literal["graph", "time", "both"]


class Stage(nn.Module):
    """One step of a snapshot model, which looks ``along`` one direction of the grid or both."""

    along: ClassVar[Along]


class GraphStage(Stage):
    """Rows of one snapshot from rows of that snapshot.

    Attributes:
        samples: Whether it is defined on a sample of a node's neighbours, as a mean is and a Laplacian is not.
        summarises: Whether its weights evolve by a summary of all rows of each snapshot.
        keeps_zeros: Whether the row of a node without an edge stays zero if it is zero, which a bias prevents.
        fanout: Neighbours per node that sampling strategies draw; None: all.
    """

    along = "graph"
    samples: ClassVar[bool] = False
    summarises: ClassVar[bool] = False
    keeps_zeros: ClassVar[bool] = False
    fanout: int | None = None

    def weights(
        self, steps: int, carry: Carry, summaries: list[Tensor] | None = None
    ) -> tuple[list[Any], Carry]:
        """Weights of each snapshot of a block, and the carry for the next block.

        The same module serves all snapshots unless its weights evolve (EvolveGCN): then it returns one set per snapshot.

        Args:
            steps: Snapshots of the block.
            carry: Of the previous block.
            summaries: Of each snapshot's rows, for stages that evolve by them.
        """
        return [None] * steps, None

    def forward(self, graph: CSRGraph, target_rows: Tensor, x: Tensor, weights: Any) -> Tensor:
        """Rows of the graph's targets.

        Args:
            graph: Targets × sources.
            target_rows: (targets, d), the targets' own rows.
            x: (sources, d).
            weights: Of this snapshot, from ``weights``.

        Returns:
            (targets, d').
        """
        raise NotImplementedError

    def gather(self, graph: CSRGraph, target_places: Tensor, x: Tensor) -> Tensor | None:
        """All that ``forward`` makes rows of, (targets, d), if no weight is in it; None: there is.

        It follows from the inputs alone, so a strategy that has them in several steps gathers once.

        Args:
            graph: Targets × sources.
            target_places: int64 (targets,), the targets' places among the sources.
            x: (sources, d).
        """
        return None

    def gathered(self, table: Tensor) -> Tensor:
        """``forward`` from what ``gather`` returned, for stages that gather: (targets, d) → (targets, d')."""
        raise NotImplementedError

    def summary(self, graph: CSRGraph, x: Tensor) -> Tensor:
        """The summary (k, d) of a snapshot for ``weights``, if the stage summarises.

        Args:
            graph: Square, over all nodes of the snapshot.
            x: (n, d).
        """
        raise NotImplementedError

    def per_snapshot(self, graphs: Sequence[CSRGraph], x: Tensor, weights: Sequence[Any]) -> Tensor:
        """``forward`` in several whole snapshots, for layouts that hold such.

        Args:
            graphs: Square, over the same nodes.
            x: (t, n, d).
            weights: Of each snapshot.

        Returns:
            (t, n, d').
        """
        return torch.stack(
            [self(graph, rows, rows, weight) for graph, rows, weight in zip(graphs, x, weights, strict=True)]
        )

    def alone(self, target_rows: Tensor, weights: Any) -> Tensor:
        """Rows (n, d') of nodes without any edge, which need no other node's rows."""
        device = target_rows.device
        none = CSRGraph(
            torch.zeros(len(target_rows) + 1, dtype=torch.int64, device=device),
            torch.zeros(0, dtype=torch.int64, device=device),
            len(target_rows),
        )
        alone: Tensor = self(none, target_rows, target_rows, weights)
        return alone


class TimeStage(Stage):
    """Rows of one node from that node's rows."""

    along = "time"

    def forward(self, rows: Tensor, present: Tensor, carry: Carry) -> tuple[Tensor, Carry]:
        """Rows of every snapshot of a block.

        Args:
            rows: (t, n, d), oldest snapshot first.
            present: bool (t, n): the node had come by that snapshot; rows of the others are zero.
            carry: Of the previous block; None for the first.

        Returns:
            (t, n, d'), and the carry for the next block.
        """
        raise NotImplementedError

    def last(self, rows: Tensor, present: Tensor, carry: Carry) -> tuple[Tensor, Carry]:
        """As ``forward``, but only the newest snapshot's rows: (1, n, d')."""
        if not len(rows):  # as after a snapshot by which no node had come
            rows, present = rows.new_zeros(1, *rows.shape[1:]), present.new_zeros(1, *present.shape[1:])
        outputs, after = self(rows, present, carry)
        return outputs[-1:], after

    def before_any(self, rows: Tensor) -> Tensor:
        """Rows (n, d') before the first snapshot, from zeros (n, d'): the zeros themselves, unless a stage has a bias."""
        return rows


class CellStage(Stage):
    """Rows and state of one snapshot at once: the state is convolved, too (DCRNN).

    Attributes:
        hops: Reach of a node's new state in one snapshot; 0: it looks at no neighbour.
    """

    along = "both"
    hops: int

    def forward(self, graph: DirectedGraph | None, x: Tensor, state: Tensor | None) -> Tensor:
        """The state (n, d') after a snapshot.

        Args:
            graph: Over all nodes of the snapshot; None only if ``hops`` is 0.
            x: (n, d).
            state: (n, d') after the previous snapshot; None for the first.
        """
        raise NotImplementedError


class Residual(GraphStage):
    """A graph stage and, added to its rows, a linear map of the targets' own: f(graph, X) + X S.

    Without it a stage that sums over a node and its neighbours leaves 1 / (1 + degree) of a node's own row. GAT's authors
    add it in the layers of their PPI network (Veličković et al. 2018, section 3.3).

    Args:
        stage: f.
        inputs: Width of X.
        outputs: Width of the result.
    """

    def __init__(self, stage: GraphStage, inputs: int, outputs: int) -> None:
        super().__init__()
        self.stage, self.skip = stage, nn.Linear(inputs, outputs, bias=False)
        # what strategies ask of a stage
        self.samples, self.summarises = stage.samples, stage.summarises  # type: ignore[misc]
        self.fanout = stage.fanout
        nn.init.xavier_uniform_(self.skip.weight)

    @override
    def weights(
        self, steps: int, carry: Carry, summaries: list[Tensor] | None = None
    ) -> tuple[list[Any], Carry]:
        return self.stage.weights(steps, carry, summaries)

    @override
    def forward(self, graph: CSRGraph, target_rows: Tensor, x: Tensor, weights: Any) -> Tensor:
        rows: Tensor = self.stage(graph, target_rows, x, weights)
        return rows + self.skip(target_rows)

    @override
    def summary(self, graph: CSRGraph, x: Tensor) -> Tensor:
        return self.stage.summary(graph, x)

    @override
    def per_snapshot(self, graphs: Sequence[CSRGraph], x: Tensor, weights: Sequence[Any]) -> Tensor:
        return self.stage.per_snapshot(graphs, x, weights) + self.skip(x)

    @override
    def alone(self, target_rows: Tensor, weights: Any) -> Tensor:
        return self.stage.alone(target_rows, weights) + self.skip(target_rows)
