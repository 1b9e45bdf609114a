"""How far an evaluation is: told in its log now and then, and read from there by the matrix that runs it."""

import json
import threading
import time
from collections.abc import Callable
from typing import IO, Any

import structlog

TOLD_EVERY_S = 5.0
"""A person wants to see that it goes on, and a log wants few lines."""

EVENT = "progress"

log = structlog.get_logger()


class Progress:
    """Logs epoch and snapshot every ``TOLD_EVERY_S``; the first snapshots of a run at once.

    Args:
        told: Whether this rank tells.
        seed: Of the run.
        epochs: How many it has; the test comes after them.
        snapshots: How many a pass over the file has.
    """

    def __init__(self, *, told: bool, seed: int, epochs: int, snapshots: int) -> None:
        self._told, self._seed, self._epochs, self._snapshots = told, seed, epochs, snapshots
        self._next_s = time.monotonic()

    def at(self, epoch: int, snapshot: int) -> None:
        """A snapshot of an epoch is done; both count from 0, and epoch ``epochs`` is the test."""
        if not self._told or time.monotonic() < self._next_s:
            return
        self._next_s = time.monotonic() + TOLD_EVERY_S
        log.info(
            EVENT,
            seed=self._seed,
            epoch=epoch,
            epochs=self._epochs,
            snapshot=snapshot + 1,
            snapshots=self._snapshots,
        )


def shown(line: dict[str, Any]) -> str:
    """A line of ``Progress`` for people."""
    epoch, epochs = line["epoch"], line["epochs"]
    phase = f"epoch {epoch + 1} of {epochs}" if epoch < epochs else "test"
    return f"{phase}, snapshot {line['snapshot']:,} of {line['snapshots']:,}"


class LogFollower:
    """Reads the log of an evaluation to its end on a thread of its own, and passes progress on.

    Args:
        lines: Standard error of the evaluation.
        told: Told of progress, for people.
    """

    def __init__(self, lines: IO[str], told: Callable[[str], None]) -> None:
        self._lines, self._told = lines, told
        self._read: list[str] = []
        self._thread = threading.Thread(target=self._follow, name="progress", daemon=True)
        self._thread.start()

    def text(self) -> str:
        """All that was read, once there is no more."""
        self._thread.join()
        return "".join(self._read)

    def _follow(self) -> None:
        for line in self._lines:
            if not line.startswith("{"):
                self._read.append(line)
                continue
            try:
                found = json.loads(line)
            except ValueError:
                found = {}
            if found.get("event") == EVENT:
                self._told(shown(found))
            else:
                self._read.append(line)
