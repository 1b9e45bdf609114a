"""Event time: the snapshot of an event, the progress of time, and lateness.

All of it is plain integers and arrays, persisted in the log's commits, without a runner's watermark, timer or pane.
``docs/semantics.md`` defines it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from freshet_graph.schemas.events import US_PER_S
from freshet_graph.schemas.store import Key
from freshet_graph.stream.arrays.kinds import Bool, Int64

BREAK_S: Final = 10.0
"""Quiet times of a partition further apart than this are separate, because brokers may have been gone in between."""


def place(t: Int64, interval_us: int, sealed_through: int | None) -> tuple[Int64, Bool]:
    """The snapshot that each event is accepted for.

    Args:
        t: int64 microseconds, shape (E,).
        interval_us: Length of a snapshot.
        sealed_through: Last closed τ; None: none is.

    Returns:
        τ as int64 and whether the event is late, both of shape (E,). τ is floor(t / interval); for a late event it is the open
        snapshot, the first one that isn't closed.
    """
    tau = np.floor_divide(t, interval_us)
    if sealed_through is None:
        return tau, np.zeros(len(tau), np.bool_)
    late = tau <= sealed_through
    return np.maximum(tau, sealed_through + 1), late


def closed_by(watermark_us: int, interval_us: int) -> int:
    """Last τ whose whole interval [τ·i, (τ+1)·i) lies before the watermark; later events have t ≥ watermark."""
    return watermark_us // interval_us - 1


@dataclass(slots=True)
class _Partition:
    max_t_us: int | None = None
    quiet: tuple[float, float] | None = None  # begin and end of a time with nothing unread; None: unknown


class EventClock:
    """The watermark over all topic partitions, and which of them are idle.

    The watermark is the minimum over topic partitions of (largest event time seen − out-of-orderness), and never decreases. A
    partition holds it until its first event. A partition is idle, and left out, once brokers have reported nothing unread for
    ``idle_timeout_s``; if all are idle, the largest event time seen determines the watermark. While brokers don't answer, no
    partition becomes idle.
    """

    def __init__(self, *, out_of_orderness_us: int, idle_timeout_s: float) -> None:
        """Start without partitions.

        Args:
            out_of_orderness_us: How far events of one partition may be out of order.
            idle_timeout_s: Seconds with nothing unread that make a partition idle.
        """
        self._out_of_orderness_us = out_of_orderness_us
        self._idle_timeout_s = idle_timeout_s
        self._partitions: dict[Key, _Partition] = {}
        self._watermark_us: int | None = None

    def assign(self, keys: Iterable[Key]) -> None:
        """Set the partitions being read: new ones hold the watermark, removed ones don't."""
        self._partitions = {key: self._partitions.get(key, _Partition()) for key in keys}

    def restore(self, key: Key, max_t_us: int | None) -> None:
        """Add a partition from the last commit; it holds the watermark until it is read again."""
        self._partitions[key] = _Partition(max_t_us)

    def hear(
        self,
        key: Key,
        *,
        max_t_us: int | None,
        messages: bool,
        quiet: tuple[float, float] | None,
        now_s: float,
    ) -> None:
        """Add one poll of a partition.

        Args:
            key: The partition.
            max_t_us: Largest event time in the poll; None: it had no event.
            messages: Whether it had messages, with events or without.
            quiet: Begin and end of the time in which brokers reported nothing unread, in seconds ago; None: something is
                unread, or it is unknown.
            now_s: The clock.
        """
        partition = self._partitions.setdefault(key, _Partition())
        if max_t_us is not None:
            partition.max_t_us = max(max_t_us, max_t_us if partition.max_t_us is None else partition.max_t_us)
        if quiet is None:
            partition.quiet = None
            return
        since, until = now_s - quiet[0], now_s - quiet[1]
        if not messages and partition.quiet is not None and since - partition.quiet[1] <= BREAK_S:
            since, until = min(since, partition.quiet[0]), max(until, partition.quiet[1])
        partition.quiet = (since, until)

    def max_t_us(self, key: Key) -> int | None:
        """Largest event time seen in a partition."""
        partition = self._partitions.get(key)
        return None if partition is None else partition.max_t_us

    def partition_watermark_us(self, key: Key) -> int | None:
        """Largest event time seen in a partition minus the out-of-orderness; None before its first event."""
        latest = self.max_t_us(key)
        return None if latest is None else latest - self._out_of_orderness_us

    def watermark_us(self) -> int | None:
        """Advance the watermark as far as possible; microseconds, None while it is unknown."""
        self._watermark_us = self.peek_us()
        return self._watermark_us

    def peek_us(self) -> int | None:
        """The watermark that ``watermark_us`` would return, without advancing it, because looking must not change it."""
        busy = [p for p in self._partitions.values() if not self._idle(p)]
        times = [p.max_t_us for p in (busy or self._partitions.values())]
        seen = [t for t in times if t is not None]
        if not seen or (busy and len(seen) < len(times)):
            return self._watermark_us
        now = (min(seen) if busy else max(seen)) - self._out_of_orderness_us
        return now if self._watermark_us is None else max(now, self._watermark_us)

    def holder(self) -> tuple[Key, int | None] | None:
        """The partition that holds the watermark, and its largest event time; None: all are idle."""
        busy = [
            (p.max_t_us is not None, p.max_t_us or 0, key)
            for key, p in self._partitions.items()
            if not self._idle(p)
        ]
        if not busy:
            return None
        heard, t_us, key = min(busy)
        return key, t_us if heard else None

    def ahead_us(self) -> int | None:
        """The watermark if it waited for no partition; None before the first event."""
        times = [p.max_t_us for p in self._partitions.values() if p.max_t_us is not None]
        return max(times) - self._out_of_orderness_us if times else None

    def all_idle_s(self) -> float | None:
        """How long all partitions are known to have been idle; None while one isn't, or there are none."""
        quiet = [p.quiet for p in self._partitions.values() if p.quiet is not None and self._idle(p)]
        if not quiet or len(quiet) < len(self._partitions):
            return None
        since, until = max(since for since, _ in quiet), min(until for _, until in quiet)
        return max(0.0, until - since - self._idle_timeout_s)

    def _idle(self, partition: _Partition) -> bool:
        return partition.quiet is not None and (
            partition.quiet[1] - partition.quiet[0] >= self._idle_timeout_s
        )


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
        holder: The partition that keeps that snapshot from being sealed; None: there is none.
    """

    until_us: int | None
    holder: Held | None


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
