"""``whole``: one rank with all whole snapshots at once; the reference of all other strategies."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch import Tensor

from schemas.store import LaneHeader
from stream.arrays.kinds import Bool, Float32, Int64
from trainer.device import to_device
from trainer.learning.step import Learner
from trainer.models.interface import Model, SnapshotModel
from trainer.models.stages import TimeStage
from trainer.models.unroll import unroll
from trainer.nn.rows import rows
from trainer.strategies.figures import TrainingFigure
from trainer.strategies.interface import STRATEGIES, Needs, OwnKey, Setting, StepReport
from trainer.strategies.passes import Step, run
from trainer.strategies.snapshots.whole_layout import WholeLayout
from trainer.strategies.snapshots.windowed import WindowedStrategy
from trainer.tasks.interface import Asked, Lesson
from trainer.timeline.graph import TimelineView
from trainer.timeline.timeline import Horizon, Timeline
from trainer.timeline.transfer import MODES, Mode

RATE = 5e-3
"""Adam's default rate: one step per snapshot learns as much as four at the usual rate (decision 46)."""

SUPERVISE = ("newest", "horizon")

TRANSFER_BYTES = TrainingFigure(
    name="transfer_bytes",
    meaning="Bytes from the host to the device, graphs and inputs",
    kind="counter",
    labels=("kind", "mode"),
    merge="sum",
)


@dataclass(frozen=True, kw_only=True)
class WholeOptions:
    """Options of ``whole``.

    Attributes:
        supervise: Lessons of a step: the ``newest`` snapshot, or every snapshot of the ``horizon``, each from those before
            it.
        steps: Most optimiser steps per pass over a snapshot. Each learns an equal part of its items, and no less than about
            ``optimisation.batch_size`` of them; each costs a pass over the whole horizon.
        transfer: Form of a snapshot's message to the device: ``whole``, ``esdg``, ``derived``, ``counts``, or the smallest
            by ``auto``.
    """

    supervise: str = "newest"
    steps: int = 1
    transfer: str = "auto"

    def __post_init__(self) -> None:
        if self.supervise not in SUPERVISE:
            raise ValueError(f"supervise must be {' or '.join(SUPERVISE)}, found {self.supervise!r}")
        if self.steps < 1:
            raise ValueError(f"steps must be at least 1, found {self.steps}")
        if self.transfer not in MODES:
            raise ValueError(f"transfer must be one of {', '.join(MODES)}, found {self.transfer!r}")


