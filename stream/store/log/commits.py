"""The chain of commit records from the newest index on, each bound to its predecessor by checksum.

Beside it: ``log/history.json``, the files that a log begins with and the moment from which Kafka takes over; the header, whose
keys must agree with the configuration or may still follow it; and the removal of files that no commit names.
"""

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import TypeVar

import xxhash

from freshet_graph.schemas.store import (
    FOLLOWED,
    CommitRecord,
    HistoryFile,
    HistoryRecord,
    Key,
    LogHeader,
    LogIndex,
    Position,
    SealedSnapshot,
)
from freshet_graph.stream.snapshots.border import HISTORY as HISTORY_KEY
from freshet_graph.stream.store.errors import (
    ConfigMissingError,
    CorruptError,
    LaneBusyError,
    MissingError,
    RetainedError,
    StoreError,
    remedy,
)
from freshet_graph.stream.store.files.records import (
    Numbered,
    lost_header,
    put_or_agree,
    put_record,
    read_record,
    read_records,
    require_agreement,
)
from freshet_graph.stream.store.files.sweep import (
    NUMBERED,
    TAU,
    remove,
    require_own_folders,
    superseded,
    temporary,
    unnamed,
)
from freshet_graph.stream.store.log.index import LogTotals, SnapshotRows, newest_index
from freshet_graph.stream.store.log.labels import LabelFile, gathered
from freshet_graph.stream.store.log.layout import (
    COMMITS,
    HEADER,
    HISTORY,
    LABELS,
    REJECTS,
    SNAPSHOTS,
    TAIL,
    commit_name,
)
from freshet_graph.stream.store.places.interface import last_step
from freshet_graph.stream.store.places.place import Place

ENDS_BYTES = 1 << 20
"""Bytes of either end of a file that identify it; Parquet's footer, at its end, changes with any content."""


def read_history(root: Place) -> HistoryRecord | None:
    """The history of the log in folder ``root``; None: it begins with Kafka.

    Raises:
        CorruptError, FormatVersionError: The record is damaged, or from another release.
    """
    path = root / HISTORY
    return read_record(path, HistoryRecord) if path.exists() else None


def put_history(root: Place, history: HistoryRecord) -> HistoryRecord:
    """Write the record, or replace one that nothing was read under yet."""
    return put_record(root / HISTORY, history, replace=(root / HISTORY).exists())


def intended(files: Collection[Path]) -> HistoryRecord:
    """The history of a backfill that has not looked at its files yet; no other process may begin the log meanwhile."""
    named = [HistoryFile(name=path.name, rows=0, bytes=0, checksum="") for path in files]
    return HistoryRecord(files=named, until_us=0, rows=0, after=0, disorder_us=0, ends=[], surveyed=False)


def fingerprint(path: Path, rows: int) -> HistoryFile:
    """Identify a file, to recognise it later."""
    digest, size = xxhash.xxh64(), path.stat().st_size
    with path.open("rb") as file:
        digest.update(file.read(ENDS_BYTES))
        file.seek(max(0, size - ENDS_BYTES))
        digest.update(file.read())
    return HistoryFile(name=path.name, rows=rows, bytes=size, checksum=digest.hexdigest())


def rows_read(positions: Mapping[Key, Position]) -> int:
    """Number of rows of its history in a log."""
    position = positions.get(HISTORY_KEY)
    return 0 if position is None else position.next


def require_whole_history(
    root: Place, history: HistoryRecord | None, positions: Mapping[Key, Position]
) -> None:
    """Check that a log's history was read to its end, so that Kafka may take over.

    Raises:
        StoreError: It wasn't.
    """
    if history is not None and not history.surveyed:
        raise StoreError(
            f"a backfill of this log ({names(history.files)}) has failed before it read anything. Run freshet-stream backfill "
            f"again, with the same or corrected files. To begin without a history, remove {root / HISTORY}"
        )
    if history is not None and (read := rows_read(positions)) < history.rows:
        raise StoreError(
            f"the log has {read:,} of {history.rows:,} rows of its history ({names(history.files)}). Run "
            "freshet-stream backfill again. It resumes where it ended"
        )


def names(files: Collection[HistoryFile]) -> str:
    """Names of files, for a sentence."""
    return ", ".join(file.name for file in files)


T = TypeVar("T")


