"""The reader of exports: commits in order, while a trainer writes them."""

from collections.abc import Callable, Iterator

import pyarrow as pa

from schemas.exports import ExportCommit, ExportKind, Published
from stream.store.errors import ConfigMissingError, CorruptError, MissingError, RetainedError, StoreError
from stream.store.exports.layout import (
    COMMITS,
    PUBLISHED,
    commit_name,
    commit_number,
    export_folder,
    published_name,
)
from stream.store.files.data import read_table
from stream.store.files.follow import follow
from stream.store.files.numbered import Numbered
from stream.store.files.records import put_record, read_record, read_records
from stream.store.files.watch import FolderWatch
from stream.store.places.place import Place


class ExportReader:
    """A view of the exports under one name as of the newest commit seen; ``refresh`` advances it.

    Attributes:
        root: Their folder; it need not exist yet.
        commits: By number; only kept ones can be read.
    """

    def __init__(self, store: str | Place, name: str) -> None:
        """Open the existing exports.

        Raises:
            CorruptError: A commit between others is missing.
        """
        self.root = export_folder(store, name)
        numbers = self._listed()
        while (absent := _gap(numbers)) is not None:
            before, numbers = numbers, self._listed()
            if numbers == before:  # otherwise commits were removed or made meanwhile
                raise CorruptError(
                    f"{self.root / commit_name(absent)} is missing, though later exports exist. Restore it from a copy, or "
                    "export under another name (exports.name)"
                )
        first = numbers[0] if numbers else 0
        self.commits: Numbered[ExportCommit] = Numbered("export", first, len(numbers), self._load)

    def refresh(self) -> None:
        """Read the commits made since.

        Raises:
            CorruptError, FormatVersionError: One of them is damaged; those before it count.
        """
        while True:
            end = len(self.commits)
            paths = [self.root / commit_name(number) for number in range(end, end + 16)]
            for number, commit in enumerate(read_records(paths, ExportCommit), end):
                self.commits.append(self._checked(number, commit))
            if len(self.commits) < end + 16:
                return

    def table(self, commit: ExportCommit, kind: ExportKind) -> pa.Table | None:
        """The file of one kind, not copied; None: the commit has none.

        Raises:
            RetainedError: The export is no longer kept.
            CorruptError: The file doesn't match the commit.
        """
        reference = commit.file(kind)
        if reference is None:
            return None
        try:
            return read_table(self.root, reference)
        except MissingError:
            if (self.root / commit_name(commit.number)).exists():
                raise
            raise self._gone(commit.number) from None

    def follow(
        self,
        first: int = 0,
        timeout_s: float | None = None,
        stop: Callable[[], bool] | None = None,
        watch: FolderWatch | None = None,
    ) -> Iterator[ExportCommit]:
        """Commits in order from a number on, the existing ones and then new ones, waiting for each.

        Args:
            first: Number of the first.
            timeout_s: End after this long without a new commit; None: never.
            stop: Called a few times per second while waiting; True ends.
            watch: A watch of the folder ``COMMITS`` of ``root``, for repeated calls; None: its own.

        Raises:
            RetainedError: The next commit is no longer kept.
        """

        def refreshed() -> Numbered[ExportCommit]:
            self.refresh()
            return self.commits

        return follow(self.root / COMMITS, refreshed, first, timeout_s=timeout_s, stop=stop, watch=watch)

    def published(self, topic: str, kind: ExportKind) -> int:
        """Number of the first commit that a topic may lack; without a record, of the oldest kept one."""
        path = self.root / published_name(topic, kind)
        if not path.exists():
            return self.commits.first
        return read_record(path, Published).next

    def mark_published(self, topic: str, kind: ExportKind, following: int) -> None:
        """Record that a topic has all commits before a number."""
        record = Published(topic=topic, kind=kind, next=following)
        put_record(self.root / published_name(topic, kind), record, replace=True)

    def least_published(self) -> int | None:
        """Number of the first commit that some topic lacks; None: nothing is published."""
        folder = self.root / PUBLISHED
        entries = [entry for entry in folder.names() if entry.endswith(".json")]
        return min((read_record(folder / entry, Published).next for entry in entries), default=None)

    def _load(self, number: int) -> ExportCommit:
        try:
            return self._checked(number, read_record(self.root / commit_name(number), ExportCommit))
        except ConfigMissingError:
            raise self._gone(number) from None

    def _gone(self, number: int) -> StoreError:
        """The error for a missing commit: it was removed with those before it, or is lost."""
        listed: list[int] | None = None
        while listed != (now := self._listed()) and min(now, default=number) < number:
            listed = now  # perhaps several are being removed, in any order
        first = min(now, default=len(self.commits))
        if first < number:
            return CorruptError(
                f"{self.root / commit_name(number)} is missing, though export {first} is kept. Restore it from a copy"
            )
        self.commits.drop_before(first)
        return RetainedError(
            f"export {number} of {self.root} is no longer kept. A reader can start from number {self.commits.first}"
        )

    def _listed(self) -> list[int]:
        """Numbers of the existing commits, ascending."""
        found = (commit_number(entry) for entry in (self.root / COMMITS).names())
        return sorted(number for number in found if number is not None)

    def _checked(self, number: int, commit: ExportCommit) -> ExportCommit:
        if commit.number != number:
            raise CorruptError(f"{self.root / commit_name(number)} is the record of export {commit.number}")
        return commit


def _gap(numbers: list[int]) -> int | None:
    """The first number missing in an ascending sequence; None: it has no gap."""
    expected = enumerate(numbers, numbers[0] if numbers else 0)
    return next((number for number, found in expected if number != found), None)
