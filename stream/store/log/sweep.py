"""Remove remains of a crash: files of the log that no commit names."""

from schemas.store import CommitRecord
from stream.store.errors import ConfigMissingError
from stream.store.files.records import read_record
from stream.store.files.sweep import (
    NUMBERED,
    TAU,
    remove,
    require_own_folders,
    superseded,
    temporary,
    unnamed,
)
from stream.store.log.commits import CommitChain
from stream.store.log.layout import COMMITS, REJECTS, SNAPSHOTS, TAIL, commit_name
from stream.store.places.names import last_step
from stream.store.places.place import Place


def sweep(root: Place, chain: CommitChain) -> list[Place]:
    """Remove unnamed tail, reject and snapshot files, and temporary ones; only a writer with the lock may.

    Args:
        root: Folder of the log.
        chain: All of its commits.

    Returns:
        The places removed. Files with foreign names are left alone.

    Raises:
        CorruptError: One of the log's folders is a symbolic link.
    """
    require_own_folders(root, (COMMITS, TAIL, REJECTS, SNAPSHOTS))
    tail = {last_step(file.path) for file in chain.last.tail} if chain.last else set()

    def folder(tau: int) -> str:
        return chain.sealed[chain.number_of[tau]].events.path.split("/")[1]

    def rejects(n: int) -> str:
        try:
            record = read_record(root / commit_name(n), CommitRecord)
        except ConfigMissingError:
            chain.refresh()
            if n in chain.with_rejects:
                raise
            return ""  # compaction has dropped it since: no record names any of them
        assert record.rejects is not None, "the chain lists commits with rejects"
        return last_step(record.rejects.path)

    left = [
        *unnamed(root / TAIL, tail, NUMBERED),
        *superseded(root / REJECTS, set(chain.with_rejects), rejects, NUMBERED, ".arrow"),
        *superseded(root / SNAPSHOTS, set(chain.number_of), folder, TAU),
        *temporary(root),
        *temporary(root / COMMITS),
    ]
    removed = list((root / commit_name(chain.next_n - 1)).outdated(left))
    remove(removed)
    return removed
