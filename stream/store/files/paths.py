"""Paths inside a store: names that cannot leave their folder, and folders whose entries are durable."""

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from stream.store.errors import CorruptError

_STEP = re.compile(r"(?!\.)[A-Za-z0-9._-]{1,255}")
TEMPORARY = ".tmp"
"""Suffix of files that are being written; no record ever names one."""


def inside(root: Path, relative: str) -> Path:
    """The file ``relative`` of the folder ``root``.

    Args:
        root: Folder of a log or lane.
        relative: Path as records hold it: steps of letters, digits, ``.``, ``_``, ``-`` between slashes.

    Raises:
        CorruptError: It is absolute, has an empty, hidden or ``..`` step, or leads out by a symbolic link.
    """
    steps = relative.split("/")
    if not all(_STEP.fullmatch(step) for step in steps):
        raise CorruptError(
            f"the path {relative!r} in a record of {root} isn't a plain path inside the store; "
            "the record is damaged or not from Freshet"
        )
    path = root.joinpath(*steps)
    if _has_link(str(root), steps):
        real_root = os.path.realpath(root)
        if not os.path.realpath(path).startswith(real_root + os.sep):
            raise CorruptError(
                f"{path} leads out of the store through a symbolic link; copy the file into the store"
            )
    return path


def _has_link(path: str, steps: list[str]) -> bool:
    for step in steps:
        path = f"{path}{os.sep}{step}"
        if os.path.islink(path):  # noqa: PTH114  a Path an step takes longer than the look
            return True
    return False


def require_own_folders(root: Path, names: Iterable[str]) -> None:
    """Check that the folders of a log or lane lie in it, before anything in them is removed.

    Raises:
        CorruptError: One is a symbolic link.
    """
    for name in names:
        if (root / name).is_symlink():
            raise CorruptError(
                f"{root / name} is a symbolic link, so what is swept in it may lie outside the store; put the folder "
                "itself there"
            )


def make_folders(folder: Path) -> list[Path]:
    """Create a folder and its missing parents; if one of them can't be, none of them stays.

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
    """Remove folders that were made for nothing, innermost last in the list; those that hold something stay."""
    for folder in reversed(folders):
        with suppress(OSError):
            folder.rmdir()


def settle(folder: Path) -> None:
    """Make durable what a folder holds and that it is there, up to the file system's root.

    For a writer that goes on where another may have been killed between making a folder or a name and syncing it: what
    is built on it must not outlive it.
    """
    for step in (folder.absolute(), *folder.absolute().parents):
        try:
            sync_folder(step)
        except PermissionError:
            return  # a folder that is none of ours was not made by us either
        if step.is_mount():
            return


def sync_file(path: Path) -> None:
    """Force a file's bytes to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Force a folder's entries (new names, renames) to the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
