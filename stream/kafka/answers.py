"""Whether brokers answer: a client that waits for messages can't tell an empty topic from brokers that are gone."""

import time

import structlog

from freshet_graph.schemas.errors import one_line
from freshet_graph.stream.service.failure import Failure

_log = structlog.get_logger()


class BrokerAnswers:
    """Records when brokers last answered; logs once when they stop and once when they are back.

    Written by the reader's thread, read by any. Several readers, one after the other, may share it.
    """

    def __init__(self, bootstrap: str) -> None:
        """Begin with an answer, because a connection has had one."""
        self._bootstrap = bootstrap
        self.last_s = self._tried_s = time.monotonic()
        self.out = False
        self._cause: str | None = None

    @property
    def reason(self) -> str | None:
        """Since when brokers don't answer, and why as far as that is known; None while they answer."""
        silent_s, cause = self.silent_s, self._cause
        if silent_s is None:
            return None
        if cause is None:
            return f"no broker of {self._bootstrap} has answered for {silent_s:.0f} s"
        return f"no answer for {silent_s:.0f} s: {cause}"

    @property
    def silent_s(self) -> float | None:
        """Seconds since the last answer; None while brokers answer."""
        return time.monotonic() - self.last_s if self.out else None

    def due(self, every_s: float) -> bool:
        """Whether brokers have neither answered nor been asked for so long."""
        return time.monotonic() - max(self.last_s, self._tried_s) >= every_s

    def heard(self) -> bool:
        """Brokers have answered; returns whether that ended an outage."""
        back, silent_s = self.out, self.silent_s
        self.last_s, self.out, self._cause = time.monotonic(), False, None
        if back:
            _log.info("brokers answer again", bootstrap=self._bootstrap, silent_s=round(silent_s or 0.0, 1))
        return back

    def missed(self, error: Exception) -> None:
        """Brokers were asked and have not answered. A ``Failure`` is the sentence of a new connection, which knows why."""
        self._tried_s = time.monotonic()
        cause = one_line(error)
        if not self.out:
            self.out = True
            _log.warning("no broker answers, waiting for them", bootstrap=self._bootstrap, error=cause)
        elif isinstance(error, Failure) and cause != self._cause:
            _log.warning("brokers can't be reached", bootstrap=self._bootstrap, error=cause)
        if isinstance(error, Failure):
            self._cause = cause
