"""The reader of exports: commits in order, while a trainer writes them."""

from collections.abc import Callable, Iterator

import pyarrow as pa

from schemas.exports import ExportCommit, ExportKind, Published
from stream.store.errors import (
    ConfigMissingError,
    CorruptError,
    MissingError,
    RetainedError,
    StoreError,
)
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
from stream.store.files.sweep import names_in
from stream.store.files.watch import FolderWatch
from stream.store.places.place import Place


class ExportReader:
    """A view of the exports under one name as of the newest commit seen; ``refresh`` moves it on.

    Attributes:
        root: Their folder; it need not exist yet.
        commits: By number; those that are kept can be read.
    """

    def __init__(self, store: str | Place, name: str) -> None:
        """Open what is there.

        Raises:
            CorruptError: A commit between others is missing.
        """
        self.root = export_folder(store, name)
        numbers = self._listed()
        while (absent := _gap(numbers)) is not None:
            before, numbers = numbers, self._listed()
            if numbers == before:  # else commits were removed, or made, while they were listed
                raise CorruptError(
                    f"{self.root / commit_name(absent)} is missing, though later exports exist: restore it from a copy, "
                    "or export under another name (exports.name)"
                )
        first = numbers[0] if numbers else 0
        self.commits: Numbered[ExportCommit] = Numbered("export", first, len(numbers), self._load)

    def refresh(self) -> None:
        """Take in the commits made since.

        Raises:
            CorruptError, FormatVersionError: One of them is damaged; those before it are taken in.
        """
        while True:
            end = len(self.commits)
            paths = [self.root / commit_name(number) for number in range(end, end + 16)]
            for number, commit in enumerate(read_records(paths, ExportCommit), end):
                self.commits.append(self._checked(number, commit))
            if len(self.commits) < end + 16:
                return

    def table(self, commit: ExportCommit, kind: ExportKind) -> pa.Table | None:
        """The file of one kind, memory-mapped; None: the commit has none.

        Raises:
            RetainedError: The export is no longer kept.
            CorruptError: The file isn't what the commit says.
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
        """Commits in order from a number on, those that are there and then new ones, waiting for each.

        Args:
            first: Number of the first.
            timeout_s: End when nothing new came for so long; None: never.
            stop: Asked some times a second while waiting; True ends.
            watch: On the folder ``COMMITS`` of ``root``, for who calls this again and again; None: its own.

        Raises:
            RetainedError: The next commit is no longer kept.
        """

        def refreshed() -> Numbered[ExportCommit]:
            self.refresh()
            return self.commits

        return follow(self.root / COMMITS, refreshed, first, timeout_s=timeout_s, stop=stop, watch=watch)

    def published(self, topic: str, kind: ExportKind) -> int:
        """Number of the first commit that a topic is not known to have; where nothing is known, of the oldest kept."""
        path = self.root / published_name(topic, kind)
        if not path.exists():
            return self.commits.first
        return read_record(path, Published).next

    def mark_published(self, topic: str, kind: ExportKind, following: int) -> None:
        """Say that a topic has all commits before a number."""
        record = Published(topic=topic, kind=kind, next=following)
        put_record(self.root / published_name(topic, kind), record, replace=True)

    def least_published(self) -> int | None:
        """Number of the first commit that some topic does not have yet; None: nothing is published."""
        positions = [
            read_record(self.root / PUBLISHED / entry, Published).next
            for entry in names_in(self.root / PUBLISHED)
            if entry.endswith(".json")
        ]
        return min(positions, default=None)

    def _load(self, number: int) -> ExportCommit:
        try:
            return self._checked(number, read_record(self.root / commit_name(number), ExportCommit))
        except ConfigMissingError:
            raise self._gone(number) from None

    def _gone(self, number: int) -> StoreError:
        """What to say of a commit that isn't there: it was removed with those before it, or is lost."""
        listed: list[int] | None = None
        while listed != (now := self._listed()) and min(now, default=number) < number:
            listed = now  # removed together, maybe, in no order
        first = min(now, default=len(self.commits))
        if first < number:
            return CorruptError(
                f"{self.root / commit_name(number)} is missing, though export {first} is kept: restore it from a copy"
            )
        self.commits.drop_before(first)
        return RetainedError(
            f"export {number} of {self.root} is no longer kept: a reader can start from number {self.commits.first}"
        )

    def _listed(self) -> list[int]:
        """Numbers of the commits that lie there, ascending."""
        found = (commit_number(entry) for entry in names_in(self.root / COMMITS))
        return sorted(number for number in found if number is not None)

    def _checked(self, number: int, commit: ExportCommit) -> ExportCommit:
        if commit.number != number:
            raise CorruptError(f"{self.root / commit_name(number)} is the record of export {commit.number}")
        return commit


def _gap(numbers: list[int]) -> int | None:
    """The first number that ascending ones lack; None: they lack none."""
    return (
        next((number for number, found in enumerate(numbers, numbers[0]) if number != found), None)
        if numbers
        else None
    )
