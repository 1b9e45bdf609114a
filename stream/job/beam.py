"""Beam, which takes a second to load, on a thread of its own while the job looks for its brokers."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Self

from freshet_graph.stream.background import LOOK_S, ended
from freshet_graph.stream.service.heartbeat import beat


def load_beam() -> None:
    """Import the pipeline, without Beam's warnings about packages of clouds that are not installed."""
    with _without_warnings():
        import freshet_graph.stream.pipeline  # noqa: F401


class BeamLoading:
    """Loads Beam from ``__enter__``; ``wait`` before the pipeline is imported.

    No other thread may import it meanwhile: two threads that meet in a circle of imports see half a module.
    """

    def __init__(self) -> None:
        self._thread = threading.Thread(target=self._load, name="beam", daemon=True)

    def wait(self) -> None:
        """Wait until Beam is loaded. If it could not be, the caller's import fails again, with its error."""
        while self._thread.is_alive():
            beat()
            self._thread.join(LOOK_S)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        ended(self._thread, 0)

    @staticmethod
    def _load() -> None:
        with suppress(Exception):  # the job's own import has the same error
            load_beam()


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Drop what this thread says through the root logger and as warnings; other threads are heard."""
    this_thread = threading.get_ident()

    def heard(record: logging.LogRecord) -> bool:
        return record.thread != this_thread

    loggers = logging.getLogger(), logging.getLogger("py.warnings")
    for logger in loggers:
        logger.addFilter(heard)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(heard)
