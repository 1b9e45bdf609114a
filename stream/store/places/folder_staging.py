"""The data files of one commit in a folder: temporary names, fsync, renames."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from schemas.store import FileRef
from stream.store.crash import crash_point
from stream.store.places.durable import make_folders, remove_empty, sync_file, sync_folder
from stream.store.places.names import TEMPORARY, inside
from stream.store.places.staging import SYNC_THREADS, Staging, Write
from stream.store.places.write_out import WriteOut

if TYPE_CHECKING:
    from stream.store.places.folder import FolderPath


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
        made = make_folders(path.parent)
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
        _each(sync_file, temporaries)
        crash_point("file.synced")
        for temporary, path in zip(temporaries, self._staged, strict=True):
            temporary.rename(path)
            crash_point("file.renamed")
        _each(sync_folder, list(self._folders))
        crash_point("files.named")

    def discard(self) -> None:
        """Remove all files of any step, and the folders made for them; the next try syncs its own."""
        for path in self._staged:
            path.with_name(path.name + TEMPORARY).unlink(missing_ok=True)
            path.unlink(missing_ok=True)
        remove_empty(self._made)


def _each(sync: Callable[[Path], None], paths: list[Path]) -> None:
    if len(paths) <= 2:
        for path in paths:
            sync(path)
        return
    with ThreadPoolExecutor(min(SYNC_THREADS, len(paths))) as pool:
        list(pool.map(sync, paths))
