"""Folders and files of a file system, made so that they survive a power failure."""

import errno
import os
from contextlib import suppress
from pathlib import Path

from schemas.errors import system_call

_NO_HARD_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


def make_folders(folder: Path) -> list[Path]:
    """See ``Place.make``.

    Raises:
        OSError: The disk refuses.
    """
    missing = []
    step = folder
    while not step.exists():
        missing.append(step)
        step = step.parent
    made: list[Path] = []
    try:
        for step in reversed(missing):
            step.mkdir(exist_ok=True)
            made.append(step)
    except OSError:
        remove_empty(made)
        raise
    return made


def remove_empty(folders: list[Path]) -> None:
    """Remove folders that turned out unneeded, given outermost first; those with content stay."""
    for folder in reversed(folders):
        with suppress(OSError):
            folder.rmdir()


def settle(folder: Path) -> None:
    """See ``Place.settle``: up to the file system's root."""
    for step in (folder.absolute(), *folder.absolute().parents):
        try:
            sync_folder(step)
        except PermissionError:
            return  # a folder of another user was not made by a writer of ours either
        if step.is_mount():
            return


def sync_file(path: Path) -> None:
    """Force a file's bytes to the disk."""
    _sync(path, 0)


def sync_folder(folder: Path) -> None:
    """Force a folder's entries (new names, renames) to the disk."""
    _sync(folder, os.O_DIRECTORY)


def _sync(path: Path, kind: int) -> None:
    with system_call("open", path):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | kind)
    try:
        with system_call("fsync", path):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def name_once(temporary: Path, path: Path) -> None:
    """Give a file a second name that must be free."""
    try:
        with system_call("link", path):
            os.link(temporary, path)
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
        # A file system without hard links: the folder's lock keeps others out between the two steps.
        if path.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from None
        temporary.rename(path)
