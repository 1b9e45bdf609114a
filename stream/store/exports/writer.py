"""The writer of exports: files first, whole and durable, then the commit that names them.

The steps of a commit: the files under temporary names, fsync, rename; the record, put only if its number is free. A crash
before the record leaves files that no record names; the next commit of that number sweeps them. Once the record may exist, its
files stay, and later failures do not fail the commit. The numbers are also the fence: a writer continues only from its own
last number. Of two writers under one name, one therefore fails at its next commit, and no record names its files.
"""

import secrets
from functools import partial
from typing import Self

from schemas.exports import ExportCommit, ExportKind
from schemas.store import FileRef
from stream.service.failure import Failure
from stream.store.crash import crash_point
from stream.store.exports.layout import FILES, commit_name, file_name, file_number
from stream.store.exports.reader import ExportReader
from stream.store.files.clean_up import CleanUp
from stream.store.files.records import put_record
from stream.store.files.sweep import remove
from stream.store.places.place import Place
from stream.store.places.staging import Staging, Write


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
        self._kept = 0

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
        first, self._kept = self.reader.commits.first, newest
        self._clean_up.add(self._remove_old)
        self._clean_up.run()
        return self.reader.commits.first - first

    def _remove_old(self) -> None:
        commits = self.reader.commits
        waiting = self.reader.least_published()
        before = len(commits) - self._kept
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