class CommitChain:
    """State of a log after its commits: the last one, the sealed snapshots, the refused messages, the files of labels.

    ``refresh`` reads new commits only, so a follower pays for those alone.
    """

    def __init__(self, root: Place, header: LogHeader, *, indexed: bool = True) -> None:
        """Begin after the newest index, or before commit 0.

        Args:
            root: Folder of the log.
            header: Its header, whose ``link`` commit 0 must name.
            indexed: False: ignore indexes.

        Raises:
            CorruptError: The indexes are damaged, and they replace commits.
        """
        self._root = root
        self._header = header
        self.index: LogIndex | None = None
        self.last: CommitRecord | None = None
        self.sealed: Numbered[SealedSnapshot] = Numbered("snapshot")
        self.number_of: dict[int, int] = {}
        self.with_rejects: list[int] = []
        self.labels: list[LabelFile] = []
        self.totals = LogTotals()
        if indexed:
            self._jump()

    @property
    def next_n(self) -> int:
        """Number of the next commit."""
        return 0 if self.last is None else self.last.n + 1

    def link(self) -> str:
        """The value of ``previous`` in the next commit."""
        return self._header.link if self.last is None else self.last.checksum

    def refresh(self) -> list[CommitRecord]:
        """Read the new commits; if they were folded into an index meanwhile, continue after it.

        Returns:
            The commits read, in order.

        Raises:
            CorruptError, FormatVersionError: A record is damaged, or doesn't follow its predecessor.
        """
        new: list[CommitRecord] = []
        while True:
            paths = (self._root / commit_name(n) for n in count(self.next_n))
            for record in read_records(
                paths, CommitRecord
            ):  # up to one that isn't made yet, or is in an index
                self.add(record)
                new.append(record)
            if not self._jump():
                return new

    def add(self, record: CommitRecord) -> None:
        """Append the next commit.

        Raises:
            CorruptError: It doesn't follow the last one.
        """
        path = self._root / commit_name(self.next_n)
        if record.n != self.next_n:
            raise CorruptError(
                f"{path} says it is commit {record.n}, so commit {self.next_n} is missing{remedy(path)}"
            )
        if record.previous != self.link():
            before = self._root / commit_name(record.n - 1) if record.n else self._root / "log.json"
            raise CorruptError(
                f"{path} follows a record with checksum {record.previous or 'none'}, {before} has {self.link()}. "
                "One of them is from another log, or log.json was changed while the log was empty. Open it again"
            )
        through = None if self.last is None else self.last.sealed_through
        for snapshot in record.sealed:
            if through is not None and snapshot.tau <= through:
                raise CorruptError(f"{path} seals snapshot {snapshot.tau}, but {through} is sealed already")
            through = snapshot.tau
        self.last = record
        for snapshot in record.sealed:
            self.number_of[snapshot.tau] = len(self.sealed)
            self.sealed.append(snapshot)
            self.totals.add(snapshot)
        if record.rejects is not None:
            self.with_rejects.append(record.n)
        if record.labels is not None:
            self.labels.append(LabelFile(record.n, record.n, record.labels))

    def undisturbed(self, read: Callable[[], T]) -> T:
        """Run a read of files that the chain names, again if a newer index replaced them.

        Raises:
            MissingError, RetainedError: A file is missing, and compaction did not remove it.
        """
        while True:
            index = self.index
            try:
                return read()
            except (MissingError, RetainedError):
                self.refresh()
                if self.index is index:
                    raise

    def require_whole(self) -> None:
        """Check that no record lies beyond the last one in the chain.

        Raises:
            CorruptError: A record in between is missing.
        """
        for n in numbers(self._root):
            while n >= (reached := self.next_n):
                missing = self._root / commit_name(reached)
                if missing.exists():  # written since the chain was read
                    break
                self.refresh()  # or folded into an index meanwhile
                if self.next_n == reached:
                    raise CorruptError(
                        f"{missing} is missing, though commit {n} exists. Restore it from a copy of the store"
                    )

    def forget_dropped(self) -> None:
        """Forget the snapshots that the newest index no longer keeps; for a writer, which reads no commits.

        ``with_rejects`` stays as it is, because another thread may be going through it.

        Raises:
            CorruptError, FormatVersionError: The indexes are damaged.
        """
        newest = newest_index(self._root, -1 if self.index is None else self.index.number)
        if newest is not None and self.last is not None and newest[0].n <= self.last.n:
            self.index = newest[0]
            self.drop_before(self.index.first)
            self.labels = [
                *gathered(self.index),
                *(file for file in self.labels if file.first > self.index.n),
            ]

    def drop_before(self, first: int) -> None:
        """Forget the snapshots before number ``first``: they are no longer kept."""
        for number in range(self.sealed.first, min(first, len(self.sealed))):
            self.number_of.pop(self.sealed[number].tau, None)
        self.sealed.drop_before(first)

    def _jump(self) -> bool:
        """Continue after the newest index if it is ahead; returns whether it was. An older one still says what is kept."""
        reached = -1 if self.last is None else self.last.n
        known = -1 if self.index is None else self.index.number
        newest = newest_index(self._root, known)
        if newest is None:
            return False
        index, rows, commit = newest
        if index.n <= reached:
            self.index = index
            self.drop_before(index.first)
            self.with_rejects[:] = [*index.with_rejects, *(n for n in self.with_rejects if n > index.n)]
            self.labels = [*gathered(index), *(file for file in self.labels if file.first > index.n)]
            return False
        if self.last is not None and len(self.sealed) > index.end:
            raise CorruptError(
                f"{self._root} has an index with fewer snapshots than its commits. Restore it from a copy"
            )
        self._take(index, rows, commit)
        return True

    def _take(self, index: LogIndex, rows: SnapshotRows, commit: CommitRecord) -> None:
        self.index, self.last = index, commit
        self.sealed = Numbered("snapshot", index.first, len(rows), rows.load)
        self.number_of = dict(zip(rows.taus.tolist(), range(index.first, index.end), strict=True))
        self.with_rejects[:] = index.with_rejects
        self.labels = gathered(index)
        self.totals = rows.totals(index.dropped)


