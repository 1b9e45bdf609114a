"""Removing files that no record names: what a crash left behind."""

import re
import shutil
from pathlib import Path

from stream.store.files.paths import TEMPORARY

NUMBERED = re.compile(r"\d+\.arrow")
TAU = re.compile(r"-?\d+")


def unnamed(folder: Path, named: set[str], ours: re.Pattern[str]) -> list[Path]:
    """Entries of a folder that Freshet would write (their names match ``ours``) and no record names."""
    if not folder.is_dir():
        return []
    entries = [path for path in folder.iterdir() if path.name not in named]
    return [path for path in entries if ours.fullmatch(path.name.removesuffix(TEMPORARY))]


def remove(paths: list[Path]) -> None:
    """Remove files, and folders with all that is in them."""
    for path in paths:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
