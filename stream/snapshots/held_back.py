"""The topic partition that keeps a snapshot from being sealed, and for how long."""

from dataclasses import dataclass

from schemas.events import US_PER_S
from stream.snapshots.event_time import EventClock, Key, closed_by


@dataclass(frozen=True, slots=True)
class Held:
    """A topic partition whose event time stands still while others are past the end of the oldest open snapshot.

    Attributes:
        topic: Its topic.
        partition: Its number.
        age_s: Duration, seconds.
        behind_s: How far its event time is behind that of the others, seconds; None: it had no event yet.
    """

    topic: str
    partition: int
    age_s: float
    behind_s: float | None

    @property
    def key(self) -> Key:
        """Topic and partition."""
        return self.topic, self.partition


@dataclass(frozen=True, slots=True)
class OpenEventTime:
    """Progress of sealing.

    Attributes:
        until_us: End of the oldest open snapshot, event time in microseconds; None: nothing is open.
        held: The partition that keeps that snapshot from being sealed; None: there is none.
    """

    until_us: int | None
    held: Held | None


class HoldingWatch:
    """Watches an ``EventClock`` for a partition that holds it back.

    A partition with nothing unread holds event time back, too, until it is idle. That is no fault, so nothing is reported before
    twice ``idle_timeout_s``.
    """

    def __init__(self, interval_us: int, idle_timeout_s: float) -> None:
        """Begin with nothing held.

        Args:
            interval_us: Length of a snapshot, microseconds.
            idle_timeout_s: Seconds with nothing unread that make a partition idle.
        """
        self._interval_us = interval_us
        self._patience_s = 2 * idle_timeout_s
        self._holder: tuple[Key, int | None] | None = None
        self._since_s = 0.0

    def look(self, clock: EventClock, min_tau: int | None, now_s: float) -> OpenEventTime:
        """The partition that holds the oldest open snapshot open, if any.

        Args:
            clock: Current event time.
            min_tau: The oldest open snapshot; None: nothing is open.
            now_s: Time of day or of a monotonic clock, seconds.
        """
        if min_tau is None:
            self._holder = None
            return OpenEventTime(None, None)
        until_us = (min_tau + 1) * self._interval_us
        watermark_us, ahead_us, holder = clock.peek_us(), clock.ahead_us(), clock.holder()
        closed = watermark_us is not None and closed_by(watermark_us, self._interval_us) >= min_tau
        if closed or holder is None or ahead_us is None or ahead_us < until_us:
            self._holder = None
            return OpenEventTime(until_us, None)
        if holder != self._holder:  # another partition, or it has advanced
            self._holder, self._since_s = holder, now_s
        age_s = now_s - self._since_s
        if age_s < self._patience_s:
            return OpenEventTime(until_us, None)
        key, _ = holder
        latest_us = clock.partition_watermark_us(key)
        behind_s = None if latest_us is None else (ahead_us - latest_us) / US_PER_S
        return OpenEventTime(until_us, Held(*key, age_s, behind_s))
