"""Standby: a second job on a store waits until the first is gone, then takes over."""

import time
from collections.abc import Callable
from typing import TypeVar

import structlog

from stream.service.heartbeat import beat
from stream.store.errors import LaneBusyError

LOOK_S = 0.5
"""How often a standby looks whether the other job is gone."""

_log = structlog.get_logger()

Opened = TypeVar("Opened")


class StoppedEarly(BaseException):
    """The job was stopped before it read anything: there is nothing to commit."""


class Standby:
    """Opens what only one process may write. Locks die with their process, so a crash leaves nothing to clear up.

    Attributes:
        reason: Who writes the store, while this process waits for it; else None.
    """

    def __init__(
        self,
        graph: str,
        *,
        waits: bool,
        stop: Callable[[], bool],
        shown: Callable[[bool], None],
        check: Callable[[], None],
    ) -> None:
        """Wait for nothing yet.

        Args:
            graph: For the log.
            waits: Whether to wait at all, or to fail.
            stop: Asked at each look; True gives up.
            shown: Called with True when waiting begins, with False when it has ended well.
            check: Called when waiting begins; its exceptions end the wait.
        """
        self.reason: str | None = None
        self._graph, self._waits, self._stop, self._shown, self._check = graph, waits, stop, shown, check

    def alone(self, open_: Callable[[], Opened]) -> Opened:
        """The result of ``open_`` once no other process holds it.

        Raises:
            LaneBusyError: Another process holds it, and this one does not wait.
            StoppedEarly: It waited, and was stopped.
            Exception: From ``check``.
        """
        while True:
            beat()
            try:
                opened = open_()
            except LaneBusyError as busy:
                if not self._waits:
                    raise LaneBusyError(f"{busy}. run --standby waits for it") from None
                if self._stop():
                    raise StoppedEarly from None
                if self.reason is None:
                    self._check()
                    self._shown(True)
                    _log.info("standing by", graph=self._graph, reason=str(busy))
                self.reason = str(busy)
                time.sleep(LOOK_S)
                continue
            if self.reason is not None:
                self.reason = None
                self._shown(False)
                _log.info("taking over", graph=self._graph)
            return opened
