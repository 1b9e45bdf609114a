"""One writer per folder: a lock that ends with its process, so nobody has to remove a stale one."""

import fcntl
import os
from pathlib import Path

from schemas.errors import system_call
from stream.store.errors import LaneBusyError, busy


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
