"""What a job made durable, counted from the log alone: its commits tell, whoever made them."""

from collections import Counter
from dataclasses import dataclass, field

from stream.store.errors import ConfigMissingError
from stream.store.log.reader import LogReader
from stream.store.log.refusals import Refused, newest_refused


@dataclass(frozen=True, slots=True)
class _Counts:
    snapshots: int = 0
    events: int = 0
    refused: int = 0
    late: int = 0
    duplicates: int = 0
    in_history: int = 0
    by_reason: dict[str, int] = field(default_factory=dict)


class LogTotals:
    """Counts of a store's log since ``begin``."""

    def __init__(self, store: str) -> None:
        self._store = store
        self._reader: LogReader | None = None
        self._before = self._now = _Counts()
        self._refused: dict[str, Refused] = {}

    def begin(self) -> None:
        """Count from here on."""
        self.refresh()
        self._before, self._refused = self._now, {}

    def refresh(self) -> bool:
        """Look at the log; returns whether there are new commits.

        Raises:
            CorruptError, FormatVersionError: A commit is damaged.
        """
        before = self._n
        try:
            self._reader = self._reader or LogReader(self._store)
        except ConfigMissingError:
            return False
        self._reader.refresh()
        last = self._reader.last
        if last is not None and last.n != before:
            self._now = _Counts(
                snapshots=len(self._reader.snapshots),
                events=self._reader.totals.events + last.tail_events,
                refused=sum(last.refused.values()),
                late=last.late,
                duplicates=last.duplicates,
                in_history=last.in_history,
                by_reason=last.refused,
            )
            counts = Counter(last.refused) - Counter(self._before.by_reason)
            if counts != {reason: one.count for reason, one in self._refused.items()}:
                self._refused = newest_refused(self._reader, counts)
        return self._n != before

    def next_offset(self, key: tuple[str, int]) -> int | None:
        """First offset of a topic partition that the log doesn't have; None: the log doesn't know it."""
        position = self._reader.positions.get(key) if self._reader is not None else None
        return None if position is None else position.next

    @property
    def snapshots(self) -> int:
        """Snapshots sealed."""
        return self._now.snapshots - self._before.snapshots

    @property
    def events(self) -> int:
        """Events in the log, open ones included."""
        return self._now.events - self._before.events

    @property
    def refused(self) -> int:
        """Messages refused."""
        return self._now.refused - self._before.refused

    @property
    def refused_by_reason(self) -> dict[str, Refused]:
        """The same by reason, with an example each."""
        return self._refused

    @property
    def duplicates(self) -> int:
        """Events dropped by ``event_id``."""
        return self._now.duplicates - self._before.duplicates

    @property
    def in_history(self) -> int:
        """Events skipped that the history has."""
        return self._now.in_history - self._before.in_history

    @property
    def late(self) -> int:
        """Late events."""
        return self._now.late - self._before.late

    @property
    def _n(self) -> int | None:
        last = self._reader.last if self._reader is not None else None
        return None if last is None else last.n