def numbers(root: Place) -> Iterator[int]:
    """Numbers of all commit records in the log, unordered."""
    for name in (root / COMMITS).names():
        stem = name.removesuffix(".json")
        if stem.isdigit() and commit_name(int(stem)).endswith(f"/{name}"):
            yield int(stem)


FOLLOWING = ("ids", "node_features", "edge_features", "segments")
"""Keys that bind nothing before the first event or label: they decide what is refused, so with a wrong one every message may be.
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
    stored, last = require_header(root, wanted)
    if last is None:
        return stored
    changes = {"n": last.n + 1, "previous": last.checksum, "writer": writer_id, "rejects": None}
    fence = last.model_copy(update={**changes, "wall_time_us": time.time_ns() // 1_000})
    try:
        put_record(root / commit_name(fence.n), fence)
    except FileExistsError:
        raise LaneBusyError(
            f"{root / commit_name(fence.n)} was made by another process while {writer_id} opened the log. "
            "Stop one of the two"
        ) from None
    begun_as = stored.begun_as or stored.checksum
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
    stored = read_record(path, LogHeader)
    last = None
    if any(getattr(stored, key) != getattr(wanted, key) for key in FOLLOWING):
        chain = CommitChain(root, stored)
        chain.refresh()
        last = chain.last
        if last is not None and (len(chain.sealed) or last.tail_events or last.num_labels):
            last = None
    changeable = _OF_THE_RECORD if last is None else (*_OF_THE_RECORD, *FOLLOWING)
    require_agreement(path, stored, wanted, "a log", changeable)
    return stored, last


def sweep(root: Place, chain: CommitChain) -> list[Place]:
    """Remove unnamed tail, reject, label and snapshot files, and temporary ones; only a writer with the lock may.

    Args:
        root: Folder of the log.
        chain: All of its commits.

    Returns:
        The places removed. Files with foreign names are left alone.

    Raises:
        CorruptError: One of the log's folders is a symbolic link.
    """
    require_own_folders(root, (COMMITS, TAIL, REJECTS, LABELS, SNAPSHOTS))
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
        *unnamed(root / LABELS, {last_step(file.reference.path) for file in chain.labels}, NUMBERED),
        *superseded(root / REJECTS, set(chain.with_rejects), rejects, NUMBERED, ".arrow"),
        *superseded(root / SNAPSHOTS, set(chain.number_of), folder, TAU),
        *temporary(root),
        *temporary(root / COMMITS),
    ]
    removed = list((root / commit_name(chain.next_n - 1)).outdated(left))
    remove(removed)
    return removed
