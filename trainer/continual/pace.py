"""Defaults for learning a live stream: passes over a snapshot, their rate, and batches."""

from dataclasses import dataclass
from typing import Any

import structlog

from schemas.trainer_config import Optimisation
from trainer.models.interface import Kind

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

    def take(self, events: int) -> Turn:
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
