"""A trainer's exports: numbered commits that name whole files.

The writer makes files first, whole and durable, then the commit that names them.

The steps of a commit: the files under temporary names, fsync, rename; the record, put only if its number is free. A crash
before the record leaves files that no record names; the next commit of that number sweeps them. Once the record may exist, its
files stay, and later failures do not fail the commit. The numbers are also the fence: a writer continues only from its own
last number. Of two writers under one name, one therefore fails at its next commit, and no record names its files.
"""

import re
import secrets
from collections.abc import Callable, Iterator
from functools import partial
from typing import Self

import pyarrow as pa

from freshet_graph.schemas.exports import ExportCommit, ExportKind, Published
from freshet_graph.schemas.store import FileRef
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.store.crash import crash_point
from freshet_graph.stream.store.errors import (
    ConfigMissingError,
    CorruptError,
    MissingError,
    RetainedError,
    StoreError,
)
from freshet_graph.stream.store.files.data import read_table
from freshet_graph.stream.store.files.follow import FolderWatch, follow
from freshet_graph.stream.store.files.records import Numbered, put_record, read_record, read_records
from freshet_graph.stream.store.files.sweep import CleanUp, remove
from freshet_graph.stream.store.places.interface import Staging, Write
from freshet_graph.stream.store.places.place import Place, place_of

EXPORTS = "exports"
COMMITS = "commits"
FILES = "files"
PUBLISHED = "published"

_COMMIT = re.compile(r"(\d{16})\.json")
_FILE = re.compile(r"(\d+)-[0-9a-f]+-(?:embeddings|scores)(?:_[0-9a-f]{12})?\.arrow(?:\.tmp)?")


def export_folder(store: str | Place, name: str) -> Place:
    """The folder of the exports under a name."""
    return place_of(store) / EXPORTS / name


def commit_name(number: int) -> str:
    """A commit's path in that folder."""
    return f"{COMMITS}/{number:016d}.json"


def published_name(topic: str, kind: str) -> str:
    """Path of the record of a topic's progress."""
    return f"{PUBLISHED}/{topic}.{kind}.json"


def file_name(number: int, token: str, kind: str) -> str:
    """A data file's path; the token separates two writers."""
    return f"{FILES}/{number}-{token}-{kind}.arrow"


def commit_number(name: str) -> int | None:
    """The number in a commit's file name; None: it has none."""
    match = _COMMIT.fullmatch(name)
    return int(match[1]) if match else None


def file_number(name: str) -> int | None:
    """The number in the name of a data file, complete or not; None: it has none."""
    match = _FILE.fullmatch(name)
    return int(match[1]) if match else None


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
        numbers = (commit_number(entry) for entry in (self.root / COMMITS).names())
        return sorted(number for number in numbers if number is not None)

    def _checked(self, number: int, commit: ExportCommit) -> ExportCommit:
        if commit.number != number:
            raise CorruptError(f"{self.root / commit_name(number)} is the record of export {commit.number}")
        return commit


def _gap(numbers: list[int]) -> int | None:
    """The first number missing in an ascending sequence; None: it has no gap."""
    expected = enumerate(numbers, numbers[0] if numbers else 0)
    return next((number for number, present in expected if number != present), None)


class ExportWriter:
    """Adds commits to the exports under one name, and removes old ones.

    Attributes:
        reader: The existing exports.
    """

    def __init__(self, store: str | Place, name: str) -> None:
        self.reader = ExportReader(store, name)
        self._next = len(self.reader.commits)
        self._clean_up = CleanUp(self.reader.root)
        self._swept = False
        self._num_kept = 0

    def begin(self) -> "Export":
        """The next commit, to be filled with files and then committed; a context manager.

        Raises:
            Failure: Another trainer has committed since this writer began.
        """
        self.reader.refresh()
        if len(self.reader.commits) != self._next:
            raise self._taken(self._next)
        return Export(self.reader.root, self._next)

    def commit(self, export: "Export", record: ExportCommit) -> None:
        """Make an export visible.

        Args:
            export: With its files written.
            record: With the number and files of ``export``.

        Raises:
            Failure: Another trainer took the number.
            OSError: The disk refuses.
        """
        export.finish()
        crash_point("export.named")
        try:
            record = put_record(self.reader.root / commit_name(record.number), record)
        except FileExistsError:
            export.discard()
            raise self._taken(record.number) from None
        self._next = record.number + 1
        self.reader.commits.append(record)
        crash_point("export.committed")
        if not self._swept:
            self._clean_up.add(partial(self._sweep, record))
            self._swept = True
        self._clean_up.run()

    def retain(self, newest: int) -> int:
        """Keep the ``newest`` commits only, and those that a topic still lacks; returns the number removed.

        Records are removed first, so that none ever names a missing file. Failed removals are repeated after the next
        commit.
        """
        first, self._num_kept = self.reader.commits.first, newest
        self._clean_up.add(self._remove_old)
        self._clean_up.run()
        return self.reader.commits.first - first

    def _remove_old(self) -> None:
        commits = self.reader.commits
        waiting = self.reader.least_published()
        before = len(commits) - self._num_kept
        before = before if waiting is None else min(before, waiting)
        going = [commits[number] for number in range(commits.first, max(before, commits.first))]
        root = self.reader.root
        remove(root / commit_name(commit.number) for commit in going)
        remove(root / file.path for commit in going for file in (commit.embeddings, commit.scores) if file)
        commits.drop_before(before)

    def _taken(self, number: int) -> Failure:
        return Failure(
            f"export {number} of {self.reader.root} was made by another trainer at the same time. Stop one, or give it "
            "another name in the key exports.name"
        )

    def _sweep(self, record: ExportCommit) -> None:
        """Remove files that no record names: those of this number, and those of exports that are no longer kept."""
        named = {file.path for file in (record.embeddings, record.scores) if file}
        folder, first = self.reader.root / FILES, self.reader.commits.first
        written = ((entry, file_number(entry)) for entry in folder.names())
        remove(
            folder / entry
            for entry, number in written
            if number is not None
            and (number < first or (number == record.number and f"{FILES}/{entry}" not in named))
        )


class Export:
    """The files of a commit in progress."""

    def __init__(self, root: Place, number: int) -> None:
        self.number = number
        self._named = False
        self._staging: Staging = root.stage()
        self._token = secrets.token_hex(6)

    def add(self, kind: ExportKind, write: Write) -> FileRef:
        """Write one file under a temporary name; see ``Staging.add``."""
        return self._staging.add(file_name(self.number, self._token, kind), write)

    def finish(self) -> None:
        """Give the files their names, durably; now a record may name them."""
        self._staging.finish()
        self._named = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is not None and not self._named:
            self._staging.discard()

    def discard(self) -> None:
        """Remove the files: none was visible."""
        self._staging.discard()
