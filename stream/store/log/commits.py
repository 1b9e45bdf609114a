"""The chain of commit records: read in order, each bound to the one before by its checksum."""

from collections.abc import Iterator
from pathlib import Path

from schemas.store import CommitRecord, LogHeader, SealedSnapshot
from stream.store.errors import CorruptError
from stream.store.files.data import read_record
from stream.store.log.layout import COMMITS, commit_name


class CommitChain:
    """What the commits say so far: the last one, the sealed snapshots, the refused messages.

    ``refresh`` reads what is new, so a follower's cost is that of the new commits.
    """

    def __init__(self, root: Path, header: LogHeader) -> None:
        """Begin before commit 0.

        Args:
            root: Folder of the log.
            header: Its header, whose checksum commit 0 must name.
        """
        self._root = root
        self._header = header
        self.last: CommitRecord | None = None
        self.sealed: list[SealedSnapshot] = []
        self.with_rejects: list[int] = []

    @property
    def next_n(self) -> int:
        """Number of the commit to come."""
        return 0 if self.last is None else self.last.n + 1

    def link(self) -> str:
        """What the next commit must name as ``previous``."""
        return self._header.checksum if self.last is None else self.last.checksum

    def refresh(self) -> list[CommitRecord]:
        """Read the commits made since.

        Returns:
            The new ones, in order.

        Raises:
            CorruptError, FormatVersionError: A record is damaged, or not the successor of the one before.
        """
        new = []
        while (path := self._root / commit_name(self.next_n)).exists():
            record = read_record(path, CommitRecord)
            self.add(record)
            new.append(record)
        return new

    def add(self, record: CommitRecord) -> None:
        """Take the next commit in.

        Raises:
            CorruptError: It isn't the successor of the last one.
        """
        path = self._root / commit_name(self.next_n)
        if record.n != self.next_n:
            raise CorruptError(f"{path} says it is commit {record.n}; commit {self.next_n} is missing")
        if record.previous != self.link():
            before = self._root / commit_name(record.n - 1) if record.n else self._root / "log.json"
            raise CorruptError(
                f"{path} follows a record with checksum {record.previous or 'none'}, {before} has {self.link()}; "
                "one of them is from another log, or log.json was changed while the log was empty: open it again"
            )
        through = None if self.last is None else self.last.sealed_through
        for snapshot in record.sealed:
            if through is not None and snapshot.tau <= through:
                raise CorruptError(f"{path} seals snapshot {snapshot.tau}, but {through} is sealed already")
            through = snapshot.tau
        self.last = record
        self.sealed.extend(record.sealed)
        if record.rejects is not None:
            self.with_rejects.append(record.n)

    def require_whole(self) -> None:
        """Check that no record lies beyond the last one that the chain reached.

        Raises:
            CorruptError: A record in between is missing.
        """
        for n in numbers(self._root):
            missing = self._root / commit_name(self.next_n)
            if n >= self.next_n and not missing.exists():  # else it was made since the chain was read
                raise CorruptError(
                    f"{missing} is missing, though commit {n} exists; restore it from a copy of the store"
                )


def numbers(root: Path) -> Iterator[int]:
    """Numbers of all commit records that lie in the log, in no order."""
    for path in (root / COMMITS).glob("*.json"):
        if path.stem.isdigit() and path.name == Path(commit_name(int(path.stem))).name:
            yield int(path.stem)
