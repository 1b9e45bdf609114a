"""One pass of ``hybrid`` over a horizon: periods of steps that a rank takes alone, an average and a choice of size after each."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from stream.service.heartbeat import beat
from trainer.learning.step import Learner
from trainer.ranks import Ranks
from trainer.strategies.snapshots.adjusters import Adjuster, Tried
from trainer.strategies.snapshots.averaging import Averager
from trainer.strategies.snapshots.closed_batch import HybridBatch
from trainer.strategies.snapshots.reservoir import BatchGenerator, Recipe, Reservoir


@dataclass(frozen=True, slots=True)
class Crew:
    """The parts of a strategy in a pass.

    Attributes:
        ranks: All ranks.
        learner: Takes steps by itself.
        averager: Averages.
        adjuster: Chooses sizes, on rank 0.
        reservoir: Of recipes.
        generator: Of batches.
        ahead: Batches planned before their use; as many as a period has, if that is known.
    """

    ranks: Ranks
    learner: Learner
    averager: Averager
    adjuster: Adjuster
    reservoir: Reservoir
    generator: BatchGenerator
    ahead: int


@dataclass(frozen=True, slots=True)
class Until:
    """When a pass ends: after so many steps (0: no limit), or at a time of ``time.perf_counter`` (None: no limit)."""

    steps: int
    at_s: float | None

    def reached(self, steps: int) -> bool:
        """Whether it does now."""
        late = self.at_s is not None and time.perf_counter() >= self.at_s
        return late or bool(self.steps and steps >= self.steps)


@dataclass(slots=True)
class HybridPass:
    """A pass; all ranks run it.

    Attributes:
        crew: Parts of the strategy.
        taus: Interval indices, the newest lesson's last.
        draws: Draws batches, equal on all ranks.
        action: Size of the next planned batches.
        loss: A batch's sum of losses.
        exam: The mean loss of held-out questions of all ranks, a collective; None: no questions are held out.
        learned: Batches that were learned, in order.
    """

    crew: Crew
    taus: Sequence[int]
    draws: np.random.Generator
    action: int
    loss: Callable[[HybridBatch], Tensor]
    exam: Callable[[], float | None]
    learned: list[HybridBatch] = field(default_factory=list)
    _queue: deque[tuple[Recipe, bool]] = field(default_factory=deque)
    _planned: int = 0

    def run(self, until: Until) -> None:
        """Learn; weights are equal on all ranks afterwards.

        If time ends a period or the pass, ranks take different numbers of steps. A rank that has finished continues to take
        part in averages until the last one has.
        """
        crew, over = self.crew, False
        timed = until.at_s is not None or crew.averager.timed
        crew.adjuster.begin()
        crew.averager.begin()
        before = self.exam() if crew.adjuster.judges else None
        while True:
            began_s, first = time.perf_counter(), len(self.learned)
            ended = over
            while not ended:
                queries = self._step(until.steps)
                over = until.reached(len(self.learned))
                ended = crew.averager.stepped(queries) or over
            more = crew.ranks.any(not over)[0] if timed else not over
            crew.averager.average(last=not more)
            if not more:
                return
            before = self._adjust(before, time.perf_counter() - began_s, len(self.learned) - first)

    def _step(self, most: int) -> int:
        """Learn one batch; returns its questions."""
        beat()
        crew = self.crew
        while len(self._queue) <= crew.ahead and not (most and self._planned >= most):
            self._plan()
        recipe, known = self._queue.popleft()
        batch = crew.generator.take(recipe, known=known)
        self.learned.append(batch)
        if batch.queries:
            crew.learner.step(self.loss(batch), 1 / batch.queries)
        else:
            crew.learner.step(None)
        return batch.queries

    def _plan(self) -> None:
        recipe, known = self.crew.reservoir.draw(self.action, self.taus, self.draws)
        self.crew.generator.want(recipe)
        self._queue.append((recipe, known))
        self._planned += 1

    def _adjust(self, before: float | None, seconds: float, steps: int) -> float | None:
        """Report a period to the adjuster, and let it choose; returns the loss to compare the next period with."""
        crew, after = self.crew, None
        if crew.adjuster.judges:
            after = self.exam()
            if before is not None and after is not None and steps and np.isfinite(before - after):
                crew.adjuster.told(Tried(self.learned[-1].size, (before - after) / steps, seconds / steps))
        self.action = crew.ranks.from_first(crew.adjuster.choose())
        return after
