"""The present: this host's clock, unless the brokers or the log contradict it.

The upper bound of event times follows from it. A clock that is behind would have every live event refused as from the
future, with its offsets committed. One that is ahead would let events from the future in.

Witnesses of the present are the brokers' own clock, the times that brokers (never producers) gave to records, and the
last commit. The last two can only show that a clock is behind. If the brokers report their clock it decides, and later
times of the others are mistakes.
"""

import threading
import time
from collections.abc import Callable

from freshet_graph.schemas.config import StreamConfig
from freshet_graph.schemas.events import US_PER_S, show_time
from freshet_graph.schemas.store import CommitRecord
from freshet_graph.stream.decode.decoder import wall_time_us
from freshet_graph.stream.kafka.broker_clock import Between
from freshet_graph.stream.microbatch import RawBatch

ASK_S = 60.0
"""How often brokers and log are asked while the clock is right."""

RELEASED_US = 1_704_067_200 * US_PER_S
"""2024-01-01: a clock before it is wrong. This finds a clock that was reset, without any witness."""

_DAY_S = 86_400


class Present:
    """Tells the time, and whether it can be believed.

    Args:
        config: Has ``time_skew_s``, by which clocks may differ. With an upper bound in ``time_bounds`` the present
            doesn't matter, and nothing is asked.
        wall_us: This host's clock.
        elapsed_s: A clock that is never set.

    Attributes:
        error_s: Seconds by which this host's clock is at least ahead, or behind (negative); 0 while it is believed.
        reason: Why it can't be believed; None while it is.
    """

    def __init__(
        self,
        config: StreamConfig,
        *,
        wall_us: Callable[[], int] = wall_time_us,
        elapsed_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.error_s = 0.0
        self.reason: str | None = None
        self._skew_us = round(config.time_skew_s * US_PER_S)
        self._matters = config.time_bounds is None or config.time_bounds[1] is None
        self._brokers: Callable[[], Between | None] = lambda: None
        self._last_commit: Callable[[], CommitRecord | None] = lambda: None
        self._wall_us, self._elapsed_s = wall_us, elapsed_s
        self._brokers_clock: Between | None = None
        self._asked_s: float | None = None
        self._stamped_us = self._committed_us = self._known_us = 0
        self._since_s = 0.0
        self._lock = threading.Lock()

    def ask_too(
        self, brokers: Callable[[], Between | None], last_commit: Callable[[], CommitRecord | None]
    ) -> None:
        """Add witnesses: the brokers' clock (None if they don't report it), and the log's last commit."""
        self._brokers, self._last_commit = brokers, last_commit

    def now_us(self) -> int:
        """The later of this host's time and the known present, microseconds since the epoch."""
        return max(self._wall_us(), self._known_us)

    def check(self, raw: RawBatch | None = None) -> str | None:
        """Compare this host's clock with a poll and the other witnesses; returns ``reason``."""
        if not self._matters:
            return None
        with self._lock:
            return self._checked(len(raw.offsets), raw.stamped_us) if raw is not None else self._checked(0, 0)

    def _checked(self, messages: int, stamped_us: int) -> str | None:
        self._stamped_us = max(self._stamped_us, stamped_us)
        age_s = None if self._asked_s is None else self._elapsed_s() - self._asked_s
        asks = self.reason is not None or age_s is None or (age_s >= ASK_S and messages > 0)
        if asks:
            self._ask()
        self._decide()
        if self.reason is not None and not asks:
            self._ask()  # the answers are old, and the machine may have slept since
            self._decide()
        return self.reason

    def _ask(self) -> None:
        self._brokers_clock, last = self._brokers(), self._last_commit()
        self._committed_us = 0 if last is None else last.wall_time_us
        self._asked_s = self._elapsed_s()

    def _decide(self) -> None:
        local_us, elapsed_s = self._wall_us(), self._elapsed_s()
        # Witnesses of the past advance with the time while the clock is waited for.
        waited_us = round((elapsed_s - self._since_s) * US_PER_S) if self.reason is not None else 0
        witnesses = [
            (self._stamped_us + waited_us, "a record that a broker gave its time"),
            (self._committed_us + waited_us, "the log's last commit"),
            (RELEASED_US, "the release of Freshet"),
        ]
        ahead_us = 0
        if self._brokers_clock is not None and self._asked_s is not None:
            passed_us = round((elapsed_s - self._asked_s) * US_PER_S)
            latest_us = self._brokers_clock.latest_us + passed_us
            ahead_us = local_us - latest_us
            witnesses = [witness for witness in witnesses if witness[0] <= latest_us + self._skew_us]
            witnesses.append((self._brokers_clock.earliest_us + passed_us, "the brokers' clock"))
        self._known_us, who = max(witnesses) if ahead_us <= self._skew_us else witnesses[-1]
        behind_us = self._known_us - local_us
        if max(behind_us, ahead_us) <= self._skew_us:
            self.error_s, self.reason = 0.0, None
            return
        if self.reason is None:
            self._since_s = elapsed_s
        self.error_s = -behind_us / US_PER_S
        self.reason = (
            f"this host's clock says {show_time(local_us)}, {_span(abs(self.error_s))} "
            f"{'ahead of' if self.error_s > 0 else 'behind'} {who} ({show_time(self._known_us)}), more than "
            f"time_skew_s ({self._skew_us / US_PER_S:g} s). Nothing is read until the clock is right"
        )


def _span(seconds: float) -> str:
    return f"{seconds / _DAY_S:,.1f} days" if seconds >= _DAY_S else f"{seconds:,.0f} s"
