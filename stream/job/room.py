"""A full disk: commits wait for room, and reading waits for commits."""

import time
from collections.abc import Callable
from typing import TypeVar

import structlog

from stream.service.failure import Failure
from stream.service.full_disk import FULL

RETRY_S = 2.0
"""How often a refused commit is tried again."""

LOOK_S = 0.1
"""How often the wait for that looks whether to stop."""

_log = structlog.get_logger()

Committed = TypeVar("Committed")


class RoomForCommits:
    """Makes commits, and while the disk is full tries again: nothing is read meanwhile, so memory doesn't grow.

    Attributes:
        reason: What the disk said, while a commit waits for room; else None.
    """

    def __init__(self, store: str, *, stop: Callable[[], bool], retried: Callable[[], None]) -> None:
        """Expect room.

        Args:
            store: For sentences.
            stop: Asked now and then; True gives up.
            retried: Told of each further try.
        """
        self.reason: str | None = None
        self._store, self._stop, self._retried = store, stop, retried

    def made(self, commit: Callable[[], Committed]) -> Committed:
        """What ``commit`` gives, which must be able to run again after an OSError.

        Raises:
            Failure: The disk is full, and the job was told to stop.
            OSError: The disk refuses for another reason.
        """
        while True:
            try:
                record = commit()
            except OSError as error:
                if error.errno not in FULL:
                    raise
                self._wait(error)
                self._retried()
                continue
            if self.reason is not None:
                self.reason = None
                _log.info("the disk takes commits again", store=self._store)
            return record

    def _wait(self, error: OSError) -> None:
        told = " ".join(str(error).split())
        if self.reason is None:
            _log.error("no room for a commit, waiting for it", store=self._store, error=told)
        self.reason = f"the disk of {self._store} has no room for a commit: {told}"
        again_s = time.monotonic() + RETRY_S
        while time.monotonic() < again_s:
            if self._stop():
                raise Failure(
                    f"{self.reason}; make room and start again: nothing is lost, what is not in the log is read again"
                ) from error
            time.sleep(LOOK_S)
