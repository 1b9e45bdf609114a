"""``snapshot``: every rank holds some of the snapshots whole, block by block of the horizon (ESDG, Chakaravarthy et al. 2021)."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np
import structlog
import torch
from torch import Tensor

from schemas.store import LaneHeader
from stream.arrays.kinds import Bool, Int64
from stream.service.failure import Failure
from trainer.device import to_device
from trainer.models.interface import Model, SnapshotModel
from trainer.models.stages import CellStage
from trainer.strategies.interface import STRATEGIES, Setting
from trainer.strategies.passes import Step
from trainer.strategies.request import Request
from trainer.strategies.snapshots.blocks import Blocks
from trainer.strategies.snapshots.budget import Budget
from trainer.strategies.snapshots.cells import divided
from trainer.strategies.snapshots.endpoints import Loss, Questions
from trainer.strategies.snapshots.mesh import Mesh
from trainer.strategies.snapshots.shared_layout import Sent, SharedLayout
from trainer.strategies.snapshots.whole import WholeOptions, WholeStrategy
from trainer.strategies.snapshots.whole_layout import WholeLayout, combines
from trainer.tasks.interface import Lesson
from trainer.timeline.timeline import Horizon

log = structlog.get_logger()

SENT = ("active", "all")


@dataclass(frozen=True, kw_only=True)
class SnapshotOptions(WholeOptions):
    """Options of ``snapshot``, besides those of ``whole``.

    Attributes:
        blocks: Number of blocks of the horizon; ``auto``: as few as ``device_budget_mib`` allows.
        device_budget_mib: Memory of a rank for saved tensors and the carries of blocks, MiB; for ``auto``.
        rows: Rows that cross ranks: those of nodes with an edge in the snapshot (``active``), or ``all``.
        overlap: Whether stages along the graph compute one piece of a block while another crosses ranks.
        mesh: [S, V]: snapshots are divided among S groups of V ranks, which share the nodes of a snapshot; [] is [ranks, 1].
    """

    blocks: int | str = "auto"
    device_budget_mib: float = 1024.0
    rows: str = "active"
    overlap: bool = True
    mesh: Sequence[int] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.blocks != "auto" and (isinstance(self.blocks, str) or self.blocks < 1):
            raise ValueError(f"blocks must be auto or at least 1, found {self.blocks!r}")
        if not self.device_budget_mib > 0:
            raise ValueError(f"device_budget_mib must be above 0, found {self.device_budget_mib}")
        if self.rows not in SENT:
            raise ValueError(f"rows must be {' or '.join(SENT)}, found {self.rows!r}")
        sides = list(self.mesh) if isinstance(self.mesh, list | tuple) else None
        if sides is None or (
            sides and not (len(sides) == 2 and all(type(n) is int and n > 0 for n in sides))
        ):
            raise ValueError(f"mesh must be two numbers of at least 1, found {self.mesh!r}")


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
    Options: ClassVar[type] = SnapshotOptions

    def __init__(self, setting: Setting, options: SnapshotOptions) -> None:
        super().__init__(setting, options)
        self._chosen = options
        self._mesh = Mesh.of(setting.ranks, options.mesh)
        if self._mesh.within.size > 1 and combines(setting.model, next(setting.model.parameters())):
            raise Failure(
                f"strategy_params of snapshot: mesh divides a snapshot's nodes among {self._mesh.within.size} ranks, but the "
                f"operators of {setting.model.name} combine several snapshots. Leave mesh out"
            )
        self.number_of_blocks = options.blocks
        self.budget = Budget(setting.ranks, self._mesh.across.size, options.device_budget_mib)
        idle = (self._mesh.across.size - self._horizon) * self._mesh.within.size
        if idle > 0 and self._ranks.rank == 0:
            log.warning(
                f"strategy snapshot has {self._ranks.size} ranks for a horizon of {self._horizon} snapshots, so {idle} of "
                f"them have none for the graph stages. Start at most {self._ranks.size - idle} ranks, or raise the key horizon"
            )

    @classmethod
    def refuses(cls, model: Model, lane: LaneHeader | None, ranks: int) -> str | None:
        """See ``Strategy.refuses``."""
        assert isinstance(model, SnapshotModel)
        for stage in model.stages:
            if isinstance(stage, CellStage):
                return (
                    f"strategy {cls.name} divides snapshots among ranks, but stage {type(stage).__name__} of {model.name} "
                    "convolves states, so each snapshot waits for the one before. Choose strategy whole"
                )
        return None

    def owned(self, num_nodes: int) -> Bool:
        """See ``Strategy.owned``."""
        mine: Bool = np.arange(num_nodes) % self._ranks.size == self._ranks.rank
        return mine

    def embed_before(self, model: SnapshotModel, nodes: Int64) -> Tensor:
        """See ``WindowedStrategy.embed_before``."""
        wanted = self._everyones(nodes)
        return self._embedded(model, self.timeline.before_newest(_union(wanted)), wanted)

    @torch.no_grad()
    def embeddings(self, nodes: Int64) -> Tensor:
        """See ``Strategy.embeddings``."""
        wanted = self._everyones(nodes)
        return self._embedded(self._model, self.timeline.through_newest(_union(wanted)), wanted)

    def _steps(self, lessons: Sequence[Lesson], epoch: int) -> Iterator[Step]:
        """See ``WholeStrategy._steps``; all ranks have the same lessons."""
        parts, horizon = self._parts(lessons, epoch)
        at = [sum(before < lesson.tau for before in horizon.taus) for lesson in lessons]
        for part in parts:
            questions = [
                Questions(t, asked, truth, tuple(horizon.places(ends) for ends in asked.ends))
                for t, (asked, truth) in zip(at, part, strict=True)
            ]
            queries = sum(len(truth) for _, truth in part)
            backward = self._backward(horizon, questions, 1 / queries, newest_only=len(lessons) == 1)
            yield Step(backward, queries, len(part[-1][1]) // lessons[-1].each)

    def _backward(
        self, horizon: Horizon, questions: list[Questions], weight: float, *, newest_only: bool
    ) -> Callable[[], Tensor]:
        """A function that adds this rank's gradients block by block, and returns its loss."""
        loss = Loss(self._task, self._model.decoder, self._mesh, len(horizon.nodes))
        by_node = self._by_node(self._model)

        def of_rows(first: int, rows: Tensor) -> Tensor:
            """The loss of the questions about rows (t, …), after ``first`` snapshots."""
            if not by_node:
                return loss.by_snapshot(rows, first, questions)
            here = [each for each in questions if first <= each.at < first + len(rows)]
            return loss.by_node(rows, first, here)

        def backward() -> Tensor:
            none = self._shared(self._before_any(self._model, horizon), by_node)
            if not horizon.taus:
                found = of_rows(0, none)
                if found.requires_grad:  # no, if this rank has no question
                    (found * weight).backward()  # type: ignore[no-untyped-call]  # torch's backward is untyped
                return found.detach()
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
                found = of_rows(block.start + mine.start + 1, rows)
                if number == 0:
                    found = found + of_rows(0, none)
                return found * weight

            found = blocks.backward(of_block) / weight
            newest = blocks.ranges[-1]
            for at in self._mine(newest)[-1:]:
                horizon.graph(newest[at])  # leave the device at a snapshot that stays in the next horizon
            return found

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
            return self._before_any(model, horizon)[self._places(horizon, wanted[rank])]
        z = self.blocks(model, horizon, last=True).forward()
        by_node = self._by_node(model)
        distinct, repeated = np.unique(horizon.places(wanted[rank]), return_inverse=True)
        places = [distinct if of == rank else np.unique(horizon.places(wanted[of])) for of in range(size)]
        homes = [
            (each % size if by_node else np.full(len(each), size - 1)).astype(np.int32) for each in places
        ]
        request = Request.of_known(places, homes, self._ranks)
        asked = request.asked // size if by_node else request.asked
        table = z[0] if len(z) else z.new_zeros(0, z.shape[2])
        found = request.answer(table[to_device(asked, self._device)], "embeddings")
        return found[to_device(repeated, self._device)]

    def blocks(self, model: SnapshotModel, horizon: Horizon, *, last: bool) -> Blocks:
        """A pass over a horizon in ``number_of_blocks``; ``last``: only the newest rows are wanted."""

        def layout(block: range) -> WholeLayout | SharedLayout:
            if self._ranks.size == 1:  # nothing crosses
                return WholeLayout(horizon, model, block)
            return SharedLayout(
                horizon, model, block, self._mesh, cast(Sent, self._chosen.rows), overlap=self._chosen.overlap
            )

        def pass_in(ranges: list[range]) -> Blocks:
            # With differences on the device it can move back to a graph; after whole messages graphs are kept.
            moves_back = len(ranges) > 1 and self._chosen.transfer == "derived"
            leave = horizon.release if moves_back else _nothing
            return Blocks(model.stages, ranges, layout, leave, last)

        steps, number = len(horizon.taus), self.number_of_blocks
        if not isinstance(number, int) and torch.is_grad_enabled():
            number = self.budget.to_learn(model, horizon, pass_in)
        elif not isinstance(number, int):
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
            return rows[self._mesh.own].unsqueeze(0)
        groups = self._mesh.across
        return rows.unsqueeze(0)[: 1 if groups.rank == groups.size - 1 else 0]


def _union(wanted: Sequence[Int64]) -> Int64:
    """Distinct nodes, ascending."""
    return np.unique(np.concatenate(wanted))


def _nothing(block: range) -> None:
    """Keep the graphs of a block."""
