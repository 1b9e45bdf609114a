"""A place on a file system: a ``pathlib.Path`` that keeps what ``interface`` promises, even over a power failure.

The data files of one commit have temporary names, are synchronised, and renamed.
"""

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path, PosixPath
from typing import ClassVar

from freshet_graph.schemas.errors import system_call
from freshet_graph.schemas.store import FileRef
from freshet_graph.stream.store.crash import crash_point
from freshet_graph.stream.store.errors import CorruptError
from freshet_graph.stream.store.places import durable
from freshet_graph.stream.store.places.durable import FolderLock, sync_file, sync_folder
from freshet_graph.stream.store.places.interface import SYNC_THREADS, TEMPORARY, Staging, Write, inside
from freshet_graph.stream.store.places.write_out import WriteOut


class FolderStaging(Staging):
    """Files written under temporary names.

    The steps of ``finish``: 1. fsync of every file; 2. rename to the final names; 3. fsync of every changed folder.
    """

    def __init__(self, root: "FolderPath") -> None:
        self.root = root
        self._staged: list[Path] = []
        self._folders: set[Path] = set()
        self._made: list[Path] = []

    def add(self, relative: str, write: Write) -> FileRef:
        """Write one file under its temporary name; see ``Staging.add``."""
        path = inside(self.root, relative)
        made = durable.make_folders(path.parent)
        self._made.extend(made)
        self._folders.update(folder.parent for folder in made)
        self._folders.add(path.parent)
        temporary = path.with_name(path.name + TEMPORARY)
        self._staged.append(path)
        with WriteOut(temporary) as sink:
            write(sink.native())
        size = sink.bytes
        crash_point("file.torn", lambda: os.truncate(temporary, size // 2))
        crash_point("file.written")
        return FileRef(path=relative, bytes=size, checksum=sink.checksum)

    def finish(self) -> None:
        """Make all files durable under their final names."""
        if not self._staged:
            return
        temporaries = [path.with_name(path.name + TEMPORARY) for path in self._staged]
        _sync_all(sync_file, temporaries)
        crash_point("file.synced")
        for temporary, path in zip(temporaries, self._staged, strict=True):
            temporary.rename(path)
            crash_point("file.renamed")
        _sync_all(sync_folder, list(self._folders))
        crash_point("files.named")

    def discard(self) -> None:
        """Remove all files of any step, and the folders made for them; the next try syncs its own."""
        for path in self._staged:
            path.with_name(path.name + TEMPORARY).unlink(missing_ok=True)
            path.unlink(missing_ok=True)
        durable.remove_empty(self._made)


def _sync_all(sync: Callable[[Path], None], paths: list[Path]) -> None:
    if len(paths) <= 2:
        for path in paths:
            sync(path)
        return
    with ThreadPoolExecutor(min(SYNC_THREADS, len(paths))) as pool:
        list(pool.map(sync, paths))


class FolderPath(PosixPath):
    """See ``Place`` for the methods beside ``pathlib``'s."""

    remote: ClassVar[bool] = False
    lock_shuts_out: ClassVar[bool] = True
    can_move: ClassVar[bool] = True
    errors_are_certain: ClassVar[bool] = True

    def entry(self, steps: Sequence[str]) -> "FolderPath":
        """See ``Place.entry``."""
        path = self.joinpath(*steps)
        if _has_link(str(self), steps):
            real_root = os.path.realpath(self)
            if not os.path.realpath(path).startswith(real_root + os.sep):
                raise CorruptError(
                    f"{path} leads out of the store through a symbolic link. Copy the file into the store"
                )
        return path

    def make(self) -> None:
        """See ``Place.make``."""
        durable.make_folders(self)

    def fsync_ancestors(self) -> None:
        """See ``Place.fsync_ancestors``."""
        durable.fsync_ancestors(self)

    def sync(self) -> None:
        """See ``Place.sync``."""
        durable.sync_folder(self)

    def put(self, content: bytes) -> None:
        """See ``Place.put``: by a rename."""
        durable.make_folders(self.parent)
        temporary = self.with_name(f"{self.name}.{os.getpid()}")
        with system_call("write", temporary):
            temporary.write_bytes(content)
        temporary.replace(self)

    def put_record(self, content: bytes, *, replace: bool) -> None:
        """See ``Place.put_record``.

        1. the content under a temporary name, fsync;
        2. a hard link to the final name, which fails if that exists; with ``replace`` a rename over it, so that every
           reader finds either record whole;
        3. fsync of the folder, and removal of the temporary name; if that fails, the next sweep removes it.
        """
        made = durable.make_folders(self.parent)
        temporary = self.with_name(self.name + TEMPORARY)
        try:
            with system_call("write", temporary):
                temporary.write_bytes(content)
            crash_point("record.torn", lambda: os.truncate(temporary, temporary.stat().st_size // 2))
            crash_point("record.written")
            durable.sync_file(temporary)
            crash_point("record.synced")
            temporary.replace(self) if replace else durable.name_once(temporary, self)
            crash_point("record.linked")
            for folder in {self.parent, *(folder.parent for folder in made)}:
                durable.sync_folder(folder)
            crash_point("record.named")
        finally:
            with suppress(OSError):  # a left-over temporary file does not change the outcome
                temporary.unlink(missing_ok=True)

    def move(self, to: "FolderPath") -> None:
        """See ``Place.move``."""
        self.rename(to)

    def stage(self, token: str | None = None) -> FolderStaging:
        """See ``Place.stage``."""
        return FolderStaging(self)

    def lock(self, writer_id: str, name: str, doing: str) -> FolderLock:
        """See ``Place.lock``: a lock of the kernel."""
        return FolderLock(self, writer_id, name, doing=doing)

    def local_path(self, checksum: str) -> Path:
        """See ``Place.local_path``: itself."""
        return self

    def retryable(self, checksum: str, tried: Path) -> bool:
        """See ``Place.retryable``: never."""
        return False

    def ahead_bytes(self) -> int:
        """See ``Place.ahead_bytes``."""
        return 0

    def disk(self) -> Path:
        """See ``Place.disk``: itself."""
        return self

    def apart(self) -> "AbstractContextManager[FolderPath]":
        """See ``Place.apart``: itself."""
        return nullcontext(self)

    def names(self) -> list[str]:
        """See ``Place.names``. A long-lived lane has a hundred thousand."""
        try:
            with system_call("list", self):
                return os.listdir(self)  # noqa: PTH208  one Path per entry takes ten times as long
        except (FileNotFoundError, NotADirectoryError):
            return []

    def entries(self, chosen: Callable[[list[str]], Iterable[str]]) -> "list[FolderPath]":
        """See ``Place.entries``."""
        return [self / name for name in chosen(self.names())]

    def outdated(self, paths: "Iterable[FolderPath]") -> "Iterator[FolderPath]":
        """See ``Place.outdated``: all, because the folder's lock keeps other writers out."""
        yield from paths

    def length(self) -> int:
        """See ``Place.length``."""
        try:
            if self.is_symlink() or not self.is_dir():
                return self.lstat().st_size
        except FileNotFoundError:
            return 0
        return sum((self / name).length() for name in self.names())

    @classmethod
    def remove(cls, paths: "Sequence[FolderPath]") -> int:
        """See ``Place.remove``."""
        freed = 0
        for path in paths:
            freed += path.length()
            if path.is_dir() and not path.is_symlink():
                while path.exists():
                    try:
                        shutil.rmtree(path)
                    except FileNotFoundError:
                        continue  # removed by two processes at once: a starting writer, and compaction
            else:
                path.unlink(missing_ok=True)
        return freed


def _has_link(path: str, steps: Sequence[str]) -> bool:
    for step in steps:
        path = f"{path}{os.sep}{step}"
        if os.path.islink(path):  # noqa: PTH114  one Path per step takes longer than the look
            return True
    return False
