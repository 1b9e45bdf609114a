"""``snapshot``: every rank holds some of the snapshots whole, block by block of the horizon (ESDG, Chakaravarthy et al. 2021)."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import structlog
import torch
from numpy.typing import NDArray
from pydantic import Field, field_validator
from torch import Tensor, nn
from typing_extensions import override

from freshet_graph.schemas.section import Section
from freshet_graph.schemas.store import LaneHeader
from freshet_graph.stream.arrays.kinds import Bool, Float32, Int64
from freshet_graph.stream.kernels.node_sets import distinct
from freshet_graph.stream.service.failure import Failure
from freshet_graph.trainer.device import to_device
from freshet_graph.trainer.models.interface import SnapshotModel
from freshet_graph.trainer.nn.rows import rows
from freshet_graph.trainer.strategies.esdg.blocks import BlockBudget, Blocks
from freshet_graph.trainer.strategies.esdg.mesh import Mesh
from freshet_graph.trainer.strategies.esdg.shared_layout import Sent, SharedLayout, divided
from freshet_graph.trainer.strategies.interface import STRATEGIES, Setting
from freshet_graph.trainer.strategies.passes import Step
from freshet_graph.trainer.strategies.request import Request
from freshet_graph.trainer.strategies.snapshots.whole import (
    WholeLayout,
    WholeOptions,
    WholeStrategy,
    combines,
)
from freshet_graph.trainer.strategies.snapshots.windowed import before_any, is_cell, stage_refusal
from freshet_graph.trainer.tasks.interface import QueryBatch, SnapshotExamples, Task
from freshet_graph.trainer.timeline.timeline import Horizon

log = structlog.get_logger()


class SnapshotOptions(WholeOptions):
    """Options of ``snapshot``, besides those of ``whole``."""

    blocks: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        "auto", description="Blocks of the horizon; auto: as few as device_budget_mib allows."
    )
    device_budget_mib: float = Field(
        1024.0,
        gt=0,
        description="Memory of a rank for saved tensors and the carries of blocks, MiB; for blocks: auto.",
    )
    rows: Sent = Field(
        "active", description="Rows that cross ranks: those of nodes with an edge in the snapshot, or all."
    )
    overlap: bool = Field(
        True,
        description="Whether stages along the graph compute one piece of a block while another crosses ranks.",
    )
    mesh: list[Annotated[int, Field(ge=1)]] = Field(
        default=[],
        description="[S, V]: snapshots are divided among S groups of V ranks, which share the nodes of a snapshot. []: "
        "[ranks, 1].",
    )

    @field_validator("mesh")
    @classmethod
    def _has_two_sides(cls, sides: list[int]) -> list[int]:
        if len(sides) not in (0, 2):
            raise ValueError(f"must be two numbers, found {sides}")
        return sides


@STRATEGIES.register
class SnapshotStrategy(WholeStrategy):
    """Snapshots are divided among ranks for graph stages, nodes for time stages; it learns the same as ``whole``.

    Every rank follows the whole lane and knows all questions, so both sides of an exchange know the rows. A question is
    learned by the rank with its first end's embedding.

    Attributes:
        number_of_blocks: See ``SnapshotOptions.blocks``.
        budget: Finds their number under ``auto``.
    """

    name: ClassVar[str] = "snapshot"
    learns_all: ClassVar[bool] = True
    Options: ClassVar[type[Section]] = SnapshotOptions
    _options: SnapshotOptions

    def __init__(self, setting: Setting, options: SnapshotOptions) -> None:
        super().__init__(setting, options)
        self._mesh = Mesh.of(setting.ranks, options.mesh)
        if self._mesh.within.size > 1 and combines(setting.model, next(setting.model.parameters())):
            raise Failure(
                f"strategy_params of snapshot: mesh divides a snapshot's nodes among {self._mesh.within.size} ranks, but the "
                f"operators of {setting.model.name} combine several snapshots. Leave mesh out"
            )
        self.number_of_blocks = options.blocks
        self.budget = BlockBudget(setting.ranks, self._mesh.across.size, options.device_budget_mib)
        idle = (self._mesh.across.size - self._horizon) * self._mesh.within.size
        if idle > 0 and self._ranks.rank == 0:
            log.warning(
                "strategy snapshot has more ranks than its horizon has snapshots, and the others have none for the graph stages. "
                "Start fewer ranks, or raise the key horizon",
                ranks=self._ranks.size,
                most=self._ranks.size - idle,
            )

    @classmethod
    @override
    def refuses(cls, model: Any, lane: LaneHeader | None, ranks: int) -> str | None:
        return stage_refusal(
            cls.name, model, is_cell,
            "divides snapshots among ranks, but stage {stage} of {model} convolves states, so each snapshot waits for the one "
            "before. Choose strategy whole",
        )  # fmt: skip

    @override
    def embed_before(self, model: SnapshotModel, nodes: Int64) -> Tensor:
        wanted = self._everyones(nodes)
        return self._embedded(model, self.timeline.before_newest(distinct(*wanted)), wanted)

    @override
    @torch.no_grad()
    def embeddings(self, nodes: Int64) -> Tensor:
        wanted = self._everyones(nodes)
        return self._embedded(self._model, self.timeline.through_newest(distinct(*wanted)), wanted)

    @override
    def _steps(self, example_sets: Sequence[SnapshotExamples], epoch: int) -> Iterator[Step]:
        parts, horizon = self._parts(example_sets, epoch)
        num_before = [sum(before < examples.tau for before in horizon.taus) for examples in example_sets]
        for part in parts:
            questions = [
                Questions(t, queries, truth, tuple(horizon.places(ends) for ends in queries.ends))
                for t, (queries, truth) in zip(num_before, part, strict=True)
            ]
            queries = sum(len(truth) for _, truth in part)
            backward = self._backward(horizon, questions, 1 / queries, newest_only=len(example_sets) == 1)
            yield Step(backward, queries, len(part[-1][1]) // example_sets[-1].queries_per_example)

    def _backward(
        self, horizon: Horizon, questions: list["Questions"], weight: float, *, newest_only: bool
    ) -> Callable[[], Tensor]:
        """A function that adds this rank's gradients block by block, and returns its loss."""
        loss = Loss(self._task, self._model.decoder, self._mesh, len(horizon.nodes))
        by_node = self._by_node(self._model)

        def of_rows(first: int, rows: Tensor) -> Tensor:
            """The loss of the questions about rows (t, …), after ``first`` snapshots."""
            if not by_node:
                return loss.by_snapshot(rows, first, questions)
            return loss.by_node(
                rows, first, [about for about in questions if first <= about.num_before < first + len(rows)]
            )

        def backward() -> Tensor:
            none = self._shared(before_any(self._model, len(horizon.nodes)), by_node)
            if not horizon.taus:
                total = of_rows(0, none)
                if total.requires_grad:  # no, if this rank has no question
                    (total * weight).backward()  # type: ignore[no-untyped-call]  # torch's backward is untyped
                return total.detach()
            blocks = self.blocks(self._model, horizon, last=newest_only)

            def of_block(number: int, rows: Tensor) -> Tensor:
                block = blocks.ranges[number]
                if newest_only:
                    done = number < len(blocks.ranges) - 1
                    return rows[:0].sum() if done else of_rows(len(horizon.taus), rows) * weight
                if by_node or self._ranks.size == 1:
                    first = 0 if number == 0 else block.start + 1
                    return of_rows(first, torch.cat([none, rows]) if number == 0 else rows) * weight
                mine = self._mine(block)
                total = of_rows(block.start + mine.start + 1, rows)
                if number == 0:
                    total = total + of_rows(0, none)
                return total * weight

            total = blocks.backward(of_block) / weight
            newest = blocks.ranges[-1]
            for step in self._mine(newest)[-1:]:
                horizon.graph(newest[step])  # leave the device at a snapshot that stays in the next horizon
            return total

        return backward

    def _everyones(self, nodes: Int64) -> list[Int64]:
        """The nodes of each rank, on all ranks."""
        every, counts = self._ranks.gather_blocks(nodes, "ids")
        return np.split(every, np.cumsum(counts)[:-1])

    def _embedded(self, model: SnapshotModel, horizon: Horizon, wanted: Sequence[Int64]) -> Tensor:
        """Embeddings (n, width) of this rank's nodes after a horizon that all ranks have, given the nodes of each rank."""
        model.eval()
        rank, size = self._ranks.rank, self._ranks.size
        if not horizon.taus:
            return before_any(model, len(horizon.nodes))[self._places(horizon, wanted[rank])]
        z = self.blocks(model, horizon, last=True).forward()
        by_node = self._by_node(model)
        places = [np.unique(horizon.places(nodes)) for nodes in wanted]
        homes = [
            (place % size if by_node else np.full(len(place), size - 1)).astype(np.int32) for place in places
        ]
        request = Request.of_known(places, homes, self._ranks)
        rows_requested = request.requested // size if by_node else request.requested
        table = z[0] if len(z) else z.new_zeros(0, z.shape[2])
        answered = request.answer(table[to_device(rows_requested, self._device)], "embeddings")
        repeated = np.searchsorted(places[rank], horizon.places(wanted[rank]))
        return answered[to_device(repeated, self._device)]

    def blocks(self, model: SnapshotModel, horizon: Horizon, *, last: bool) -> Blocks:
        """A pass over a horizon in ``number_of_blocks``; ``last``: only the newest rows are wanted."""

        def layout(block: range) -> WholeLayout | SharedLayout:
            if self._ranks.size == 1:  # nothing crosses
                return WholeLayout(horizon, model, block)
            return SharedLayout(
                horizon, model, block, self._mesh, self._options.rows, overlap=self._options.overlap
            )

        def pass_in(ranges: list[range]) -> Blocks:
            # With differences on the device it can move back to a graph; after whole messages graphs are kept.
            moves_back = len(ranges) > 1 and self._options.transfer == "derived"
            leave = horizon.release if moves_back else lambda _: None
            return Blocks(model.stages, ranges, layout, leave, last)

        steps, number = len(horizon.taus), self.number_of_blocks
        if number == "auto" and torch.is_grad_enabled():
            number = self.budget.to_learn(model, horizon, pass_in)
        elif number == "auto":
            number = self.budget.to_predict(model, horizon)
        return pass_in(divided(steps, min(number, steps)))

    def _by_node(self, model: SnapshotModel) -> bool:
        """Whether ranks hold embeddings by node instead of by snapshot; one rank has both."""
        return self._ranks.size > 1 and model.stages[-1].along == "time"

    def _mine(self, block: range) -> range:
        """Places in a block of this rank's snapshots."""
        return divided(len(block), self._mesh.across.size)[self._mesh.across.rank]

    def _shared(self, rows: Tensor, by_node: bool) -> Tensor:
        """This rank's share (1, n', d) of rows (n, d) that all ranks have: its nodes', or all in the last group."""
        if by_node:
            return rows[self._mesh.local_nodes].unsqueeze(0)
        groups = self._mesh.across
        return rows.unsqueeze(0)[: 1 if groups.rank == groups.size - 1 else 0]


