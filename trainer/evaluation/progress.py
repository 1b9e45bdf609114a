"""Progress of an evaluation: logged now and then, and read from the log by the matrix that runs it."""

import json
import threading
import time
from collections.abc import Callable
from typing import IO, Any

import structlog

from freshet_graph.stream.service.logs import show_seconds

SHOWN_EVERY_S = 5.0
"""Often enough for a person, and few lines for a log."""

EVENT = "progress"

log = structlog.get_logger()


class Progress:
    """Logs epoch and snapshot every ``SHOWN_EVERY_S``; the first snapshots of a run at once.

    Args:
        shown: Whether this rank logs.
        seed: Of the run.
        epochs: Of the run; the test follows.
        snapshots: Of a pass over the file.
    """

    def __init__(self, *, shown: bool, seed: int, epochs: int, snapshots: int) -> None:
        self._shown, self._about = shown, {"seed": seed, "epochs": epochs, "snapshots": snapshots}
        self._began_s = self._next_s = time.monotonic()

    def snapshot_done(self, epoch: int, snapshot: int) -> None:
        """A snapshot of an epoch is done; both count from 0, and epoch ``epochs`` is the test."""
        if self._shown and time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + SHOWN_EVERY_S
            line = {"epoch": epoch, "snapshot": snapshot + 1, **self._about}
            log.info(
                EVENT,
                **line,
                for_people=f"seed {self._about['seed']}, {shown(line)}, {self._left(line)} left",
            )

    def _left(self, line: dict[str, int]) -> str:
        """The time of the passes to come, if no epoch is left out."""
        done = line["epoch"] + line["snapshot"] / line["snapshots"]
        left_s = (time.monotonic() - self._began_s) * (line["epochs"] + 1 - done) / done
        return f"at most {show_seconds(left_s)}"


def shown(line: dict[str, Any]) -> str:
    """A line of ``Progress`` for people."""
    epoch, epochs = line["epoch"], line["epochs"]
    phase = f"epoch {epoch + 1} of {epochs}" if epoch < epochs else "test"
    return f"{phase}, snapshot {line['snapshot']:,} of {line['snapshots']:,}"


class LogFollower:
    """Reads the log of an evaluation to its end on a thread of its own, and reports progress.

    Args:
        lines: Standard error of the evaluation.
        report: Gets sentences about progress, for people.
    """

    def __init__(self, lines: IO[str], report: Callable[[str], None]) -> None:
        self._lines, self._report = lines, report
        self._read: list[str] = []
        self._thread = threading.Thread(target=self._follow, name="progress", daemon=True)
        self._thread.start()

    def text(self) -> str:
        """All other text, after the end of the log."""
        self._thread.join()
        return "".join(self._read)

    def _follow(self) -> None:
        for line in self._lines:
            if not line.startswith("{"):
                self._read.append(line)
                continue
            try:
                record = json.loads(line)
            except ValueError:
                record = {}
            if record.get("event") == EVENT:
                self._report(shown(record))
            else:
                self._read.append(line)