@STRATEGIES.register
class WholeStrategy(WindowedStrategy):
    """One rank holds the last snapshots whole, for any partitioner of the lane, and passes over all of them at once.

    No neighbour is left out and nothing is sent. A step follows the gradient of all queries of a snapshot or of the
    horizon, or of a part of them.

    Attributes:
        timeline: The last snapshots.
    """

    name: ClassVar[str] = "whole"
    own_keys: ClassVar[frozenset[OwnKey]] = frozenset({"horizon", "smoothing"})
    Options: ClassVar[type] = WholeOptions
    figures: ClassVar[tuple[TrainingFigure, ...]] = (TRANSFER_BYTES,)

    def __init__(self, setting: Setting, options: WholeOptions) -> None:
        self._model: SnapshotModel = setting.model
        self._task, self._ranks, self._device = setting.task, setting.ranks, setting.ranks.device
        self._options = options
        self._batch, self._seed = setting.optimisation.batch, setting.seed
        self.learner = Learner(self._model, setting.optimisation, setting.ranks, usual_rate=RATE)
        self._horizon = setting.horizon or self._model.window
        self._smoothing = setting.smoothing
        self.rewind()

    @classmethod
    def refuses(cls, model: Model, lane: LaneHeader | None, ranks: int) -> str | None:
        """See ``Strategy.refuses``."""
        if ranks > 1:
            return (
                f"strategy {cls.name} learns on one rank, found {ranks}. Start one, or choose strategy vertex"
            )
        return None

    @property
    def needs(self) -> Needs:
        """See ``Strategy.needs``."""
        lessons = self._horizon if self._options.supervise == "horizon" else 1
        return Needs("timeline", self._horizon, parts="all", lessons=lessons)

    def rewind(self) -> None:
        """See ``Strategy.rewind``."""
        self.timeline = Timeline(self._device, cast(Mode, self._options.transfer))

    def take_in(self, view: TimelineView) -> None:
        """See ``Strategy.take_in``."""
        self.timeline.take_in(view)

    def owned(self, num_nodes: int) -> Bool:
        """See ``Strategy.owned``."""
        return np.ones(num_nodes, np.bool_)

    def embed_before(self, model: SnapshotModel, nodes: Int64) -> Tensor:
        """See ``WindowedStrategy.embed_before``."""
        horizon = self.timeline.before_newest(nodes)
        return self._last(model, horizon)[self._places(horizon, nodes)]

    def learn(self, lessons: Sequence[Lesson], epoch: int) -> StepReport:
        """See ``Strategy.learn``; the parts of a snapshot are drawn again in each epoch."""
        if not any(len(lesson) for lesson in lessons):
            return StepReport()
        report = run(self._model, self.learner, self._ranks, self._steps(lessons, epoch))
        return replace(report, figures={TRANSFER_BYTES.name: self.timeline.transfer.since_last()})

    def _steps(self, lessons: Sequence[Lesson], epoch: int) -> Iterator[Step]:
        """Steps over equal parts of the lessons."""
        parts, horizon = self._parts(lessons, epoch)
        single = len(lessons) == 1
        at = [0 if single else sum(before < lesson.tau for before in horizon.taus) for lesson in lessons]
        for part in parts:
            z = self._last(self._model, horizon).unsqueeze(0) if single else self._every(horizon)
            losses = [self._loss(z[t], horizon, *asked) for t, asked in zip(at, part, strict=True)]
            queries = sum(len(truth) for _, truth in part)
            yield Step(torch.stack(losses).sum(), queries, len(part[-1][1]) // lessons[-1].each)

    @torch.no_grad()
    def embeddings(self, nodes: Int64) -> Tensor:
        """See ``Strategy.embeddings``."""
        horizon = self.timeline.through_newest(np.unique(nodes))
        return self._last(self._model, horizon)[self._places(horizon, nodes)]

    def state(self) -> dict[str, Any]:
        """See ``Strategy.state``: the order of rows, and so of sums, depends on earlier nodes."""
        return {**super().state(), "nodes": self.timeline.nodes.state()}

    def restore(self, state: dict[str, Any]) -> None:
        """See ``Strategy.restore``."""
        super().restore({name: value for name, value in state.items() if name != "nodes"})
        if "nodes" in state:
            self.timeline.nodes.restore(state["nodes"])

    @property
    def step_events(self) -> int:
        """See ``Strategy.step_events``: all of a snapshot, whatever its size."""
        return 1

    @property
    def held_bytes(self) -> dict[str, int]:
        """See ``Strategy.held_bytes``."""
        return {"timeline": self.timeline.memory_bytes}

    def _parts(
        self, lessons: Sequence[Lesson], epoch: int
    ) -> tuple[list[list[tuple[Asked, Float32]]], Horizon]:
        """Questions and true answers of each step, lesson by lesson, at least one per step; and the snapshots before."""
        largest = max(len(lesson) for lesson in lessons)
        steps = min(self._options.steps, -(-largest // self._batch))
        shares = []
        for lesson in lessons:
            draw = np.random.default_rng([self._seed, lesson.sequence, epoch])
            shares.append(np.array_split(draw.permutation(len(lesson)), steps))
        parts = [
            [lesson.part(np.sort(share[step])) for lesson, share in zip(lessons, shares, strict=True)]
            for step in range(steps)
        ]
        ends = [ends for part in parts for asked, _ in part for ends in asked.ends]
        return parts, self.timeline.before_newest(np.unique(np.concatenate(ends)))

    def _loss(self, z: Tensor, horizon: Horizon, asked: Asked, truth: Float32) -> Tensor:
        ends = [rows(z, self._places(horizon, ends)) for ends in asked.ends]
        return self._task.loss(asked.read(self._model.decoder, ends), to_device(truth, self._device))

    def _last(self, model: SnapshotModel, horizon: Horizon) -> Tensor:
        """Embeddings (n, width) after a horizon."""
        if not torch.is_grad_enabled():
            model.eval()
        if not horizon.taus:
            return self._before_any(model, horizon)
        found, _ = unroll(model.stages, WholeLayout(horizon, model), last=True)
        return found[0]

    def _every(self, horizon: Horizon) -> Tensor:
        """Embeddings (t + 1, n, width): before the first snapshot, and after each."""
        none = self._before_any(self._model, horizon).unsqueeze(0)
        if not horizon.taus:
            return none
        found, _ = unroll(self._model.stages, WholeLayout(horizon, self._model))
        return torch.cat([none, found])

    def _before_any(self, model: SnapshotModel, horizon: Horizon) -> Tensor:
        """Embeddings (n, width) before the first snapshot."""
        like, last = next(model.parameters()), model.stages[-1]
        none = like.new_zeros(len(horizon.nodes), model.width)
        return last.before_any(none) if isinstance(last, TimeStage) else none

    def _places(self, horizon: Horizon, nodes: Int64) -> Tensor:
        return to_device(horizon.places(nodes), self._device)
