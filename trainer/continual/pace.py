"""How a live stream is learned where the configuration leaves it open: passes over a snapshot, and their rate."""

from dataclasses import dataclass
from typing import Any

from schemas.trainer_config import Optimisation
from trainer.models.interface import Kind

YOUNG = 10_000
"""Events of a stream that an event model learns in two passes each, before one is enough."""
FASTER = 2.0
"""By how much the rate is higher: half the steps, twice as large."""


@dataclass(frozen=True, slots=True)
class Turn:
    """How one snapshot is learned.

    Attributes:
        passes: Over its events.
        factor: Of the learning rate.
    """

    passes: int
    factor: float = 1.0


class Pace:
    """Decides by the events so far alone, so that all ranks and a run that goes on after an interruption decide alike.

    An event model takes a snapshot's events in one after the other in any pass, so a second pass costs what the first
    does. Weights that are young need it; later one pass at a higher rate has the same AP (docs/performance.md).

    Args:
        optimisation: As configured: what it names stays.
        kind: Of the model.
    """

    def __init__(self, optimisation: Optimisation, kind: Kind) -> None:
        self._given = optimisation
        self._open = optimisation.epochs is None and kind == "event"
        self._events = 0

    def take(self, events: int) -> Turn:
        """The next snapshot, of so many events, is learned this way."""
        young = self._events < YOUNG
        self._events += events
        if not self._open:
            return Turn(self._given.passes)
        return Turn(2 if young else 1, FASTER if self._given.learning_rate is None else 1.0)

    def state(self) -> dict[str, Any]:
        """The state that ``restore`` continues from."""
        return {"events": self._events}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a ``state()``; without one, from an older checkpoint, the stream is not young."""
        self._events = int(state.get("events", YOUNG))
