"""A full disk, or a bucket that doesn't answer: commits wait, and reading waits for commits."""

import errno
import time
from collections.abc import Callable
from typing import TypeVar

import structlog

from schemas.errors import one_line
from stream.service.failure import Failure
from stream.service.full_disk import FULL
from stream.service.heartbeat import beat

WAITED_FOR = FULL | {errno.EHOSTUNREACH}
"""Errors after which a commit is tried again."""

RETRY_S = 2.0
"""How often a refused commit is tried again."""

LOOK_S = 0.1
"""How often the wait looks whether to stop."""

_log = structlog.get_logger()

Committed = TypeVar("Committed")


class RoomForCommits:
    """Makes commits, and tries again while the store has no room or doesn't answer.

    Nothing is read meanwhile, so memory doesn't grow.

    Attributes:
        reason: The error of the disk or bucket, while a commit waits; else None.
    """

    def __init__(self, store: str, *, stop: Callable[[], bool], retried: Callable[[], None]) -> None:
        """Expect room; ``retried`` is called at each further try, and a wait ends once ``stop`` returns True."""
        self.reason: str | None = None
        self._store, self._stop, self._retried = store, stop, retried

    def made(self, commit: Callable[[], Committed]) -> Committed:
        """The result of ``commit``, which must be able to run again after an OSError.

        Raises:
            Failure: The disk is full or the bucket silent, and the job was stopped.
            StoreError: The bucket was silent while a record was put. Only opening the log again shows its fate.
            OSError: The store refuses for another reason.
        """
        while True:
            beat()
            try:
                record = commit()
            except OSError as error:
                if error.errno not in WAITED_FOR:
                    raise
                self._wait(error)
                self._retried()
                continue
            if self.reason is not None:
                self.reason = None
                _log.info("the store takes commits again", store=self._store)
            return record

    def _wait(self, error: OSError) -> None:
        text = one_line(error)
        if self.reason is None:
            what = "no room for a commit" if error.errno in FULL else "the store takes no commit"
            _log.error(f"{what}, waiting for it", store=self._store, error=text)
        self.reason = (
            f"the disk of {self._store} has no room for a commit: {text}"
            if error.errno in FULL
            else f"the store takes no commit: {text}"
        )
        again_s = time.monotonic() + RETRY_S
        while time.monotonic() < again_s:
            if self._stop():
                raise Failure(
                    f"{self.reason}. {'Make room and start' if error.errno in FULL else 'Start'} again. Nothing is lost: the job "
                    "resumes where the log ends"
                ) from error
            time.sleep(LOOK_S)