@dataclass(frozen=True, slots=True)
class Questions:
    """Questions about one snapshot, the same on all ranks.

    Attributes:
        num_before: Number of snapshots of the horizon before the embeddings that answer them.
        queries: The questions.
        truth: float32 (Q,), their true answers.
        ends: int64 (Q,) compact numbers of each of ``queries.ends``.
    """

    num_before: int
    queries: QueryBatch
    truth: Float32
    ends: tuple[Int64, ...]

    def select(self, chosen: Bool) -> "Questions":
        """Some of them; ``chosen`` is bool (Q,)."""
        columns = {column.name: getattr(self.queries, column.name)[chosen] for column in fields(self.queries)}  # type: ignore[arg-type]
        queries = type(self.queries)(**columns)
        return Questions(
            self.num_before, queries, self.truth[chosen], tuple(end[chosen] for end in self.ends)
        )


class Loss:
    """The loss of questions from rows of embeddings (t, n, d) that are distributed over ranks.

    Args:
        task: Has the loss.
        head: Of the model.
        mesh: All ranks.
        nodes: Number of compact numbers.
    """

    def __init__(self, task: Task, head: nn.Module, mesh: Mesh, nodes: int) -> None:
        self._task, self._head, self._nodes = task, head, nodes
        self._ranks, self._within = mesh.ranks, mesh.within

    def by_snapshot(self, z: Tensor, first: int, questions: Sequence[Questions]) -> Tensor:
        """The sum over questions about this rank's whole snapshots; ranks of a group share them by their first ends.

        Args:
            z: (t, n, d).
            first: ``num_before`` of the first row.
            questions: Of all ranks.
        """
        losses = [z[:0].sum()]
        size, rank = self._within.size, self._within.rank
        for about in questions:
            if first <= about.num_before < first + len(z):
                mine = about.select(about.ends[0] % size == rank) if size > 1 else about
                table = z[about.num_before - first]
                losses.append(self._of(mine, [rows(table, self._on_device(end)) for end in mine.ends]))
        return torch.stack(losses).sum()

    def by_node(self, z: Tensor, first: int, questions: Sequence[Questions]) -> Tensor:
        """The sum over questions whose first end is this rank's, in all snapshots; other ends' rows come from their ranks.

        The rows to exchange follow from the questions, so no rank asks for them.

        Args:
            z: (t, own nodes, d).
            first: ``num_before`` of the first row.
            questions: Of all ranks, about these snapshots only.
        """
        ranks, n = self._ranks, self._nodes
        flat = z.reshape(-1, z.shape[2])
        of_rank = [
            [question.select(question.ends[0] % ranks.size == rank) for question in questions]
            for rank in range(ranks.size)
        ]
        wanted = [self._others(theirs, first) for theirs in of_rank]
        request = Request.of_known(
            wanted, [(keys % n % ranks.size).astype(np.int32) for keys in wanted], ranks
        )
        others = request.answer(
            flat.index_select(0, self._on_device(self._place(request.requested, z.shape[1]))), "endpoints"
        )
        losses = [others[:0].sum()]
        for about in of_rank[ranks.rank]:
            base = (about.num_before - first) * n
            ends = [rows(flat, self._on_device(self._place(base + about.ends[0], z.shape[1])))]
            for end in about.ends[1:]:
                ends.append(rows(others, self._on_device(np.searchsorted(wanted[ranks.rank], base + end))))
            losses.append(self._of(about, ends))
        return torch.stack(losses).sum()

    def _others(self, questions: Sequence[Questions], first: int) -> Int64:
        """Keys, snapshot · n + node, of all ends except the first; ascending and distinct."""
        keys = (
            (about.num_before - first) * self._nodes + end for about in questions for end in about.ends[1:]
        )
        return distinct(*keys)

    def _place(self, keys: Int64, width: int) -> Int64:
        """Places of keys in the (t, own nodes) table of their owner."""
        snapshot, node = np.divmod(keys, self._nodes)
        return snapshot * width + node // self._ranks.size

    def _of(self, questions: Questions, ends: list[Tensor]) -> Tensor:
        return self._task.loss(questions.queries.read(self._head, ends), self._on_device(questions.truth))

    def _on_device(self, array: NDArray[Any]) -> Tensor:
        return to_device(array, self._ranks.device)
