"""Removing what a crash left behind: files of the log that no commit names."""

from schemas.store import CommitRecord
from stream.store.errors import ConfigMissingError
from stream.store.files.paths import require_own_folders
from stream.store.files.records import read_record
from stream.store.files.sweep import NUMBERED, TAU, outdated, remove, superseded, temporary, unnamed
from stream.store.log.commits import CommitChain
from stream.store.log.layout import COMMITS, REJECTS, SNAPSHOTS, TAIL, commit_name
from stream.store.places.place import Place


def sweep(root: Place, chain: CommitChain) -> list[Place]:
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
    tail = {file.path.rpartition("/")[2] for file in chain.last.tail} if chain.last else set()

    def folder(tau: int) -> str:
        return chain.sealed[chain.number_of[tau]].events.path.split("/")[1]

    def rejects(n: int) -> str:
        try:
            record = read_record(root / commit_name(n), CommitRecord)
        except ConfigMissingError:
            chain.refresh()
            if n in chain.with_rejects:
                raise
            return ""  # compaction has dropped it since: nothing names any of them
        assert record.rejects is not None, "the chain has it among those with rejects"
        return record.rejects.path.split("/")[1]

    left = [
        *unnamed(root / TAIL, tail, NUMBERED),
        *superseded(root / REJECTS, set(chain.with_rejects), rejects, NUMBERED, ".arrow"),
        *superseded(root / SNAPSHOTS, set(chain.number_of), folder, TAU),
        *temporary(root),
        *temporary(root / COMMITS),
    ]
    removed = list(outdated(left, root / commit_name(chain.next_n - 1)))
    remove(removed)
    return removed
