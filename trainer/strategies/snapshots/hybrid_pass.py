"""One pass of ``hybrid`` over a horizon: steps that a rank takes alone, and averages of all ranks between them."""

import math
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from trainer.ranks import Ranks
from trainer.strategies.passes import Step
from trainer.strategies.snapshots.adjusters import Adjuster, Outcome
from trainer.strategies.snapshots.averaging import Averager
from trainer.strategies.snapshots.batch_maker import HybridBatch, Recipe
from trainer.strategies.snapshots.reservoir import BatchGenerator, Reservoir

clock = time.perf_counter
"""Seconds of a step, by which an adjuster judges its size."""


@dataclass(slots=True)
class HybridPass:
    """A pass, which all ranks make.

    Attributes:
        ranks: All ranks.
        averager: Averages.
        adjuster: Chooses sizes, on rank 0.
        reservoir: Of recipes.
        generator: Of batches.
        ahead: Batches planned before their use.
        taus: Interval indices, the newest lesson's last.
        draws: Draws batches, equal on all ranks.
        action: Size of the next planned batches.
        loss: A batch's sum of losses.
        most: Steps after which it ends; 0: no limit.
        until_s: Time of ``time.perf_counter`` at which it ends; None: no limit.
        learned: Batches that were learned, in order.
    """

    ranks: Ranks
    averager: Averager
    adjuster: Adjuster
    reservoir: Reservoir
    generator: BatchGenerator
    ahead: int
    taus: Sequence[int]
    draws: np.random.Generator
    action: int
    loss: Callable[[HybridBatch], Tensor]
    most: int
    until_s: float | None
    learned: list[HybridBatch] = field(default_factory=list)
    _queue: deque[tuple[Recipe, bool]] = field(default_factory=deque)
    _planned: int = 0

    def steps(self) -> Iterator[Step]:
        """Steps, and averages between them; weights are equal on all ranks afterwards.

        If time ends a period or the pass, ranks take different numbers of steps. A rank that has finished continues to take
        part in averages until the last one has. Under an adjuster that adapts, ranks meet after every step instead, and the
        first to finish ends the period or the pass of all.
        """
        over, timed = False, self.until_s is not None or self.averager.timed
        self.averager.begin()
        while True:
            ended = over
            while not ended:
                queries = yield from self._step()
                late = self.until_s is not None and time.perf_counter() >= self.until_s
                over = late or bool(self.most and len(self.learned) >= self.most)
                ended = self.averager.stepped(queries) or over
                if self.adjuster.adapts:
                    over, ended = self._choose(over, ended)
            more = self.ranks.any(not over)[0] if timed else not over
            self.averager.average(last=not more)
            if not more:
                return

    def _step(self) -> Generator[Step, None, int]:
        """A step over one batch; returns its questions."""
        while len(self._queue) <= self.ahead and not (self.most and self._planned >= self.most):
            self._plan()
        recipe, known = self._queue.popleft()
        began_s = clock()
        batch = self.generator.take(recipe, known=known)
        self.learned.append(batch)
        loss = self.loss(batch) if batch.queries else None
        yield Step(loss, batch.queries, batch.items)
        if self.adjuster.adapts and loss is not None:
            mean = float(loss.detach()) / batch.queries  # the host waits for the device here, and only here
            if math.isfinite(mean):
                self.adjuster.observe(Outcome(batch.size, mean, clock() - began_s))
        return batch.queries

    def _plan(self) -> None:
        recipe, known = self.reservoir.draw(self.action, self.taus, self.draws)
        self.generator.want(recipe)
        self._queue.append((recipe, known))
        self._planned += 1

    def _choose(self, over: bool, ended: bool) -> tuple[bool, bool]:
        """Choose the size of the next planned batch (algorithm 2, lines 12 and 13); a collective.

        Returns:
            Whether the pass, and whether the period, is over for any rank.
        """
        ranks, own = self.ranks, self.adjuster.choose()
        self.action, *ends = ranks.maximum([own if ranks.rank == 0 else 0, over, ended])
        return bool(ends[0]), bool(ends[1])
