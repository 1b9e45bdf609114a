"""The counts of a job on a cluster, taken from the log: its commits have them, whichever process made them."""

from collections import Counter

from stream.metrics import Totals
from stream.store.errors import ConfigMissingError
from stream.store.log.reader import LogReader
from stream.store.log.refusals import newest_refused


class JobTotals(Totals):
    """Counts of a store's log since ``begin``."""

    def __init__(self, store: str) -> None:
        super().__init__()
        self._store = store
        self._reader: LogReader | None = None
        self._before: Counter[str] = Counter()
        self._refused_before: Counter[str] = Counter()

    def begin(self) -> None:
        """Count from here on."""
        self.refresh()
        self._before, self._refused_before = self._all(), self._all_refused()
        self._show()

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
        if self._n == before:
            return False
        self._show()
        return True

    def next_offset(self, key: tuple[str, int]) -> int | None:
        """First offset of a topic partition that the log doesn't have; None: the log doesn't know it."""
        position = self._reader.positions.get(key) if self._reader is not None else None
        return None if position is None else position.next

    def _show(self) -> None:
        now = self._all()
        for name in now:
            setattr(self, name, now[name] - self._before[name])
        counts = self._all_refused() - self._refused_before
        if counts != {reason: one.count for reason, one in self.refused_by_reason.items()}:
            assert self._reader is not None
            self.refused_by_reason = newest_refused(self._reader, counts)

    def _all(self) -> Counter[str]:
        last = self._reader.last if self._reader is not None else None
        if self._reader is None or last is None:
            return Counter()
        return Counter(
            snapshots=len(self._reader.snapshots),
            events=self._reader.totals.events + last.tail_events,
            refused=sum(last.refused.values()),
            late=last.late,
            duplicates=last.duplicates,
            in_history=last.in_history,
        )

    def _all_refused(self) -> Counter[str]:
        last = self._reader.last if self._reader is not None else None
        return Counter() if last is None else Counter(last.refused)

    @property
    def _n(self) -> int | None:
        last = self._reader.last if self._reader is not None else None
        return None if last is None else last.n
