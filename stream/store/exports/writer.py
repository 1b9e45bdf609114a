"""The writer of exports: files first, whole and durable, then the commit that names them.

Order of a commit: the files under temporary names, fsync, rename; the record, put only where its number is free. A
crash before the record leaves files that no record names: the next commit of that number sweeps them. Once the record
may be there its files stay, and what else fails does not fail the commit. The numbers are
also the fence: a writer goes on from its own last number only, so of two writers under one name one fails at its next
commit, whether both want one number or take turns, and what it wrote is nobody's.
"""

import secrets
from functools import partial
from types import TracebackType
from typing import Self

from schemas.exports import ExportCommit, ExportKind
from schemas.store import FileRef
from stream.service.failure import Failure
from stream.store.crash import crash_point
from stream.store.exports.layout import FILES, commit_name, file_name, file_number
from stream.store.exports.reader import ExportReader
from stream.store.files.clean_up import CleanUp
from stream.store.files.data import Staging, Write, stage
from stream.store.files.records import put_record
from stream.store.files.sweep import names_in, remove
from stream.store.places.place import Place


class ExportWriter:
    """Adds commits to the exports under one name, and removes old ones.

    Attributes:
        reader: What is there.
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
            export: Its files are written.
            record: Its number and files are those of ``export``.

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
        """Keep the newest commits only; what a topic is still to get stays as well.

        Args:
            newest: How many.

        Returns:
            How many went: records first, so that none ever names a file that is gone. Those that can't be removed now
            are tried again after the next commit.
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
            f"export {number} of {self.reader.root} was made by another trainer at the same time: stop one, or give it "
            "another name in the key exports.name"
        )

    def _sweep(self, record: ExportCommit) -> None:
        """Remove what no record names: of this number, which is taken now, and of exports that are no longer kept."""
        named = {file.path for file in (record.embeddings, record.scores) if file}
        folder, first = self.reader.root / FILES, self.reader.commits.first
        written = ((entry, file_number(entry)) for entry in names_in(folder))
        remove(
            folder / entry
            for entry, number in written
            if number is not None
            and (number < first or (number == record.number and f"{FILES}/{entry}" not in named))
        )


class Export:
    """The files of one commit that is being made."""

    def __init__(self, root: Place, number: int) -> None:
        self.number = number
        self._named = False
        self._staging: Staging = stage(root)
        self._token = secrets.token_hex(6)

    def add(self, kind: ExportKind, write: Write) -> FileRef:
        """Write one file under a temporary name.

        Args:
            kind: Which.
            write: Called once with an open ``pyarrow.NativeFile``.

        Raises:
            OSError: The disk refuses.
        """
        return self._staging.add(file_name(self.number, self._token, kind), write)

    def finish(self) -> None:
        """Give the files their names, durably; from here on a record may name them."""
        self._staging.finish()
        self._named = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and not self._named:
            self._staging.discard()

    def discard(self) -> None:
        """Forget it: nothing was visible."""
        self._staging.discard()
