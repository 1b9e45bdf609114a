"""Which snapshots are to be kept."""

from bisect import bisect_left
from dataclasses import dataclass

from schemas.events import US_PER_S
from schemas.store import SealedSnapshot
from stream.store.files.numbered import Numbered
from stream.store.log.reader import LogReader

STEP = 8
"""Snapshots are dropped an eighth of what is kept at a time: dropping writes the live graph once."""


@dataclass(frozen=True, slots=True)
class Keep:
    """What to keep; a snapshot stays while any rule keeps it. No rule: all stay.

    Attributes:
        snapshots: The newest so many; None: the rule keeps none.
        time_s: Those that end within so many seconds before the newest one's end; None likewise.
        events_s: Those with an event within so many seconds before the newest event, whatever the other rules say:
            what duplicates are looked for among.
    """

    snapshots: int | None = None
    time_s: float | None = None
    events_s: float = 0.0

    def first(self, log: LogReader, window: int) -> int:
        """The number of the oldest snapshot to keep.

        Args:
            log: The log.
            window: The newest so many stay in any case: what trainers of its lanes look back.
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
    """Whether so much is to be dropped that it is worth it: an eighth of what stays, one at least."""
    return kept_from - first >= max(1, (end - kept_from) // STEP)


def _first_from(snapshots: Numbered[SealedSnapshot], tau: int) -> int:
    """Number of the first snapshot of τ or later."""
    return bisect_left(snapshots, tau, lo=snapshots.first, hi=len(snapshots), key=lambda s: s.tau)
