"""When a checkpoint is due: after so many snapshots, or as often as it costs little of the time."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SHARE = 20
"""Seconds between two checkpoints for each second that one takes. A crash repeats no more than that and a snapshot."""


class Saving:
    """When the next checkpoint is due; rank 0 asks, and all ranks do as it says. What is learned does not depend on it.

    Args:
        every: Snapshots between checkpoints; None: what they cost is at most one part in ``SHARE`` of the time. A stream
            that leaves time to wait has one after every snapshot.
        now: The clock, seconds.
    """

    def __init__(self, every: int | None, now: Callable[[], float] = time.monotonic) -> None:
        self._every, self._now = every, now
        self._took = 0.0
        self._ended = now()

    def due(self, sequence: int) -> bool:
        """Whether one is to be written after snapshot number ``sequence``."""
        if self._every is not None:
            return (sequence + 1) % self._every == 0
        return self._now() - self._ended >= SHARE * self._took

    @contextmanager
    def measured(self) -> Iterator[None]:
        """What is done inside is writing one."""
        began = self._now()
        yield
        self._ended = self._now()
        self._took = self._ended - began
