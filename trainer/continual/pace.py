"""How a live stream is learned: passes, rate and batches by default, and what happens to snapshots that arrive too fast."""

from dataclasses import dataclass
from typing import Any, Literal

import structlog

from freshet_graph.schemas.trainer_config import Optimisation
from freshet_graph.trainer.models.interface import Kind

Overload = Literal["train-all", "skip-to-latest", "subsample"]


@dataclass(frozen=True, slots=True)
class LoadPolicy:
    """The next snapshot, and the share of it to learn, by the lag of training.

    ``train-all``: each, whole. ``skip-to-latest``: with more than ``max_snapshots`` waiting, the latest. ``subsample``: up
    to a quarter of ``max_snapshots`` waiting, each whole; from there on fewer and fewer passes, none at ``max_snapshots``;
    beyond, skip until half of ``max_snapshots`` wait. Snapshots that are not learned update graph and memory under all three.

    Attributes:
        overload: The policy.
        max_snapshots: Largest number of waiting snapshots without lag.
    """

    overload: Overload
    max_snapshots: int

    def next(self, after: int, newest: int) -> int:
        """Sequence number of the snapshot to take, after number ``after``; ``newest`` > ``after`` is there."""
        if self.overload == "train-all" or newest - after <= self.max_snapshots:
            return after + 1
        return newest if self.overload == "skip-to-latest" else newest - self.max_snapshots // 2

    def passes(self, lag: int, epochs: int) -> float:
        """Passes over a snapshot's events, in 0 … ``epochs``.

        Args:
            lag: Snapshots that wait after it.
            epochs: Passes without lag.
        """
        free = self.max_snapshots // 4
        if self.overload != "subsample" or lag <= free:
            return float(epochs)
        return epochs * max(0.0, 1.0 - (lag - free) / (self.max_snapshots - free))


YOUNG = 10_000
"""Events of a stream that an event model learns in two passes, before one is enough."""
FASTER = 2.0
"""Factor of the rate: half the steps, twice as large."""
FOLLOWED = 3_000.0
"""Events per second that batches of the first size sustain on one core, with a margin (docs/performance.md)."""
LARGEST = 1_024
"""Larger batches take no less time, and learn much less."""
NEWEST = 0.5
"""Weight of the newest snapshot in the mean arrival rate of events."""
CALMER = 0.75
"""Batches become smaller below this share of the rate at which they would become larger again."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Turn:
    """Settings for learning one snapshot.

    Attributes:
        passes: Over its events.
        factor: Of the learning rate.
        batch: Events per step.
    """

    passes: int
    factor: float
    batch: int


class Pace:
    """Decides by the events so far alone, so that all ranks and a resumed run decide alike.

    An event model takes in a snapshot's events one after the other in any pass, so a second pass costs as much as the
    first. Young weights need it; later one pass at a higher rate has the same AP (docs/performance.md).

    Under ``batch_size: auto`` a faster stream gets larger batches, and young weights get only one pass, rather than fewer
    learned events. The rate grows in proportion to the batch, which validates better than its root (docs/performance.md).

    Args:
        optimisation: As configured; its values take precedence.
        kind: Of the model.
        interval_s: Length of a snapshot.
    """

    def __init__(self, optimisation: Optimisation, kind: Kind, interval_s: float) -> None:
        self._given, self._interval_s = optimisation, interval_s
        self._open = optimisation.epochs is None and kind == "event"
        self._events = 0
        self._arriving: float | None = None  # events per second
        self._batch = optimisation.batch

    def turn_for(self, events: int) -> Turn:
        """Settings for the next snapshot, of so many events."""
        young = self._events < YOUNG
        self._events += events
        follows = self._given.batch_size == "auto"
        if follows:
            self._follow(events / self._interval_s)
        passes = self._given.passes
        if self._open:
            passes = 2 if young and self._batch == self._given.batch else 1
        factor = 1.0
        if self._given.learning_rate is None:
            factor = (FASTER if self._open else 1.0) * self._batch / self._given.batch
        return Turn(passes, factor, self._batch)

    def state(self) -> dict[str, Any]:
        """The state that ``restore`` continues from."""
        return {"events": self._events, "arriving": self._arriving, "batch": self._batch}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a ``state()``; without one, from an older checkpoint, the stream is not young."""
        self._events = int(state.get("events", YOUNG))
        self._arriving = state.get("arriving")
        if self._given.batch_size == "auto":
            self._batch = int(state.get("batch", self._batch))

    def _follow(self, arriving: float) -> None:
        """Choose the batch by the arrival rate, events per second."""
        known = arriving if self._arriving is None else self._arriving
        self._arriving = known + NEWEST * (arriving - known)
        first, was = self._given.batch, self._batch
        while self._batch < LARGEST and self._arriving > FOLLOWED * self._batch / first:
            self._batch *= 2
        while self._batch > first and self._arriving < CALMER * FOLLOWED * self._batch / (2 * first):
            self._batch //= 2
        if self._batch != was:
            log.info("batches follow the stream", batch=self._batch, events_per_s=round(self._arriving))
