"""Removing what a crash left behind: files of the log that no commit names."""

from pathlib import Path

from stream.store.files.paths import TEMPORARY, require_own_folders
from stream.store.files.sweep import NUMBERED, TAU, remove, unnamed
from stream.store.log.commits import CommitChain
from stream.store.log.layout import COMMITS, REJECTS, SNAPSHOTS, TAIL, rejects_name


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
    snapshots = {str(tau) for tau in chain.number_of}
    removed = [
        *unnamed(root / TAIL, tail, NUMBERED),
        *unnamed(root / REJECTS, rejects, NUMBERED),
        *unnamed(root / SNAPSHOTS, snapshots, TAU),
        *root.glob(f"*{TEMPORARY}"),
        *(root / COMMITS).glob(f"*{TEMPORARY}"),
    ]
    remove(removed)
    return removed
