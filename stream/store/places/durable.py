"""Folders and files of a file system, made so that they survive a power failure, and a lock for one writer per folder.

The lock ends with its process, so nobody has to remove a stale one.
"""

import errno
import fcntl
import os
from contextlib import suppress
from pathlib import Path

from freshet_graph.schemas.errors import system_call
from freshet_graph.stream.store.errors import LaneBusyError, busy

_NO_HARD_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


def make_folders(folder: Path) -> list[Path]:
    """Make a folder and its missing parents; if one cannot be made, none of them stays.

    Returns:
        The folders made, outermost first. Their parents have to be synced before anything in them is durable.

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


def fsync_ancestors(folder: Path) -> None:
    """See ``Place.fsync_ancestors``: up to the file system's root."""
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


class FolderLock:
    """Exclusive right to write into one folder, until ``release`` or the end of the process.

    The lock is the kernel's (flock on a file of the folder); the file's text only names the holder.
    """

    why_both = "locks don't work on this file system. Put the store on a local disk, or run one stream job"
    """See ``Lock.why_both``."""

    def __init__(
        self,
        folder: Path,
        writer_id: str,
        name: str = "lock",
        otherwise: str = "choose another store",
        doing: str = "written",
    ) -> None:
        """Take the lock.

        Args:
            folder: An existing folder, such as a log's or a lane's.
            writer_id: Who takes it.
            name: The lock's file: commits and compaction have one each.
            otherwise: The alternative to stopping the other writer, for the message.
            doing: The holder's work on the folder, for the message.

        Raises:
            LaneBusyError: Another writer holds it; the message names it.
        """
        path = folder / name
        self._path = path
        with system_call("open", path):
            self._descriptor: int | None = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            with system_call("flock", path):
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._descriptor, 256, 0).decode(errors="replace").strip()
            self._let_go()
            raise busy(folder, doing, holder, otherwise) from None
        except OSError:
            self._let_go()
            raise
        if not _is_at(self._descriptor, path):
            self._let_go()
            raise LaneBusyError(f"{folder} was removed by another process just now. Try again")
        with system_call("write", path):
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, writer_id.encode() + b"\n", 0)

    def require(self) -> None:
        """See ``Lock.require``: the kernel takes no lock away."""

    def release(self) -> None:
        """Give the lock back and erase the holder's name; doing so twice is harmless."""
        if self._descriptor is not None:
            try:
                with system_call("write", self._path):
                    os.ftruncate(self._descriptor, 0)
            finally:
                self._let_go()

    def _let_go(self) -> None:
        assert self._descriptor is not None
        os.close(self._descriptor)
        self._descriptor = None


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether a file that is open still has its name."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
