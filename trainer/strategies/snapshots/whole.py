"""``whole``: one rank, whole snapshots, every one of them at once; what all other strategies are compared with."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from schemas.store import LaneHeader
from stream.service.heartbeat import beat
from trainer.data.views import GraphView
from trainer.device import to_device
from trainer.learning.step import Learner
from trainer.models.interface import Model, SnapshotModel
from trainer.models.unroll import unroll
from trainer.nn.rows import rows
from trainer.strategies.interface import STRATEGIES, Needs, Setting, StepReport
from trainer.strategies.snapshots.whole_layout import WholeLayout
from trainer.strategies.snapshots.windowed import WindowedStrategy
from trainer.tasks.interface import Lesson
from trainer.timeline.timeline import Horizon, Timeline

Int64 = NDArray[np.int64]

SUPERVISE = ("newest", "horizon")


@dataclass(frozen=True, kw_only=True)
class WholeOptions:
    """Options of ``whole``.

    Attributes:
        supervise: What a step learns from: the ``newest`` snapshot, or every snapshot of the ``horizon``, each from those
            before it.
        steps: Optimiser steps per pass over a snapshot; each sees all of it.
    """

    supervise: str = "newest"
    steps: int = 1

    def __post_init__(self) -> None:
        if self.supervise not in SUPERVISE:
            raise ValueError(f"supervise must be {' or '.join(SUPERVISE)}, found {self.supervise!r}")
        if self.steps < 1:
            raise ValueError(f"steps must be at least 1, found {self.steps}")


@STRATEGIES.register
class WholeStrategy(WindowedStrategy):
    """One rank holds the last snapshots whole, whatever the lane's partitioner, and passes over all of them at once.

    Nothing is sampled and nothing is sent. A step follows the gradient of all queries of a snapshot, or of the horizon.
    """

    name: ClassVar[str] = "whole"
    Options: ClassVar[type] = WholeOptions

    def __init__(self, setting: Setting, options: WholeOptions) -> None:
        self._model: SnapshotModel = setting.model
        self._task, self._device = setting.task, setting.ranks.device
        self._options = options
        self.learner = Learner(self._model, setting.optimisation, setting.ranks)
        self._view: GraphView | None = None
        self.rewind()

    @classmethod
    def refuses(cls, model: Model, lane: LaneHeader | None, ranks: int) -> str | None:
        """See ``Strategy.refuses``."""
        if ranks > 1:
            return (
                f"strategy {cls.name} learns on one rank, found {ranks}; start one, or choose strategy vertex"
            )
        return None

    @property
    def needs(self) -> Needs:
        """See ``Strategy.needs``."""
        window = self._model.window
        lessons = window if self._options.supervise == "horizon" else 1
        return Needs("graph", window, parts="all", lessons=lessons)

    def rewind(self) -> None:
        """See ``Strategy.rewind``."""
        self._timeline = Timeline(self._model.window)

    def take_in(self, view: GraphView) -> None:
        """See ``Strategy.take_in``."""
        self._view = view
        self._timeline.take_in(view)

    def owned(self, num_nodes: int) -> NDArray[np.bool_]:
        """See ``Strategy.owned``."""
        return np.ones(num_nodes, np.bool_)

    def embed_before(self, model: SnapshotModel, nodes: Int64) -> Tensor:
        """See ``WindowedStrategy.embed_before``."""
        horizon = self._before(nodes)
        return self._last(model, horizon)[self._places(horizon, nodes)]

    def learn(self, lessons: Sequence[Lesson], epoch: int) -> StepReport:
        """See ``Strategy.learn``: every query of the lessons in each step, so an epoch is as good as another."""
        began = time.perf_counter()
        parts = [lesson.part(np.arange(len(lesson))) for lesson in lessons]
        queries = sum(len(truth) for _, truth in parts)
        if not queries:
            return StepReport()
        wanted = np.unique(np.concatenate([ends for asked, _ in parts for ends in asked.ends]))
        horizon = self._before(wanted)
        single = len(lessons) == 1
        at = [0 if single else sum(before < lesson.tau for before in horizon.taus) for lesson in lessons]
        known = [
            ([self._places(horizon, ends) for ends in asked.ends], to_device(truth, self._device))
            for asked, truth in parts
        ]
        self._model.train()
        for _ in range(self._options.steps):
            beat()
            z = self._last(self._model, horizon).unsqueeze(0) if single else self._every(horizon)
            losses = [
                self._task.loss(asked.read(self._model.decoder, [rows(z[t], ends) for ends in places]), truth)
                for t, (asked, _), (places, truth) in zip(at, parts, known, strict=True)
            ]
            self.learner.step(torch.stack(losses).sum(), 1 / queries)
        self._model.eval()
        ended = [loss for loss, left_out in self.learner.settled() if not left_out]
        newest = lessons[-1]
        return StepReport(
            steps=self._options.steps,
            events=len(newest) if ended else 0,
            loss=ended[-1] / queries if ended else None,
            nonfinite=self._options.steps - len(ended),
            seconds={"train": time.perf_counter() - began, **self.learner.seconds()},
        )

    @torch.no_grad()
    def embeddings(self, nodes: Int64) -> Tensor:
        """See ``Strategy.embeddings``."""
        assert self._view is not None
        horizon = self._timeline.through_newest(self._view, np.unique(nodes))
        return self._last(self._model, horizon)[self._places(horizon, nodes)]

    @property
    def step_events(self) -> int:
        """See ``Strategy.step_events``: all of a snapshot, whatever its size."""
        return 1

    @property
    def held_bytes(self) -> dict[str, int]:
        """See ``Strategy.held_bytes``."""
        return {"timeline": self._timeline.memory_bytes}

    def _before(self, asked: Int64) -> Horizon:
        assert self._view is not None
        return self._timeline.before_newest(self._view, asked)

    def _last(self, model: SnapshotModel, horizon: Horizon) -> Tensor:
        """Embeddings (n, width) after a horizon; zeros where it has no snapshot."""
        if not torch.is_grad_enabled():
            model.eval()
        if not horizon.taus:
            return torch.zeros(len(horizon.nodes), model.width, device=self._device)
        found, _ = unroll(model.stages, WholeLayout(horizon, model, self._device), last=True)
        return found[0]

    def _every(self, horizon: Horizon) -> Tensor:
        """Embeddings (t + 1, n, width): before the first snapshot (zeros), and after each."""
        none = torch.zeros(1, len(horizon.nodes), self._model.width, device=self._device)
        if not horizon.taus:
            return none
        found, _ = unroll(self._model.stages, WholeLayout(horizon, self._model, self._device))
        return torch.cat([none, found])

    def _places(self, horizon: Horizon, nodes: Int64) -> Tensor:
        return to_device(horizon.places(nodes), self._device)
