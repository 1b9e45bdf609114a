"""One pass of ``hybrid`` over a horizon: steps that a rank takes alone, and averages of all ranks between them."""

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from stream.service.heartbeat import beat
from trainer.learning.step import Learner
from trainer.ranks import Ranks
from trainer.strategies.snapshots.adjusters import Adjuster, Outcome
from trainer.strategies.snapshots.averaging import Averager
from trainer.strategies.snapshots.closed_batch import HybridBatch
from trainer.strategies.snapshots.reservoir import BatchGenerator, Recipe, Reservoir

clock = time.perf_counter
"""Seconds of a step, by which an adjuster judges its size."""


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
        ahead: Batches planned before their use.
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
        learned: Batches that were learned, in order.
    """

    crew: Crew
    taus: Sequence[int]
    draws: np.random.Generator
    action: int
    loss: Callable[[HybridBatch], Tensor]
    learned: list[HybridBatch] = field(default_factory=list)
    _queue: deque[tuple[Recipe, bool]] = field(default_factory=deque)
    _planned: int = 0

    def run(self, until: Until) -> None:
        """Learn; weights are equal on all ranks afterwards.

        If time ends a period or the pass, ranks take different numbers of steps. A rank that has finished continues to take
        part in averages until the last one has. Under an adjuster that adapts, ranks meet after every step instead, and the
        first to finish ends the period or the pass of all.
        """
        crew, over = self.crew, False
        timed = until.at_s is not None or crew.averager.timed
        crew.averager.begin()
        while True:
            ended = over
            while not ended:
                queries = self._step(until.steps)
                over = until.reached(len(self.learned))
                ended = crew.averager.stepped(queries) or over
                if crew.adjuster.adapts:
                    over, ended = self._choose(over, ended)
            more = crew.ranks.any(not over)[0] if timed else not over
            crew.averager.average(last=not more)
            if not more:
                return

    def _step(self, most: int) -> int:
        """Learn one batch; returns its questions."""
        beat()
        crew = self.crew
        while len(self._queue) <= crew.ahead and not (most and self._planned >= most):
            self._plan()
        recipe, known = self._queue.popleft()
        began_s = clock()
        batch = crew.generator.take(recipe, known=known)
        self.learned.append(batch)
        if not batch.queries:
            crew.learner.step(None)
            return 0
        loss = self.loss(batch)
        crew.learner.step(loss, 1 / batch.queries)
        if crew.adjuster.adapts:
            mean = float(loss.detach()) / batch.queries  # the host waits for the device here, and only here
            if math.isfinite(mean):
                crew.adjuster.observe(Outcome(batch.size, mean, clock() - began_s))
        return batch.queries

    def _plan(self) -> None:
        recipe, known = self.crew.reservoir.draw(self.action, self.taus, self.draws)
        self.crew.generator.want(recipe)
        self._queue.append((recipe, known))
        self._planned += 1

    def _choose(self, over: bool, ended: bool) -> tuple[bool, bool]:
        """Choose the size of the next planned batch (algorithm 2, lines 12 and 13); a collective.

        Returns:
            Whether the pass, and whether the period, is over for any rank.
        """
        ranks, own = self.crew.ranks, self.crew.adjuster.choose()
        self.action, *ends = ranks.maximum([own if ranks.rank == 0 else 0, over, ended])
        return bool(ends[0]), bool(ends[1])
