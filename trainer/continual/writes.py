"""Files of a trainer that are written at once, or as soon as their disk has room."""

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog

from freshet_graph.schemas.errors import one_line
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.service.full_disk import FULL

RETRY_S = 2.0
"""How often a write that a full disk refused is tried again."""

log = structlog.get_logger()


class Writes:
    """The writes of rank 0, in their order; one waits for the one before."""

    def __init__(self) -> None:
        self._unwritten: deque[tuple[str, Callable[[], object]]] = deque()
        self._reason: str | None = None  # why the first of them was refused
        self._again_s = 0.0

    def add(self, what: str, write: Callable[[], object]) -> None:
        """Write now, or once there is room. A write that was refused leaves nothing behind.

        Args:
            what: Begins the sentence of an error.
            write: Writes; it is called again after the error of a full disk.

        Raises:
            Failure: The disk refuses for another reason.
        """
        self._unwritten.append((what, write))
        if self._reason is None:
            self._write()

    def waiting(self) -> str | None:
        """Try again if it is time to; the reason why something is still unwritten, None: all is written.

        Raises:
            Failure: The disk refuses for another reason.
        """
        if self._reason is not None and time.monotonic() >= self._again_s:
            self._write()
        return self._reason

    def finish(self) -> None:
        """Write what is left.

        Raises:
            Failure: There is still no room, or the disk refuses for another reason.
        """
        self._write()
        if self._reason is not None:
            raise Failure(
                f"{self._reason}. Make room and start again: training resumes from the newest checkpoint"
            )

    def _write(self) -> None:
        while self._unwritten:
            what, write = self._unwritten[0]
            try:
                with written(what, unless=FULL):
                    write()
            except OSError as error:
                if self._reason is None:
                    log.error("no room for a file, waiting for it", file=what, error=one_line(error))
                self._reason = f"the disk has no room for {what}: {one_line(error)}"
                self._again_s = time.monotonic() + RETRY_S
                return
            self._unwritten.popleft()
        if self._reason is not None:
            self._reason = None
            log.info("files are written again")


@contextmanager
def written(what: str, *, unless: frozenset[int] = frozenset()) -> Iterator[None]:
    """Turn a failed write into a sentence, except for the error numbers of ``unless``."""
    try:
        yield
    except OSError as error:
        if error.errno in unless:
            raise
        raise Failure(
            f"{what}: {one_line(error)}. See that it can be written, then start again: training resumes from the "
            "newest checkpoint"
        ) from error
