"""Removing files that no record names: what a crash left behind."""

import re
import shutil
from collections.abc import Iterable
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


def remove(paths: Iterable[Path]) -> None:
    """Remove files, and folders with all that is in them; what another process removes meanwhile is fine."""
    for path in paths:
        if path.is_dir() and not path.is_symlink():
            while path.exists():
                try:
                    shutil.rmtree(path)
                except FileNotFoundError:
                    continue  # swept by two at once: a writer that starts, and compaction
        else:
            path.unlink(missing_ok=True)
