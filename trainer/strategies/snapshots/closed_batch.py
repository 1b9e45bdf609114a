"""A hybrid batch: some nodes in some consecutive snapshots, with all inputs of their embeddings (DynaHB, definition 3)."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from stream.arrays.kinds import Bool, Float32, Int32, Int64
from trainer.models.stages import GraphStage, Stage, TimeStage
from trainer.strategies.snapshots.closure import HostGraph, enter, expand, scaled, turned
from trainer.tasks.interface import Asked


@dataclass(frozen=True, slots=True)
class Level:
    """The edges of one graph stage: block-diagonal over the snapshots, targets and sources snapshot after snapshot.

    Attributes:
        starts: int32 (n + 1,), the first edge of each target.
        sources: int32 (edges,), places among the rows of the level below.
        own: int32 (n,), the targets' own rows there.
        back_starts: int32 (m + 1,), the same edges by source.
        back_targets: int32 (edges,).
        values: float32 (edges,); None: all are 1.
        back_values: The same by source.
        scaled: float32 (edges,), values of the normalised operator; None: no stage looks along it.
        back_scaled: The same by source.
        scale: float32 (n,), of the targets; None: no stage looks along it.
        there: bool (n,): the target had come by its snapshot.
        targets_of: Targets of each snapshot.
        sources_of: Rows of the level below of each snapshot.
    """

    starts: Int32
    sources: Int32
    own: Int32
    back_starts: Int32
    back_targets: Int32
    values: Float32 | None
    back_values: Float32 | None
    scaled: Float32 | None
    back_scaled: Float32 | None
    scale: Float32 | None
    there: Bool
    targets_of: tuple[int, ...]
    sources_of: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        columns = (self.starts, self.sources, self.own, self.back_starts, self.back_targets, self.there)
        others = (self.values, self.back_values, self.scaled, self.back_scaled, self.scale)
        return sum(each.nbytes for each in (*columns, *others) if each is not None)


@dataclass(frozen=True, slots=True)
class Closure:
    """The rows and edges for the embeddings of some nodes.

    Attributes:
        nodes: int64 (n,), ascending: the embedded nodes.
        levels: One per graph stage, in the stages' order.
        lowest: int64 (m,), the nodes of the first stage's rows, snapshot after snapshot.
        lowest_of: Rows of each snapshot.
        there: bool (m,): the row's node had come by its snapshot.
    """

    nodes: Int64
    levels: list[Level]
    lowest: Int64
    lowest_of: tuple[int, ...]
    there: Bool

    @property
    def edges(self) -> int:
        """Edges of all levels."""
        return sum(len(level.sources) for level in self.levels)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.lowest.nbytes + self.there.nbytes + sum(level.nbytes for level in self.levels)


@dataclass(frozen=True, slots=True)
class HybridBatch:
    """A closure with its inputs and questions.

    Attributes:
        closure: Of the nodes that the questions are about.
        inputs: float (m, d), on the host: the encoded inputs of ``closure.lowest``.
        asked: For each snapshot with questions: the place of the snapshot before them, questions and true answers.
        items: int64, its items of the newest lesson.
        targets: Nodes that were drawn.
        size: Number of its size.
    """

    closure: Closure
    inputs: Tensor
    asked: list[tuple[int, Asked, Float32]]
    items: Int64 = field(default_factory=lambda: np.empty(0, np.int64))
    targets: int = 0
    size: int = 0

    @property
    def snapshots(self) -> int:
        """Number of its snapshots."""
        return len(self.closure.lowest_of)

    @property
    def queries(self) -> int:
        """Questions."""
        return sum(len(truth) for _, _, truth in self.asked)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        truths = sum(truth.nbytes for _, _, truth in self.asked)
        ends = sum(each.nbytes for _, asked, _ in self.asked for each in asked.ends)
        return self.closure.nbytes + self.inputs.nbytes + truths + ends


def close(graphs: Sequence[HostGraph], stages: Sequence[Stage], nodes: Int64, num_nodes: int) -> Closure:
    """The closure of nodes in some snapshots; exact for a state that begins with these snapshots.

    Rows below a time stage are needed in all snapshots, even if they are a neighbour in one; other rows only in their own.

    Args:
        graphs: Of the snapshots, oldest first.
        stages: Of the model.
        nodes: int64 (n,), ascending.
        num_nodes: Dense ids in use.
    """
    if not graphs:
        return Closure(nodes, [], np.empty(0, np.int64), (), np.empty(0, np.bool_))
    levels: list[Level] = []
    rows = [nodes] * len(graphs)
    place, order = np.full(num_nodes, -1, np.int32), np.empty(num_nodes, np.int64)
    normalised = any(isinstance(stage, GraphStage) and not stage.samples for stage in stages)
    for number in reversed(range(len(stages))):
        if isinstance(stages[number], GraphStage):
            uniform = number > 0 and isinstance(stages[number - 1], TimeStage)
            level, rows = _below(graphs, rows, place, order, uniform=uniform, normalised=normalised)
            levels.insert(0, level)
    return Closure(
        nodes, levels, np.concatenate(rows), tuple(len(each) for each in rows), _there(graphs, rows)
    )


def _below(
    graphs: Sequence[HostGraph],
    rows: Sequence[Int64],
    place: Int32,
    order: Int64,
    *,
    uniform: bool,
    normalised: bool,
) -> tuple[Level, list[Int64]]:
    """The level that makes some rows, and the rows below it, of each snapshot; all equal if ``uniform``."""
    found, below, count = [], [], 0
    if uniform:
        same = all(each is rows[0] for each in rows)
        for each in rows[:1] if same else rows:
            count = enter(each, place, order, count)
    for graph, targets in zip(graphs, rows, strict=True):
        if not uniform:
            count = enter(targets, place, order, 0)
        starts, sources, edges, count = expand(graph.starts, graph.neighbours, targets, place, order, count)
        found.append((starts, sources, edges, place[targets]))
        if not uniform:
            below.append(order[:count].copy())
            place[below[-1]] = -1
    if uniform:
        below = [order[:count].copy()] * len(graphs)
        place[below[0]] = -1
    return _level(graphs, rows, below, found, normalised=normalised), below


def _level(
    graphs: Sequence[HostGraph],
    rows: Sequence[Int64],
    below: Sequence[Int64],
    found: Sequence[tuple[Int32, Int32, Int64, Int32]],
    *,
    normalised: bool,
) -> Level:
    targets_of, sources_of = (tuple(len(each) for each in rows), tuple(len(each) for each in below))
    first_edge = np.cumsum([0, *(len(sources) for _, sources, _, _ in found)]).astype(np.int32)
    first_row = np.cumsum([0, *sources_of]).astype(np.int32)
    starts = np.concatenate(
        [
            np.zeros(1, np.int32),
            *(each[1:] + at for (each, _, _, _), at in zip(found, first_edge, strict=False)),
        ]
    )
    sources = np.concatenate([each + at for (_, each, _, _), at in zip(found, first_row, strict=False)])
    own = np.concatenate([each + at for (_, _, _, each), at in zip(found, first_row, strict=False)])
    back_starts, back_targets, stood = turned(starts, sources, int(first_row[-1]))
    values = None
    if graphs[0].values is not None:
        values = np.concatenate(
            [
                graph.values[edges]
                for graph, (_, _, edges, _) in zip(graphs, found, strict=True)
                if graph.values is not None
            ]
        )
    scale = operator = None
    if normalised:
        scale, of_sources = (
            np.concatenate([graph.scales(each) for graph, each in zip(graphs, sets, strict=True)])
            for sets in (rows, below)
        )
        operator = scaled(
            starts, sources, scale, of_sources, np.empty(0, np.float32) if values is None else values
        )
    return Level(
        starts, sources, own, back_starts, back_targets,
        values, None if values is None else values[stood],
        operator, None if operator is None else operator[stood],
        scale, _there(graphs, rows), targets_of, sources_of,
    )  # fmt: skip


def _there(graphs: Sequence[HostGraph], rows: Sequence[Int64]) -> Bool:
    return np.concatenate([each < graph.num_nodes for graph, each in zip(graphs, rows, strict=True)])
