"""When a checkpoint is due: after so many snapshots, or as often as it takes a small share of the time."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SHARE = 20
"""Seconds between two checkpoints per second that one takes. A crash repeats at most these seconds and a snapshot."""


class Saving:
    """When the next checkpoint is due. Rank 0 decides for all ranks. Learning does not depend on it.

    Args:
        every: Snapshots between checkpoints; None: they take at most one part in ``SHARE`` of the time. A stream with
            waiting time has one after every snapshot.
        now: The clock, seconds.
    """

    def __init__(self, every: int | None, now: Callable[[], float] = time.monotonic) -> None:
        self._every, self._now = every, now
        self._took = 0.0
        self._ended = now()

    def due(self, sequence: int) -> bool:
        """Whether a checkpoint is due after snapshot number ``sequence``."""
        if self._every is not None:
            return (sequence + 1) % self._every == 0
        return self._now() - self._ended >= SHARE * self._took

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Measure the body, which writes a checkpoint."""
        began = self._now()
        yield
        self._ended = self._now()
        self._took = self._ended - began
