"""Averages of separately learning ranks: when, and the use of steps taken meanwhile (DynaHB, algorithm 2)."""

import time
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from freshet_graph.trainer.learning.step import Learner
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.wire.exchange import Handle

Average = Literal["every_steps", "every_s", "delayed"]


class Averager:
    """Sets weights and Adam's moments of all ranks to their means, each weighted by the questions it learned since.

    ``every_steps`` and ``every_s`` wait for the average. ``delayed`` takes the next steps meanwhile and adds them to the
    means on arrival, so a rank's weights are the means of one period ago and its own steps since.

    Args:
        learner: Takes steps by itself.
        ranks: All ranks.
        kind: When, see above.
        every: Steps, or with ``every_s`` seconds, between averages.

    Attributes:
        count: Averages since ``since_last``.
    """

    def __init__(self, learner: Learner, ranks: Ranks, kind: Average, every: float) -> None:
        self._learner, self._ranks, self._kind, self._every = learner, ranks, kind, every
        self._flight: tuple[Handle[list[Tensor]], list[Tensor]] | None = None
        self.count = 0
        self._divergences: list[Tensor] = []  # of each average since then, on the device
        self.begin()

    @property
    def timed(self) -> bool:
        """Whether time ends a period, and ranks take different numbers of steps."""
        return self._kind == "every_s"

    def begin(self) -> None:
        """A period begins."""
        self._steps, self._queries, self._began_s = 0, 0, time.perf_counter()

    def stepped(self, queries: int) -> bool:
        """Count a step; returns whether the period is over for this rank."""
        self._steps, self._queries = self._steps + 1, self._queries + queries
        if self._kind == "every_s":
            return time.perf_counter() - self._began_s >= self._every
        return self._steps >= self._every

    def average(self, *, last: bool) -> None:
        """Average, or begin to; a collective.

        Args:
            last: Whether weights are to be equal on all ranks now.
        """
        self._arrive()
        if self._kind == "delayed" and not last:
            tables = self._learner.tables()
            began = [table.detach().clone() for table in tables]
            self._flight = self._ranks.begin_average(tables, self._weight()), began
        else:
            tables = self._learner.tables()
            means = self._ranks.begin_average(tables, self._weight()).wait()
            self._note(tables, means)
            _set(tables, means)
        self.begin()

    def since_last(self) -> tuple[int, float]:
        """Averages since the last call, and the largest ‖x − x̄‖ / ‖x̄‖ of this rank's weights before one of them."""
        count, largest = self.count, 0.0
        if self._divergences:
            largest = float(torch.stack(self._divergences).max())  # the only question to the device
        self.count, self._divergences = 0, []
        return count, largest

    def _weight(self) -> float:
        """Ranks that learned nothing have next to no weight; if none has learned, all weigh the same."""
        return max(float(self._queries), 1e-6)

    def _arrive(self) -> None:
        if self._flight is None:
            return
        (handle, began), self._flight = self._flight, None
        means, tables = handle.wait(), self._learner.tables()
        self._note(began, means)
        # moments that did not exist when the average began stay this rank's own until the next one
        _set(tables, [mean + (now - then) for mean, now, then in zip(means, tables, began, strict=False)])

    @torch.no_grad()
    def _note(self, before: Sequence[Tensor], means: Sequence[Tensor]) -> None:
        means = means[: self._learner.num_weights]
        apart = _norm([table - mean for table, mean in zip(before, means, strict=False)])
        self._divergences.append(
            torch.nan_to_num(apart / _norm(means), posinf=0.0)
        )  # where all weights are 0
        self.count += 1


@torch.no_grad()
def _set(tables: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    for table, value in zip(tables, values, strict=False):
        table.copy_(value)


def _norm(tables: Sequence[Tensor]) -> Tensor:
    """Of all numbers together, a scalar."""
    return torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(table) for table in tables]))
