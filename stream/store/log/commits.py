"""The chain of commit records from the newest index on, each bound to its predecessor by checksum."""

from collections.abc import Callable, Iterator
from itertools import count
from typing import TypeVar

from schemas.store import CommitRecord, LogHeader, LogIndex, SealedSnapshot
from stream.store.errors import RESTORE, CorruptError, MissingError, RetainedError
from stream.store.files.numbered import Numbered
from stream.store.files.records import read_records
from stream.store.log.index import LogTotals, SnapshotRows, newest_index
from stream.store.log.layout import COMMITS, commit_name
from stream.store.places.place import Place

T = TypeVar("T")


class CommitChain:
    """State of a log after its commits: the last one, the sealed snapshots, the refused messages.

    ``refresh`` reads new commits only, so a follower pays for those alone.
    """

    def __init__(self, root: Place, header: LogHeader, *, indexed: bool = True) -> None:
        """Begin after the newest index, or before commit 0.

        Args:
            root: Folder of the log.
            header: Its header, whose ``link`` commit 0 must name.
            indexed: False: ignore indexes.

        Raises:
            CorruptError: The indexes are damaged, and they replace commits.
        """
        self._root = root
        self._header = header
        self.index: LogIndex | None = None
        self.last: CommitRecord | None = None
        self.sealed: Numbered[SealedSnapshot] = Numbered("snapshot")
        self.number_of: dict[int, int] = {}
        self.with_rejects: list[int] = []
        self.totals = LogTotals()
        if indexed:
            self._jump()

    @property
    def next_n(self) -> int:
        """Number of the next commit."""
        return 0 if self.last is None else self.last.n + 1

    def link(self) -> str:
        """The value of ``previous`` in the next commit."""
        return self._header.link if self.last is None else self.last.checksum

    def refresh(self) -> list[CommitRecord]:
        """Read the new commits; if they were folded into an index meanwhile, continue after it.

        Returns:
            The commits read, in order.

        Raises:
            CorruptError, FormatVersionError: A record is damaged, or doesn't follow its predecessor.
        """
        new: list[CommitRecord] = []
        while True:
            paths = (self._root / commit_name(n) for n in count(self.next_n))
            for record in read_records(
                paths, CommitRecord
            ):  # up to one that isn't made yet, or is in an index
                self.add(record)
                new.append(record)
            if not self._jump():
                return new

    def add(self, record: CommitRecord) -> None:
        """Append the next commit.

        Raises:
            CorruptError: It doesn't follow the last one.
        """
        path = self._root / commit_name(self.next_n)
        if record.n != self.next_n:
            raise CorruptError(
                f"{path} says it is commit {record.n}, so commit {self.next_n} is missing{RESTORE}"
            )
        if record.previous != self.link():
            before = self._root / commit_name(record.n - 1) if record.n else self._root / "log.json"
            raise CorruptError(
                f"{path} follows a record with checksum {record.previous or 'none'}, {before} has {self.link()}. "
                "One of them is from another log, or log.json was changed while the log was empty. Open it again"
            )
        through = None if self.last is None else self.last.sealed_through
        for snapshot in record.sealed:
            if through is not None and snapshot.tau <= through:
                raise CorruptError(f"{path} seals snapshot {snapshot.tau}, but {through} is sealed already")
            through = snapshot.tau
        self.last = record
        for snapshot in record.sealed:
            self.number_of[snapshot.tau] = len(self.sealed)
            self.sealed.append(snapshot)
            self.totals.add(snapshot)
        if record.rejects is not None:
            self.with_rejects.append(record.n)

    def undisturbed(self, read: Callable[[], T]) -> T:
        """Run a read of files that the chain names, again if a newer index replaced them.

        Raises:
            MissingError, RetainedError: A file is missing, and compaction did not remove it.
        """
        while True:
            index = self.index
            try:
                return read()
            except (MissingError, RetainedError):
                self.refresh()
                if self.index is index:
                    raise

    def require_whole(self) -> None:
        """Check that no record lies beyond the last one in the chain.

        Raises:
            CorruptError: A record in between is missing.
        """
        for n in numbers(self._root):
            while n >= (reached := self.next_n):
                missing = self._root / commit_name(reached)
                if missing.exists():  # written since the chain was read
                    break
                self.refresh()  # or folded into an index meanwhile
                if self.next_n == reached:
                    raise CorruptError(
                        f"{missing} is missing, though commit {n} exists. Restore it from a copy of the store"
                    )

    def forget_dropped(self) -> None:
        """Forget the snapshots that the newest index no longer keeps; for a writer, which reads no commits.

        ``with_rejects`` stays as it is, because another thread may be going through it.

        Raises:
            CorruptError, FormatVersionError: The indexes are damaged.
        """
        found = newest_index(self._root, -1 if self.index is None else self.index.number)
        if found is not None and self.last is not None and found[0].n <= self.last.n:
            self.index = found[0]
            self.drop_before(self.index.first)

    def drop_before(self, first: int) -> None:
        """Forget the snapshots before number ``first``: they are no longer kept."""
        for number in range(self.sealed.first, min(first, len(self.sealed))):
            self.number_of.pop(self.sealed[number].tau, None)
        self.sealed.drop_before(first)

    def _jump(self) -> bool:
        """Continue after the newest index if it is ahead; returns whether it was. An older one still says what is kept."""
        reached = -1 if self.last is None else self.last.n
        known = -1 if self.index is None else self.index.number
        found = newest_index(self._root, known)
        if found is None:
            return False
        index, rows, commit = found
        if index.n <= reached:
            self.index = index
            self.drop_before(index.first)
            self.with_rejects[:] = [*index.with_rejects, *(n for n in self.with_rejects if n > index.n)]
            return False
        if self.last is not None and len(self.sealed) > index.end:
            raise CorruptError(
                f"{self._root} has an index with fewer snapshots than its commits. Restore it from a copy"
            )
        self._take(index, rows, commit)
        return True

    def _take(self, index: LogIndex, rows: SnapshotRows, commit: CommitRecord) -> None:
        self.index, self.last = index, commit
        self.sealed = Numbered("snapshot", index.first, len(rows), rows.load)
        self.number_of = dict(zip(rows.taus.tolist(), range(index.first, index.end), strict=True))
        self.with_rejects[:] = index.with_rejects
        self.totals = rows.totals(index.dropped)


def numbers(root: Place) -> Iterator[int]:
    """Numbers of all commit records in the log, unordered."""
    for name in (root / COMMITS).names():
        stem = name.removesuffix(".json")
        if stem.isdigit() and commit_name(int(stem)).endswith(f"/{name}"):
            yield int(stem)
