"""Paths inside a store: names that cannot leave their folder, and folders whose entries are durable.

In a bucket folders need no making, and what was put is durable: what makes or syncs a folder does nothing there.
"""

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import overload

from stream.store.errors import CorruptError
from stream.store.places.object_path import ObjectPath
from stream.store.places.place import Place

_STEP = re.compile(r"(?!\.)[A-Za-z0-9._-]{1,255}")
TEMPORARY = ".tmp"
"""Suffix of files that are being written; no record ever names one."""

_TOKEN = re.compile(r"_[0-9a-f]{12}(?=[./]|$)")
"""What a data file's name has in a bucket beside the plain one, so that no two writers ever use the same."""


def with_token(relative: str, token: str) -> str:
    """A data file's path with a token of its commit: ``tail/3_<token>.arrow``, ``snapshots/7_<token>/events.arrow``."""
    folder, step, *rest = relative.split("/")
    name, dot, suffix = (step, "", "") if rest else step.rpartition(".")
    return "/".join([folder, f"{name}_{token}{dot}{suffix}", *rest])


def token_of(relative: str) -> str:
    """The token in a data file's path; empty where it has none."""
    found = _TOKEN.search(relative) if "_" in relative else None
    return found[0][1:] if found else ""


def plain(relative: str) -> str:
    """A data file's path, or a step of it, without the token."""
    return _TOKEN.sub("", relative, count=1) if "_" in relative else relative


def last_step(relative: str) -> str:
    """The name at the end of a path."""
    return relative.rpartition("/")[2]


@overload
def inside(root: Path, relative: str) -> Path: ...


@overload
def inside(root: ObjectPath, relative: str) -> ObjectPath: ...


@overload
def inside(root: Place, relative: str) -> Place: ...


def inside(root: Place, relative: str) -> Place:
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
    if isinstance(root, ObjectPath):
        return root / relative
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


def require_own_folders(root: Place, names: Iterable[str]) -> None:
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


def make_folders(folder: Place) -> list[Path]:
    """Create a folder and its missing parents; if one of them can't be, none of them stays.

    Returns:
        The folders made, outermost first. Their parents have to be synced before anything in them is durable.

    Raises:
        OSError: The disk refuses.
    """
    if isinstance(folder, ObjectPath):
        return []
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


def settle(folder: Place) -> None:
    """Make durable what a folder holds and that it is there, up to the file system's root.

    For a writer that goes on where another may have been killed between making a folder or a name and syncing it: what
    is built on it must not outlive it.
    """
    if isinstance(folder, ObjectPath):
        return
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


def sync_folder(folder: Place) -> None:
    """Force a folder's entries (new names, renames) to the disk."""
    if isinstance(folder, ObjectPath):
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
