"""The one forward pass of every snapshot model under every strategy."""

from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor

from freshet_graph.trainer.models.stages import Carry, CellStage, GraphStage, Stage, TimeStage

Rows = Any
"""Rows between graph stages, in the form of the layout: a tensor, or a structure of its own."""


class Layout(Protocol):
    """The grid of snapshots × nodes, held by one rank or several, while a model passes over it.

    A layout of a strategy that refuses some stages leaves their methods out.

    Attributes:
        steps: Snapshots of the block.
    """

    steps: int

    def inputs(self) -> Rows:
        """Rows for the first stage, in the layout's form."""
        ...

    def along_graph(self, stage: GraphStage, weights: list[Any], x: Rows) -> Rows:
        """A graph stage in every snapshot.

        With weights of fewer snapshots the rest of the model needs those newest ones only, and a layout may leave out the
        others.
        """
        ...

    def summaries(self, stage: GraphStage, x: Rows) -> list[Tensor]:
        """``stage.summary`` of every snapshot, for a stage that summarises; differentiable."""
        raise AssertionError(f"{type(stage).__name__} was not refused")

    def along_both(self, stage: CellStage, x: Rows, carry: Carry) -> tuple[Rows, Carry]:
        """A cell stage over all snapshots in order."""
        raise AssertionError(f"{type(stage).__name__} was not refused")

    def to_nodes(self, x: Rows) -> tuple[Tensor, Tensor]:
        """Rows (t, n, d) of whole nodes over time, and whether each node had come by then, bool (t, n)."""
        ...

    def to_snapshots(self, rows: Tensor) -> Rows:
        """The reverse: rows in the form of graph stages."""
        ...

    def embeddings(self, x: Rows) -> Tensor:
        """Rows (t, n, d) of a last stage that looks along the graph; zero where a node had not come yet."""
        ...


def unroll(
    stages: Sequence[Stage],
    layout: Layout,
    carry: Sequence[Carry] | None = None,
    *,
    last: bool = False,
    nodes: Tensor | None = None,
) -> tuple[Tensor, list[Carry]]:
    """Pass a block of snapshots through a model's stages.

    Args:
        stages: Of the model, in order.
        layout: The distribution of rows. All ranks call this with layouts of one kind.
        carry: Of the previous block, one entry per stage; None: this is the first block.
        last: Whether only the newest snapshot's rows are wanted.
        nodes: int64, places of the wanted nodes; None: all. Time stages at the end pass over these only, and their carries
            hold these.

    Returns:
        Rows (t, n, d') of the last stage by node (t = 1 for ``last``), and each stage's carry.
    """
    x, carries, by_node = layout.inputs(), [], False
    ending = _time_from(stages)
    newest_from = _newest_from(stages) if last else len(stages)
    rows = present = None
    for number, stage in enumerate(stages):
        before = None if carry is None else carry[number]
        newest_only = last and number == len(stages) - 1
        if isinstance(stage, TimeStage):
            if not by_node:
                rows, present = layout.to_nodes(x)
            assert rows is not None
            assert present is not None
            if nodes is not None and number == ending:
                rows, present = rows.index_select(1, nodes), present.index_select(1, nodes)
            rows, after = (stage.last if newest_only else stage)(rows, present, before)
            by_node = True
        else:
            if by_node:
                assert rows is not None
                x = layout.to_snapshots(rows)
                by_node = False
            if isinstance(stage, GraphStage):
                summaries = layout.summaries(stage, x) if stage.summarises else None
                weights, after = stage.weights(layout.steps, before, summaries)
                x = layout.along_graph(stage, weights[-1:] if number >= newest_from else weights, x)
            else:
                assert isinstance(stage, CellStage)
                x, after = layout.along_both(stage, x, before)
        carries.append(after)
    if not by_node:
        rows = layout.embeddings(x)
        if nodes is not None:
            rows = rows.index_select(1, nodes)
    assert rows is not None
    return rows[-1:] if last else rows, carries


def _time_from(stages: Sequence[Stage]) -> int:
    """The first of the time stages at the end; the number of stages if the last is not a time stage."""
    first = len(stages)
    while first and isinstance(stages[first - 1], TimeStage):
        first -= 1
    return first


def _newest_from(stages: Sequence[Stage]) -> int:
    """The first stage whose newest rows suffice if only the newest rows of the last stage are wanted."""
    first = len(stages)
    while first and isinstance(stage := stages[first - 1], GraphStage):
        first -= 1
        if stage.summarises:
            break
    return first
