"""The reader of exports: commits in order, while a trainer writes them."""

from collections.abc import Callable, Iterator

import pyarrow as pa

from schemas.exports import ExportCommit, ExportKind, Published
from stream.store.errors import ConfigMissingError, CorruptError, MissingError, RetainedError
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
        numbers = sorted(
            number for entry in names_in(self.root / COMMITS) if (number := commit_number(entry)) is not None
        )
        first = numbers[0] if numbers else 0
        if numbers and numbers[-1] - first + 1 != len(numbers):
            absent = next(number for number, found in enumerate(numbers, first) if number != found)
            raise CorruptError(
                f"{self.root / commit_name(absent)} is missing, though later exports exist: restore it from a copy, "
                "or export under another name (exports.name)"
            )
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
            raise RetainedError(f"export {commit.number} of {self.root} is no longer kept") from None

    def follow(
        self,
        first: int = 0,
        timeout_s: float | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> Iterator[ExportCommit]:
        """Commits in order from a number on, those that are there and then new ones, waiting for each.

        Args:
            first: Number of the first.
            timeout_s: End when nothing new came for so long; None: never.
            stop: Asked some times a second while waiting; True ends.

        Raises:
            RetainedError: The next commit is no longer kept.
        """

        def refreshed() -> Numbered[ExportCommit]:
            self.refresh()
            return self.commits

        return follow(self.root / COMMITS, refreshed, first, timeout_s=timeout_s, stop=stop)

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
            raise RetainedError(f"export {number} of {self.root} is no longer kept") from None

    def _checked(self, number: int, commit: ExportCommit) -> ExportCommit:
        if commit.number != number:
            raise CorruptError(f"{self.root / commit_name(number)} is the record of export {commit.number}")
        return commit
