"""Wall time of the phases of a step."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from stream.service.heartbeat import beat


class Phases:
    """Measures named phases: ``with phases("train"): …``.

    Attributes:
        seconds: Wall seconds by phase, in order of their end.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Add the seconds of the body to a phase."""
        beat()
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - began
