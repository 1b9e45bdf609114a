"""The header of a log opened for writing: the keys that must agree, and those that may still follow the configuration."""

import time

from schemas.store import FOLLOWED, CommitRecord, LogHeader
from stream.store.errors import LaneBusyError
from stream.store.files.headers import lost_header, put_or_agree, require_agreement
from stream.store.files.records import put_record, read_record
from stream.store.log.commits import CommitChain, numbers
from stream.store.log.layout import HEADER, commit_name
from stream.store.places.place import Place

FOLLOWING = ("ids", "node_features", "edge_features", "segments")
"""Keys that bind nothing before the first event: they decide what is refused, so with a wrong one every message may be.
Graph and interval are fixed by the first commit: positions belong to the graph, and closed snapshots count intervals."""

_OF_THE_RECORD = ("format_version", "begun_as")


def agreed_header(root: Place, wanted: LogHeader, writer_id: str) -> LogHeader:
    """The log's header once it agrees with the configuration; the caller has the log's lock.

    A header with commits but no event is changed in two steps (with the state after a crash):
        1. a commit that changes nothing; in a bucket it shuts out a former writer, who took events in under the old header
           [one commit more, under the old header]
        2. the new header replaces the old one by a rename and names it, because commit 0 was made under it
           [either header, whole]

    Args:
        root: Folder of the log.
        wanted: The header as the configuration has it.
        writer_id: Who writes.

    Raises:
        MismatchError: They differ in a fixed key; the message names it.
        LaneBusyError: Another process made a commit meanwhile.
        CorruptError, FormatVersionError: The log is damaged, or from another release.
        OSError: The disk refuses.
    """
    if not any(True for _ in numbers(root)):
        return put_or_agree(root / HEADER, wanted, "a log", begun=False)
    found, last = require_header(root, wanted)
    if last is None:
        return found
    changes = {"n": last.n + 1, "previous": last.checksum, "writer": writer_id, "rejects": None}
    fence = last.model_copy(update={**changes, "wall_time_us": time.time_ns() // 1_000})
    try:
        put_record(root / commit_name(fence.n), fence)
    except FileExistsError:
        raise LaneBusyError(
            f"{root / commit_name(fence.n)} was made by another process while {writer_id} opened the log. "
            "Stop one of the two"
        ) from None
    begun_as = found.begun_as or found.checksum
    header = wanted.model_copy(update={"format_version": FOLLOWED, "begun_as": begun_as})
    return put_record(root / HEADER, header, replace=True)


def require_header(root: Place, wanted: LogHeader) -> tuple[LogHeader, CommitRecord | None]:
    """Compare a configuration with the header of a log that has commits.

    Returns:
        The existing header; and, if it differs in keys that may follow, the newest commit.

    Raises:
        MismatchError: They differ in a fixed key; the message names it.
        CorruptError, FormatVersionError: The log is damaged, or from another release.
    """
    path = root / HEADER
    if not path.exists():
        raise lost_header(path)
    found = read_record(path, LogHeader)
    last = None
    if any(getattr(found, key) != getattr(wanted, key) for key in FOLLOWING):
        chain = CommitChain(root, found)
        chain.refresh()
        if chain.last is not None and not len(chain.sealed) and not chain.last.tail_events:
            last = chain.last
    changeable = _OF_THE_RECORD if last is None else (*_OF_THE_RECORD, *FOLLOWING)
    require_agreement(path, found, wanted, "a log", changeable)
    return found, last
