"""Which snapshots to keep."""

from bisect import bisect_left
from dataclasses import dataclass

from schemas.events import US_PER_S
from schemas.store import SealedSnapshot
from stream.store.files.numbered import Numbered
from stream.store.log.reader import LogReader

STEP = 8
"""Snapshots are dropped when they are an eighth of the kept ones, because dropping writes the live graph once."""


@dataclass(frozen=True, slots=True)
class Keep:
    """Retention rules; a snapshot stays while any rule keeps it. Without a rule all stay.

    Attributes:
        snapshots: Number of newest snapshots to keep; None: no such rule.
        time_s: Keep those that end within this many seconds before the newest one's end; None: no such rule.
        events_s: Keep those with an event within this many seconds before the newest event, whatever the other rules say,
            because duplicates are looked up among them.
    """

    snapshots: int | None = None
    time_s: float | None = None
    events_s: float = 0.0

    def first(self, log: LogReader, window: int) -> int:
        """The number of the oldest snapshot to keep.

        Args:
            log: The log.
            window: Number of newest snapshots that stay in any case, for trainers of its lanes.
        """
        snapshots = log.snapshots
        if not snapshots or (self.snapshots is None and self.time_s is None):
            return snapshots.first
        end = len(snapshots)
        firsts = [end - max(window, self.snapshots or 1)]
        if self.time_s is not None:
            intervals = -(-round(self.time_s * US_PER_S) // log.header.interval_us)
            firsts.append(_first_from(snapshots, snapshots[-1].tau + 1 - intervals))
        if self.events_s and log.totals.max_t_us is not None:
            oldest_us = log.totals.max_t_us - round(self.events_s * US_PER_S)
            firsts.append(_first_from(snapshots, oldest_us // log.header.interval_us))
        return max(snapshots.first, min(firsts))


def is_due(first: int, kept_from: int, end: int) -> bool:
    """Whether enough is to be dropped to be worth it: an eighth of what stays, and at least one."""
    return kept_from - first >= max(1, (end - kept_from) // STEP)


def _first_from(snapshots: Numbered[SealedSnapshot], tau: int) -> int:
    """Number of the first snapshot of τ or later."""
    return bisect_left(snapshots, tau, lo=snapshots.first, hi=len(snapshots), key=lambda s: s.tau)
