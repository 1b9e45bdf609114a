"""Liveness of ranks: each increments a number of its own in the ranks' shared store, and watches those of the others."""

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol, Self

import structlog

BEAT_S = 2.0
"""How often a rank increments its number and reads the others."""

SILENT_S = 30.0
"""A rank whose number has not changed for this long is down: its process is gone, stopped, or out of reach."""

LOST_S = 60.0
"""A rank that has been silent for this long does not come back: the attempt ends, so that all ranks can start again."""

PROCESS = 1 << 40
"""What a process adds to its rank's number when it begins: a second one means that the first has ended."""

_STORE_TIMEOUT_S = 10.0

log = structlog.get_logger()


class Numbers(Protocol):
    """Numbers by name that all ranks share; a ``TCPStore`` is one."""

    def add(self, key: str, amount: int, /) -> int:
        """Add to a number, at first 0, and return the sum."""
        ...


class Heartbeats:
    """This rank's heartbeat, and when it last heard the others'.

    A peer that hangs, or behind a cut link, leaves the others waiting in a collective for minutes. Heartbeats say which one
    is missing, and end this process after ``LOST_S``. So do they if a rank has begun again on its own: it would wait for
    answers to what the others asked its former process.

    Args:
        store: Shared by all ranks; None: this rank is alone.
        rank: This rank.
        size: Number of ranks.
        clock: Monotonic seconds.
    """

    def __init__(
        self, store: Numbers | None, rank: int, size: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store, self._rank, self.size, self._clock = store, rank, size, clock
        self._numbers = [0] * size
        self._heard_s = [clock()] * size
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @classmethod
    def from_environment(cls) -> Self:
        """Begin to beat in the store of the ranks, before any collective; a rank alone needs none."""
        rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        if size == 1:
            return cls(None, rank, size)
        from freshet_graph.trainer.wire.joining import shared_store

        # A client of its own: the group's may be blocked by a call that waits.
        store = shared_store("heartbeats", _STORE_TIMEOUT_S)
        beats = cls(store, rank, size)
        store.add(str(rank), PROCESS)
        beats._thread = threading.Thread(target=beats._run, name="heartbeats", daemon=True)
        beats._thread.start()
        return beats

    def up(self, rank: int) -> bool:
        """Whether a rank was heard within ``SILENT_S``; this one always is."""
        return rank == self._rank or self._clock() - self._heard_s[rank] < SILENT_S

    def lost(self) -> str:
        """Why this attempt cannot continue; empty: it can. A rank that was never heard is waited for."""
        for rank, (number, heard_s) in enumerate(zip(self._numbers, self._heard_s, strict=True)):
            if number >= 2 * PROCESS:
                return f"rank {rank} began again"
            if rank != self._rank and number and self._clock() - heard_s >= LOST_S:
                return f"rank {rank} has been silent for {LOST_S:g} seconds"
        return ""

    def beat(self) -> None:
        """Increment this rank's number and read the others.

        Raises:
            RuntimeError: The store does not answer.
        """
        assert self._store is not None
        for rank in range(self.size):
            number = self._store.add(str(rank), int(rank == self._rank))
            if number != self._numbers[rank]:
                self._numbers[rank], self._heard_s[rank] = number, self._clock()

    def close(self) -> None:
        """Stop beating."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(_STORE_TIMEOUT_S)

    def _run(self) -> None:
        while not self._stop.is_set():
            with suppress(RuntimeError):  # without the store no rank is heard
                self.beat()
            if reason := self.lost():
                log.error(
                    f"{reason}, so this attempt ends. Start all ranks again: they resume from the newest checkpoint",
                    rank=self._rank,
                    exit_code=1,
                )
                os._exit(1)  # the main thread waits in a collective, which nothing else ends
            self._stop.wait(BEAT_S)
