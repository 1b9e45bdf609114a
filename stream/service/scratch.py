"""Folders for work in progress, removed at the end; after a kill the next call removes them."""

import fcntl
import os
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from freshet_graph.schemas.errors import system_call

WITHIN = "FRESHET_SCRATCH"
"""Environment: the folder for scratch folders of processes that a command starts, removed with its own."""

PREFIX = "freshet-"
LOCK = "lock"
"""File of such a folder that its process holds locked. Without a process there is no lock."""


@contextmanager
def scratch_folder(purpose: str) -> Iterator[Path]:
    """A new folder, removed with its content at the end of the block; SIGTERM and SIGHUP end the block, too.

    Folders of this user's killed processes on this machine are removed first.

    Args:
        purpose: A word for its name, ``freshet-<purpose>-…``, in the folder for temporary files.

    Raises:
        OSError: It can't be made.
    """
    parent = Path(os.environ.get(WITHIN) or tempfile.gettempdir())
    sweep(parent)
    with _ended_by_signals():
        folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{purpose}-", dir=parent))
        lock = -1
        try:
            lock = _locked(folder)
            yield folder
        finally:
            _remove(folder)
            if lock >= 0:
                os.close(lock)


def sweep(parent: Path) -> None:
    """Remove the scratch folders of this user's processes on this machine that are gone."""
    for folder in parent.glob(f"{PREFIX}*-*"):
        with suppress(OSError):  # another user's, just swept by another process, or on a disk without locks
            if folder.lstat().st_uid == os.getuid() and not folder.is_symlink():
                _sweep(folder)


def _sweep(folder: Path) -> None:
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.pread(lock, 256, 0).decode(errors="replace") == socket.gethostname():
            _remove(folder)
    finally:
        os.close(lock)


def _locked(folder: Path) -> int:
    """A folder's lock, which holds the machine's name: locks of some network file systems apply to one machine only."""
    with system_call("open", folder / LOCK):
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with suppress(OSError):  # without locks it is never swept
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.pwrite(lock, socket.gethostname().encode(), 0)  # it is not swept before that
    return lock


def _remove(folder: Path) -> None:
    """Remove a folder and its content, the lock last, so that an interrupted removal can still be swept."""
    with suppress(OSError):
        for path in folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            elif path.name != LOCK:
                path.unlink(missing_ok=True)
        if [path.name for path in folder.iterdir()] in ([LOCK], []):
            (folder / LOCK).unlink(missing_ok=True)
            folder.rmdir()


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP raise SystemExit inside the block, unless something else handles or ignores them."""
    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) == signal.SIG_DFL:
                before[number] = signal.signal(number, _end)
    try:
        yield
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) == _end:
                signal.signal(number, handler)


def _end(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
