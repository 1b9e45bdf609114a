"""The writer of the log: one process appends commits, each whole or not at all."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Generic, Self, TypeVar

import pyarrow as pa

from freshet_graph.schemas.events import REJECT_SCHEMA, log_event_schema
from freshet_graph.schemas.store import (
    WITH_ARRIVALS,
    WITH_LABELS,
    CommitRecord,
    FileRef,
    HistoryRecord,
    Key,
    LogHeader,
    Position,
    SealedSnapshot,
)
from freshet_graph.stream.snapshots.border import HISTORY_LABELS
from freshet_graph.stream.snapshots.dictionary import IdDictionary, new_dictionary
from freshet_graph.stream.store.crash import crash_point
from freshet_graph.stream.store.errors import LaneBusyError, MissingError, StoreError
from freshet_graph.stream.store.files.data import read_table
from freshet_graph.stream.store.files.records import Numbered, put_record, read_record
from freshet_graph.stream.store.files.sweep import CleanUp, lock_folder, new_writer_id
from freshet_graph.stream.store.log.commits import (
    CommitChain,
    agreed_header,
    put_history,
    read_history,
    rows_read,
    sweep,
)
from freshet_graph.stream.store.log.ids import ExternalIds
from freshet_graph.stream.store.log.index import LogTotals
from freshet_graph.stream.store.log.labels import encode_labels, stamped
from freshet_graph.stream.store.log.layout import (
    COMMITS,
    commit_name,
    labels_name,
    log_folder,
    rejects_name,
    tail_name,
)
from freshet_graph.stream.store.log.sealed import (
    COMMIT,
    TailFile,
    absorbed_from,
    commits_of,
    count_open,
    encode_tail,
    load_tail_file,
    open_rows,
    sealable,
    stage_snapshot,
    tail_schema,
)
from freshet_graph.stream.store.places.interface import Lock, Staging
from freshet_graph.stream.store.places.place import Place

Item = TypeVar("Item")

Phase = Callable[[str, float], None]
"""Called with the seconds of each phase of a commit: ``order``, ``files``, ``record``, ``sweep``."""


class Timed(Generic[Item]):
    """An iterator that adds up the time its items take."""

    def __init__(self, items: Iterable[Item]) -> None:
        self.seconds = 0.0
        self._items = iter(items)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Item:
        started = time.perf_counter()
        try:
            return next(self._items)
        finally:
            self.seconds += time.perf_counter() - started


@dataclass(frozen=True, slots=True)
class RejectedMessages:
    """The refused messages of one commit, ``freshet_graph.schemas.events.REJECT_SCHEMA``."""

    commit: int
    table: pa.Table


class Outbox:
    """The commits whose refused messages are not published yet.

    Publishing is at least once: 1. read ``unpublished``; 2. publish, keyed by topic/partition/offset, and wait for the broker;
    3. ``mark_published``; 4. the next commit records the position. A crash between 2 and 4 publishes the same messages again.
    Another thread may do 1 to 3 while the writer commits.
    """

    def __init__(self, root: Place, with_rejects: list[int], published: int) -> None:
        """Continue an outbox.

        Args:
            root: Folder of the log.
            with_rejects: Numbers of the commits with refused messages, ascending; a live view.
            published: Messages of commits before this one are published.
        """
        self._root = root
        self._with_rejects = with_rejects
        self.published = published

    def unpublished(self) -> Iterator[RejectedMessages]:
        """Refused messages not known to be published, commit by commit, oldest first.

        Raises:
            CorruptError: A file isn't what its commit says.
        """
        for n in [n for n in self._with_rejects if n >= self.published]:
            record = read_record(self._root / commit_name(n), CommitRecord)
            assert record.rejects is not None
            yield RejectedMessages(n, read_table(self._root, record.rejects, schema=REJECT_SCHEMA))

    def mark_published(self, through: int) -> None:
        """Record that all refused messages up to commit ``through`` are published."""
        self.published = max(self.published, through + 1)


LOOK_EVERY = 64
"""Sealed snapshots between looks at what retention has dropped: in a bucket a look is a request."""
LOOK_EVERY_LABELS = 1024
"""Files of labels between looks at what compaction has gathered: snapshots may be long, and there may be a file per commit."""


class LogWriter:
    """Appends commits to the log of a store; use ``open``.

    The steps of a commit (with the remains of a crash):
        1. sealed snapshots, tail, rejects and labels under temporary names, each fsynced [files swept on open]
        2. renamed, their folders fsynced [files that no record names, swept on open]
        3. the commit record: temporary name, fsync, put if absent, fsync of the folder [all or nothing]
        4. tail files that it no longer names are removed [swept on open]
    If 1 or 2 fails (a full disk), or 3 before the record has its name, nothing has happened and the commit can be repeated.
    If 3 fails later, the outcome is unknown: the writer refuses further commits, and opening the log again finds out. If 4
    fails, the commit stands, and the next one repeats 4.
    """

    def __init__(self, root: Place, header: LogHeader, lock: Lock, writer_id: str) -> None:
        self.header = header
        self.writer_id = writer_id
        self.on_phase: Phase = lambda phase, seconds: None
        self._root = root
        self.lock = lock
        self._chain = CommitChain(root, header)
        self._usable = True
        self._chain.refresh()
        self._chain.require_whole()
        self._clean_up = CleanUp(root)
        self._looked, self._looked_labels = len(self.snapshots), len(self._chain.labels)
        if root.lock_shuts_out:
            sweep(root, self._chain)
        else:  # in a bucket only the first commit shuts out former writers
            self._clean_up.add(partial(sweep, root, self._chain))
        self.history = read_history(root)
        self._ids: list[pa.Array] = ExternalIds(root, header, self._chain).all().chunks
        self._last = last = self._chain.last
        self._tail = self._committed_tail()
        self.positions: dict[Key, Position] = (
            {(p.topic, p.partition): p for p in last.positions} if last else {}
        )
        self.topic_ids: Mapping[str, str] = last.topic_ids if last else {}
        self.outbox = Outbox(root, self._chain.with_rejects, last.published if last else 0)

    @classmethod
    def open(cls, store: str | Place, header: LogHeader, *, writer_id: str | None = None) -> Self:
        """Open a store's log for writing, and create it if there is none.

        Args:
            store: Folder of the store.
            header: The header that the log must have. A new log, or one without a commit, takes it; one without an event
                takes its ids and widths.
            writer_id: Who writes; by default host, process and a random part.

        Returns:
            The only writer of this log, until ``close`` or the end of the process.

        Raises:
            LaneBusyError: Another process writes it; the message names it.
            MismatchError: The log was made for something else; the message names the key.
            CorruptError, FormatVersionError: The log is damaged, or from another release.
            OSError: The disk refuses.
        """
        root = log_folder(store)
        root.make()
        writer_id = writer_id or new_writer_id()
        lock = lock_folder(root, writer_id)
        try:
            (root / COMMITS).make()
            (root / COMMITS).fsync_ancestors()
            crash_point("store.created")
            return cls(root, agreed_header(root, header, writer_id), lock, writer_id)
        except BaseException:
            lock.release()
            raise

    @property
    def last(self) -> CommitRecord | None:
        """The newest commit that this writer knows to be durable; None in an empty log."""
        return self._last

    @property
    def snapshots(self) -> Numbered[SealedSnapshot]:
        """The kept sealed snapshots, in order of τ, by their fixed number."""
        return self._chain.sealed

    @property
    def totals(self) -> LogTotals:
        """Events and bytes of all sealed snapshots."""
        return self._chain.totals

    @property
    def sealed_through(self) -> int | None:
        """Last closed τ: events up to it are late."""
        return None if self._chain.last is None else self._chain.last.sealed_through

    @property
    def num_nodes(self) -> int:
        """Dense ids in use."""
        return self.snapshots[-1].num_nodes if self.snapshots else 0

    def open_tail(self) -> pa.Table:
        """Committed events that are still open, in order of arrival: ``tail_schema``, not copied."""
        return open_rows(self._tail, self.sealed_through, self.header.ids)

    @property
    def may_begin_with_history(self) -> bool:
        """Whether nothing was taken in: no event, no refusal, and no row of a history. Commits may name offsets."""
        last = self._chain.last
        return last is None or (
            last.sealed_through is None
            and not (last.tail_events or last.duplicates or last.num_labels or sum(last.refused.values()))
            and HISTORY_LABELS not in self.positions
            and not rows_read(self.positions)
        )

    def begin_with(self, history: HistoryRecord) -> HistoryRecord:
        """Have an empty log begin with a history; returns the written record.

        Raises:
            StoreError: The log has taken something in.
            OSError: The disk refuses.
        """
        if not self.may_begin_with_history:
            raise StoreError(
                f"{self._root} has taken in messages already, but a history must come first. Choose a new store"
            )
        self.history = put_history(self._root, history)
        for end in history.ends:
            known = self.positions.get((end.topic, end.partition))
            if known is not None and end.start is not None:  # named by a commit that took nothing in
                self.positions[known.topic, known.partition] = known.model_copy(update={"next": end.start})
        return self.history

    def history_read(self, *, events: int, refused: int) -> HistoryRecord:
        """Record how much of the history is in the log; returns the written record."""
        assert self.history is not None
        if (self.history.events, self.history.refused) != (events, refused):
            counted = self.history.model_copy(update={"events": events, "refused": refused})
            self.history = put_history(self._root, counted)
        return self.history

    def events_since(self, t_us: int) -> Iterator[pa.Table]:
        """All committed events from ``t_us`` on, and perhaps earlier ones: ``t`` and ``event_id``, table by table."""
        for snapshot in self.snapshots:  # dropped ones are older than any sensible window
            if snapshot.max_t_us >= t_us:
                try:
                    table = read_table(self._root, snapshot.events, schema=log_event_schema(self.header.ids))
                except MissingError:
                    self._chain.refresh()
                    if snapshot.tau in self._chain.number_of:
                        raise
                    continue  # dropped just now
                yield table.select(["t", "event_id"])
        yield self.open_tail().select(["t", "event_id"])

    def unpublished_rejects(self) -> Iterator[RejectedMessages]:
        """Refused messages that the dead-letter topic may lack, commit by commit."""
        return self.outbox.unpublished()

    def mark_published(self, through: int) -> None:
        """Record that the rejects up to commit ``through`` are published; the next commit stores it."""
        self.outbox.mark_published(through)

    def commit(
        self,
        *,
        positions: Mapping[Key, Position] | None = None,
        begins: Mapping[Key, int] | None = None,
        tail: pa.Table | None = None,
        rejects: pa.Table | None = None,
        labels: pa.Table | None = None,
        seal: Iterable[tuple[int, pa.Table]] = (),
        refused: Mapping[str, int] | None = None,
        late: int = 0,
        in_history: int = 0,
        duplicates: int = 0,
        sealed_through: int | None = None,
    ) -> CommitRecord:
        """Make one commit durable.

        Args:
            positions: The topic partitions that moved; the others stay.
            begins: First offset of this commit in each topic partition; must be the last commit's end, if it has one.
            tail: Newly accepted events that stay open after this commit, ``tail_schema`` without ``commit``, in order of
                arrival.
            rejects: Refused messages, ``REJECT_SCHEMA``.
            labels: Labels of label topics, ``stream.store.log.labels.arrived_schema``, each topic partition's in order.
            seal: Snapshots to seal, (τ, events in order) with at least the columns of ``event_schema``, ascending
                in τ. They hold every open event of their τ, those of ``open_tail`` included, with their ``commit``. Each is
                taken when its predecessor is written, so that not all need to be in memory.
            refused: Rejects by reason since the last commit, without late ones.
            late: Late events since the last commit.
            in_history: Events skipped since the last commit because the log's history has them.
            duplicates: Events dropped by ``event_id`` since the last commit.
            sealed_through: Last closed τ from now on; by default the last one sealed.

        Returns:
            The commit as in the log.

        Raises:
            ValueError: The snapshots aren't ascending, are sealed already, or empty.
            OSError: The disk refuses.
            StoreError: The writer is closed, an earlier commit's outcome is unknown, or a topic partition doesn't begin
                where the last commit ends.
        """
        if not self._usable:
            raise StoreError(f"the writer of {self._root} can't commit any more. Open the log again")
        self.lock.require()
        self._require_following(begins or {})
        crash_point("commit.begun")
        ids_before = self._dictionary.size
        n = self._chain.next_n
        ordered = Timed(sealable(seal, self.sealed_through))
        started = time.perf_counter()
        try:
            with self._root.stage() as staging:
                sealed = [
                    stage_snapshot(staging, self.header, self._dictionary, tau, table, n)
                    for tau, table in ordered
                ]
                through = [self.sealed_through, *(snapshot.tau for snapshot in sealed), sealed_through]
                closed = max((tau for tau in through if tau is not None), default=None)
                kept_files, added = self._stage_tail(staging, n, tail, closed)
                rejected = None
                if rejects is not None and rejects.num_rows:
                    rejected = staging.add_table(
                        rejects_name(n), rejects.cast(REJECT_SCHEMA).combine_chunks()
                    )
                labelled = None
                if labels is not None and labels.num_rows:
                    visible = stamped(labels, self.header, n, self._visible_from(positions or {}, closed))
                    labelled = staging.add_table(labels_name(n), encode_labels(visible))
                staging.finish()
                files = list(kept_files)
                if added is not None:
                    files.append(load_tail_file(self._root, added, self.header.ids, verify=False))
        except BaseException:
            self._dictionary.truncate(ids_before)
            raise
        self.on_phase("order", ordered.seconds)
        started = self._lap("files", started + ordered.seconds)
        moved = {**self.positions, **(positions or {})}
        last = self._chain.last
        num_labels = (last.num_labels if last else 0) + (0 if labels is None else labels.num_rows)
        record = CommitRecord(
            format_version=WITH_LABELS if num_labels else WITH_ARRIVALS,
            n=n,
            previous=self._chain.link(),
            writer=self.writer_id,
            wall_time_us=time.time_ns() // 1_000,
            positions=[moved[key] for key in sorted(moved)],
            topic_ids=dict(self.topic_ids),
            tail=[file.reference for file in files],
            tail_events=count_open(files, closed),
            rejects=rejected,
            labels=labelled,
            num_labels=num_labels,
            refused=_added(last.refused if last else {}, refused or {}),
            late=(last.late if last else 0) + late,
            in_history=(last.in_history if last else 0) + in_history,
            duplicates=(last.duplicates if last else 0) + duplicates,
            published=self.outbox.published,
            sealed=sealed,
            sealed_through=closed,
        )
        try:
            record = self._put(record)
        except OSError:
            if self._usable:
                self._dictionary.truncate(ids_before)
            raise
        self._clean_up.add_removal(
            self._root / file.reference.path for file in self._tail if file not in kept_files
        )
        self.positions, self._tail, self._last, self._usable = moved, files, record, True
        # The commit stands: from here on nothing may fail it.
        started = self._lap("record", started)
        if (
            len(self.snapshots) - self._looked >= LOOK_EVERY
            or len(self._chain.labels) - self._looked_labels >= LOOK_EVERY_LABELS
        ):
            self._looked, self._looked_labels = len(self.snapshots), len(self._chain.labels)
            self._clean_up.add(self._chain.forget_dropped)
        self._clean_up.run()
        self._lap("sweep", started)
        crash_point("commit.done")
        return record

    def close(self) -> None:
        """Give the lock back; doing so twice is harmless."""
        self._usable = False
        self.lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @cached_property
    def _dictionary(self) -> IdDictionary:
        """Created by the first commit, because loading its kernels may take a second, which readers of the state avoid."""
        dictionary = new_dictionary(self.header.ids)
        for ids in self._ids:
            dictionary.extend(ids)
        self._ids = []
        return dictionary

    def _committed_tail(self) -> list[TailFile]:
        last = self._chain.last
        if last is None:
            return []
        try:
            return [load_tail_file(self._root, file, self.header.ids) for file in last.tail]
        except MissingError:
            if not self._chain.refresh():
                raise
            raise LaneBusyError(
                f"commit {self._chain.last.n if self._chain.last else 0} of {self._root} was made while {self.writer_id} "
                f"held the log's lock: {self.lock.why_both}"
            ) from None

    def _require_following(self, begins: Mapping[Key, int]) -> None:
        """Check that no offset is committed twice or left out, whatever mistake led here."""
        if self._chain.last is not self._last:
            self._usable = False
            raise LaneBusyError(
                f"commits of {self._root} were made while {self.writer_id} held the log's lock: {self.lock.why_both}"
            )
        for (topic, partition), offset in begins.items():
            known = self.positions.get((topic, partition))
            if known is not None and known.next != offset:
                self._usable = False
                raise StoreError(
                    f"the last commit of {self._root} ends topic {topic} partition {partition} at offset {known.next}, "
                    f"but the next batch begins at {offset}. Start again. Reading resumes where the log ends"
                )

    def _visible_from(self, positions: Mapping[Key, Position], closed: int | None) -> int | None:
        """The earliest time at which labels of the next commit are visible, microseconds; None: any time."""
        times = [position.max_t_us for position in {**self.positions, **positions}.values()]
        times.append(None if closed is None else (closed + 1) * self.header.interval_us)
        return max((t_us for t_us in times if t_us is not None), default=None)

    def _stage_tail(
        self, staging: Staging, n: int, tail: pa.Table | None, closed: int | None
    ) -> tuple[list[TailFile], FileRef | None]:
        alive = [file for file in self._tail if closed is None or file.max_tau > closed]
        if tail is None or tail.num_rows == 0:
            return alive, None
        first = absorbed_from([file.table.nbytes for file in alive], tail.nbytes)
        older = open_rows(alive[first:], closed, self.header.ids)
        schema = tail_schema(self.header.ids)
        commit = pa.array(commits_of(tail, n))
        tail = tail.select(schema.names[:-1]).cast(schema.remove(len(schema) - 1))
        joined = pa.concat_tables([older, tail.append_column(schema.field(COMMIT), commit)])
        return alive[:first], staging.add_table(tail_name(n), encode_tail(joined))

    def _put(self, record: CommitRecord) -> CommitRecord:
        """Put the record. The writer stays usable if that certainly failed, and is again once the caller updated its state."""
        self._usable = False
        path = self._root / commit_name(record.n)
        try:
            record = put_record(path, record)
        except FileExistsError:
            other = read_record(path, CommitRecord)
            raise LaneBusyError(
                f"{path} was made by {other.writer} while {self.writer_id} held the log's lock: {self.lock.why_both}"
            ) from None
        except OSError:
            # Without its name the record doesn't exist, and nothing has happened; an unanswered put may still arrive.
            self._usable = path.errors_are_certain and not path.exists()
            raise
        self._chain.add(record)
        return record

    def _lap(self, phase: str, since: float) -> float:
        now = time.perf_counter()
        self.on_phase(phase, now - since)
        return now


def _added(totals: Mapping[str, int], more: Mapping[str, int]) -> dict[str, int]:
    return {reason: totals.get(reason, 0) + more.get(reason, 0) for reason in sorted({*totals, *more})}
