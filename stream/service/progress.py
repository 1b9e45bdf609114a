"""Progress of long work: a live line on a terminal, elsewhere a line now and then."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

from rich.live import Live
from rich.text import Text

from freshet_graph.stream.service.output import note, notes

LIVE_S = 0.25
PLAIN_S = 5.0


@dataclass(frozen=True, slots=True)
class StatusLine:
    """Progress as a sentence, and in a log as an event with fields."""

    sentence: str
    event: str = "progress"
    fields: Mapping[str, Any] = field(default_factory=dict)


class Display:
    """Shows changing progress from a thread of its own inside the block.

    ``progress`` makes it, often on a terminal, every few seconds elsewhere; None: nothing new to show.
    """

    def __init__(self, progress: Callable[[], StatusLine | None]) -> None:
        self._progress = progress
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="display", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        if notes.is_terminal:
            with Live(console=notes, refresh_per_second=4, transient=True) as live:
                while not self._over.wait(LIVE_S):
                    shown = self._progress()
                    live.update(Text(shown.sentence if shown is not None else ""))
            return
        last = None
        while not self._over.wait(PLAIN_S):
            shown = self._progress()
            if shown is not None and shown != last:
                note(shown.sentence, shown.event, shown.fields)
            last = shown


class Rate:
    """Units per second between two calls."""

    def __init__(self) -> None:
        self._then, self._count = time.monotonic(), 0

    def of(self, count: int) -> float:
        """The rate since the last call, given a running total."""
        now = time.monotonic()
        rate = (count - self._count) / max(now - self._then, 1e-9)
        self._then, self._count = now, count
        return rate


@contextmanager
def counting(text: str) -> Iterator[Callable[..., None]]:
    """Show the progress of work inside the block.

    Args:
        text: A format of the units done, of all units, of further counts, and of the units per second.

    Yields:
        Takes the units done, all units, and the further counts.
    """
    latest_counts: tuple[int, ...] = (0, 0)
    rate = Rate()

    def reached(*counts: int) -> None:
        nonlocal latest_counts
        latest_counts = counts

    def shown() -> StatusLine | None:
        done, units, *further = latest_counts
        if not units:
            return None
        per_s = rate.of(done)
        return StatusLine(
            text.format(done, units, *further, per_s),
            fields={"done": done, "of": units, "per_s": round(per_s)},
        )

    with Display(shown):
        yield reached


@contextmanager
def steps(text: str) -> Iterator[Callable[..., None]]:
    """Show which step the work inside the block is at.

    Args:
        text: A format of what was last reached.

    Yields:
        Takes what is reached.
    """
    latest: tuple[object, ...] = ()

    def reached(*step: object) -> None:
        nonlocal latest
        latest = step

    with Display(lambda: StatusLine(text.format(*latest)) if latest else None):
        yield reached
