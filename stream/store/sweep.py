"""Removing what a crash left behind: files of the log that no commit names."""

import re
import shutil
from pathlib import Path

from stream.store.commits import CommitChain
from stream.store.log_layout import COMMITS, REJECTS, SNAPSHOTS, TAIL, rejects_name
from stream.store.paths import TEMPORARY, require_own_folders

NUMBERED = re.compile(r"\d+\.arrow")
TAU = re.compile(r"-?\d+")


def sweep(root: Path, chain: CommitChain) -> list[Path]:
    """Remove unnamed tail, reject and snapshot files, and temporary ones; only a writer with the lock may.

    Args:
        root: Folder of the log.
        chain: All of its commits.

    Returns:
        What was removed. Files that Freshet would not write are left alone.

    Raises:
        CorruptError: One of the log's folders is a symbolic link.
    """
    require_own_folders(root, (COMMITS, TAIL, REJECTS, SNAPSHOTS))
    tail = {Path(file.path).name for file in chain.last.tail} if chain.last else set()
    rejects = {Path(rejects_name(n)).name for n in chain.with_rejects}
    snapshots = {str(snapshot.tau) for snapshot in chain.sealed}
    removed = [
        *unnamed(root / TAIL, tail, NUMBERED),
        *unnamed(root / REJECTS, rejects, NUMBERED),
        *unnamed(root / SNAPSHOTS, snapshots, TAU),
        *root.glob(f"*{TEMPORARY}"),
        *(root / COMMITS).glob(f"*{TEMPORARY}"),
    ]
    remove(removed)
    return removed


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
