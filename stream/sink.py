"""The sink: micro-batches in, commits out. It keeps event time, and is one writer without Beam and Kafka."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Set
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import structlog

from freshet_graph.schemas.config import StreamConfig
from freshet_graph.schemas.events import REJECT_SCHEMA, US_PER_S, IdKind, Op, Reason, event_schema, show_time
from freshet_graph.schemas.store import CommitRecord, Key, LogHeader, Position
from freshet_graph.stream.decode.decoder import RAW_LIMIT_BYTES
from freshet_graph.stream.decode.encode import encode_json
from freshet_graph.stream.decode.formats.interface import FORMATS
from freshet_graph.stream.microbatch import MicroBatch
from freshet_graph.stream.observer import SinkObserver
from freshet_graph.stream.snapshots.border import HISTORY, HISTORY_LABELS, Border
from freshet_graph.stream.snapshots.event_ids import EventIds
from freshet_graph.stream.snapshots.event_time import EventClock, HoldingWatch, closed_by, place
from freshet_graph.stream.snapshots.sealing import Run, runs_of, split_snapshots
from freshet_graph.stream.store.errors import StoreError
from freshet_graph.stream.store.log.labels import arrived, arrived_schema
from freshet_graph.stream.store.log.refusals import example_of
from freshet_graph.stream.store.log.sealed import COMMIT, tail_schema
from freshet_graph.stream.store.log.writer import LogWriter


@dataclass(frozen=True, slots=True)
class OpenEvents:
    """Committed events of open snapshots, with figures that are needed often."""

    rows: pa.Table
    bytes: int
    min_tau: int | None
    max_tau: int | None

    @classmethod
    def of(cls, rows: pa.Table) -> "OpenEvents":
        """Summarise the log's open tail."""
        tau = rows["tau"].to_numpy()
        low, high = (int(tau.min()), int(tau.max())) if len(tau) else (None, None)
        return cls(rows, rows.nbytes, low, high)


class OpenLimitError(StoreError):
    """More events are open than the configuration allows; everything read is committed."""


def require_room(
    open_bytes: int, limit_bytes: int, watermark_us: int | None, interval_us: int, *, of_files: bool = False
) -> None:
    """Refuse more events if too many are open, because sealing takes memory in proportion.

    Args:
        open_bytes: Accepted events of open snapshots, committed or not.
        limit_bytes: ``snapshots.max_open_bytes``.
        watermark_us: Event time that is complete; None: some topic partition is still unknown.
        interval_us: Length of a snapshot.
        of_files: Whether a history is being read, and not Kafka.

    Raises:
        OpenLimitError: It exceeds the limit; the sentence names the cause and the keys to change.
    """
    if open_bytes <= limit_bytes:
        return
    cure = (
        "give rows in order of their times, for as much is open as a row lies before an earlier one"
        if of_files
        else "mend the producer whose topic partition holds event time (freshet_stream_watermark_timestamp_seconds)"
    )
    stands = "has not begun" if watermark_us is None else f"stands at {show_time(watermark_us)}"
    raise OpenLimitError(
        f"open snapshots hold {open_bytes:,} bytes of events, more than snapshots.max_open_bytes {limit_bytes:,}. Event "
        f"time {stands} and a snapshot is {interval_us / US_PER_S:g} s. All that was read is committed. Shorten "
        f"snapshots.interval_s (in a new store), {cure}, or raise the key, and start again"
    )


@dataclass(slots=True)
class Pending:
    """Events, rejects, positions and counts that the next commit makes durable."""

    batches: int = 0
    bytes: int = 0
    min_tau: int | None = None
    max_tau: int | None = None
    events: list[Run] = field(default_factory=list)
    rejects: list[pa.Table] = field(default_factory=list)
    labels: list[pa.Table] = field(default_factory=list)
    labelled: Counter[str] = field(default_factory=Counter)
    positions: dict[Key, Position] = field(default_factory=dict)
    begins: dict[Key, int] = field(default_factory=dict)
    """First offset taken in per topic partition."""
    accepted: Counter[tuple[str, Op]] = field(default_factory=Counter)
    refused: Counter[tuple[str, str]] = field(default_factory=Counter)
    examples: dict[tuple[str, str], str] = field(default_factory=dict)
    late: Counter[str] = field(default_factory=Counter)
    in_history: Counter[str] = field(default_factory=Counter)
    duplicates: int = 0
    tombstones: Counter[str] = field(default_factory=Counter)
    converted: Counter[str] = field(default_factory=Counter)

    def add_events(self, run: Run) -> None:
        """Add accepted events: columns of ``event_schema`` and ``offset``."""
        self.min_tau = run.min_tau if self.min_tau is None else min(run.min_tau, self.min_tau)
        self.max_tau = run.max_tau if self.max_tau is None else max(run.max_tau, self.max_tau)
        self.events.append(run)
        self.bytes += run.events.nbytes + run.tau.nbytes
        topic, _ = run.source
        counts = np.bincount(run.events["op"].to_numpy() + np.int8(1), minlength=len(Op))
        for op in Op:
            if counts[op + 1]:
                self.accepted[topic, op] += int(counts[op + 1])

    def add_rejects(self, topic: str, rows: pa.Table) -> None:
        """Add refused messages, ``REJECT_SCHEMA``; late ones are counted separately."""
        if rows.num_rows == 0:
            return
        self.rejects.append(rows)
        self.bytes += rows.nbytes
        for entry in rows["reason"].value_counts().to_pylist():
            if entry["values"] != Reason.LATE:
                self.refused[topic, entry["values"]] += entry["counts"]
                self.examples[topic, entry["values"]] = example_of(rows, entry["values"]) or ""

    def add_labels(self, key: Key, labels: pa.Table) -> None:
        """Add labels, ``taken_schema``, of a topic partition."""
        if labels.num_rows == 0:
            return
        labels = arrived(labels, key)
        self.labels.append(labels)
        self.labelled[key[0]] += labels.num_rows
        self.bytes += labels.nbytes

    def all_labels(self, ids: IdKind) -> pa.Table:
        """All labels, ``arrived_schema``, in order of arrival."""
        return pa.concat_tables([arrived_schema(ids).empty_table(), *self.labels])

    def all_rejects(self) -> pa.Table:
        """All refused messages, in order of arrival."""
        return pa.concat_tables([REJECT_SCHEMA.empty_table(), *self.rejects])

    def refused_by_reason(self) -> dict[str, int]:
        """Refused messages of all topics together."""
        total: Counter[str] = Counter()
        for (_, reason), count in self.refused.items():
            total[reason] += count
        return dict(total)


def rows_from(batch: pa.RecordBatch, start: int) -> pa.Table:
    """The rows of messages from offset ``start`` on."""
    table = pa.Table.from_batches([batch])
    offsets = table["offset"]
    if not len(offsets) or offsets[0].as_py() >= start:  # they are in order
        return table
    return table.filter(pa.array(offsets.to_numpy() >= start))


def tail_rows(runs: Iterable[Run], through: int | None, ids: IdKind) -> pa.Table:
    """Events of snapshots after τ = ``through``, with snapshot and origin: ``tail_schema``, ``commit`` null."""
    schema = tail_schema(ids)
    tables = [schema.empty_table()]
    for run in (run for run in (run.after(through) for run in runs) if run is not None):
        topic, partition = run.source
        rows = len(run)
        columns = [run.events[name] for name in event_schema(ids).names]
        columns.append(pa.DictionaryArray.from_arrays(np.zeros(rows, np.int16), [topic]))
        columns += [pa.array(np.full(rows, partition, np.int32)), run.events["offset"], pa.array(run.tau)]
        columns.append(pa.nulls(rows, pa.int32()))
        tables.append(pa.table(columns, schema=schema))
    return pa.concat_tables(tables)


def late_rejects(events: pa.Table, topic: str, partition: int, sealed_through: int) -> pa.Table:
    """Rejects for events whose snapshot is sealed, under the policy ``dead-letter``.

    Args:
        events: Canonical events with the columns ``offset`` and ``tau`` (the event's own τ); from Arrow messages also ``row``.
        topic: Their topic.
        partition: Their partition.
        sealed_through: Last closed τ.

    Returns:
        ``REJECT_SCHEMA``, one row per event; ``raw`` is the event as JSON with ``t`` in microseconds, because the message may
        hold others that were accepted.
    """
    rows = events.num_rows
    sentences = [
        f"its snapshot {tau} is sealed (all up to {sealed_through} are); raw is the event, t in microseconds"
        for tau in events["tau"].to_pylist()
    ]
    raw = [message[:RAW_LIMIT_BYTES] for message in encode_json(events, time_unit="us")]
    return pa.table(
        {
            "topic": pa.repeat(topic, rows),
            "partition": pa.repeat(pa.scalar(partition, pa.int32()), rows),
            "offset": events["offset"],
            "row": events["row"] if "row" in events.column_names else pa.nulls(rows, pa.int32()),
            "reason": pa.repeat(Reason.LATE.value, rows),
            "sentence": pa.array(sentences, pa.string()),
            "raw": pa.array(raw, pa.binary()),
        },
        schema=REJECT_SCHEMA,
    )


def known_ids(writer: LogWriter, config: StreamConfig) -> EventIds | None:
    """The ids within ``dedup_window_s`` of the newest event; None if the configuration has no such window.

    Raises:
        CorruptError: A file of the log doesn't match its commit.
    """
    if config.dedup_window_s is None:
        return None
    window_us = round(config.dedup_window_s * US_PER_S)
    times = [writer.totals.max_t_us] if writer.totals.max_t_us is not None else []
    open_times = writer.open_tail()["t"].to_numpy()
    times += [int(open_times.max())] if len(open_times) else []
    newest_us = max(times, default=None)
    event_ids = EventIds(window_us, config.dedup_max_ids, newest_us)
    if newest_us is not None:
        for table in writer.events_since(newest_us - window_us):
            event_ids.duplicates(table["event_id"], table["t"].to_numpy(), np.zeros(len(table), bool))
        event_ids.missed = 0
    return event_ids


SEAL_BYTES = 96 << 20
SEAL_EVERY_S = 1.0
"""While more waits to be read, this much or long is gathered before a snapshot is sealed, because open events are written with
every commit. These are not configuration keys: they change neither snapshots nor durability, and a stream that keeps up never
reaches them; ``snapshots.max_pending_bytes`` limits memory."""

SEAL_SNAPSHOTS = 128
"""One commit seals no more snapshots, so that it takes seconds at most, however many the watermark closes at once: a job that is
told to end, or killed, loses no more. The next commit follows at once."""

_log = structlog.get_logger()


def log_header(config: StreamConfig) -> LogHeader:
    """The header of the log that a configuration asks for."""
    return LogHeader(
        graph=config.graph,
        interval_us=round(config.snapshots.interval_s * US_PER_S),
        ids=config.ids,
        node_features=config.features.node,
        edge_features=config.features.edge,
        segments=config.features.segments,
    )


@dataclass(frozen=True, slots=True)
class _Done:
    """A commit, the open events after it, and its end by the sink's clock."""

    record: CommitRecord
    open: OpenEvents
    ended_s: float


def _fail(error: OSError) -> None:
    raise error


class SnapshotSink:
    """Takes micro-batches, tracks event time, and commits to the log.

    Regardless of the order and size of the batches, and of where the process dies, everything before a topic partition's ``next``
    is in the log or its rejects exactly once, and everything after has no effect.

    A commit is due ``commit_every_s`` after the last one if there is something to commit, and as soon as the watermark closes a
    snapshot with events, but not before as much time has passed as the last commit took, unless more than ``SEAL_SNAPSHOTS`` are
    closed and commits follow each other.

    Commits are made on a thread of their own. What is offered meanwhile waits for the next one, up to ``max_pending_bytes``; then
    taking in waits for the commit. A failed commit ends the sink: every later call raises its error again, and a new sink resumes
    where the log ends.
    """

    def __init__(
        self,
        writer: LogWriter,
        config: StreamConfig,
        *,
        clock: Callable[[], float] = time.monotonic,
        observer: SinkObserver | None = None,
        confirm: Callable[[Set[str]], None] = lambda topics: None,
        refused: Callable[[OSError], None] = _fail,
    ) -> None:
        """Continue from the writer's last commit.

        Args:
            writer: The open log.
            config: Event-time rules.
            clock: Seconds, for what is due and what is idle.
            observer: Receives counts; a commit's phases come on the commit's thread.
            confirm: Called by each commit of messages before it writes, with their topics, on the commit's thread; its
                exceptions fail the commit.
            refused: Called, on the commit's thread, when the disk or bucket refuses a commit, which had no effect. Once it
                returns, the commit is tried again; its exceptions fail the commit.
        """
        self._writer, self._confirm, self._refused = writer, confirm, refused
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="commit")
        self._commit: Future[_Done] | None = None
        self._closing = False
        self._rules = config.snapshots
        self._ids = config.ids
        self._clock = clock
        self._observer = observer or SinkObserver()
        writer.on_phase = self._observer.commit_phase
        self._event_clock = EventClock(
            out_of_orderness_us=round(self._rules.lateness_s * US_PER_S),
            idle_timeout_s=self._rules.idle_timeout_s,
        )
        self._kafka = config.kafka
        for key, position in writer.positions.items():
            if not self._has_labels(key):
                self._event_clock.restore(key, position.max_t_us)
        self._holding = HoldingWatch(writer.header.interval_us, self._rules.idle_timeout_s)
        self._border = Border(writer.history)
        self._event_ids = known_ids(writer, config)
        self._published = writer.outbox.published
        self._begun_s = self._next_seal_s = self._last_commit_s = clock()
        self.pending, self.committing = Pending(), Pending()
        self._before = writer.last
        self._open = OpenEvents.of(writer.open_tail())
        self._unsealed = False  # whether the last commit has left closed snapshots to the next one
        self._closed_through = writer.sealed_through  # by the running commit, if there is one

    def close(self) -> None:
        """Wait for a running commit; pending batches are dropped, and read again later."""
        self._closing = True
        self._thread.shutdown(wait=True)

    def assign(self, partitions: Iterable[Key]) -> None:
        """Set the topic partitions being read.

        Each holds the watermark until it is heard of, even if it was never read; partitions of the log that are not among them
        no longer do. By default they are those of the log and those offered. Those of label topics never hold it.
        """
        self._event_clock.assign(key for key in partitions if not self._has_labels(key))

    def begin(self, key: Key, offset: int) -> None:
        """Set where a topic partition unknown to the log begins; the next commit records it."""
        if self._position(key) is None:
            self.pending.positions[key] = Position(
                topic=key[0], partition=key[1], next=offset, max_t_us=self._event_clock.max_t_us(key)
            )

    def next_offset(self, key: Key) -> int | None:
        """First offset of a topic partition not taken in; None: unknown to the log and to its history."""
        position = self._position(key)
        return self._border.start(key) if position is None else position.next

    def offer(self, batch: MicroBatch) -> None:
        """Take one poll of a topic partition; messages taken before are dropped.

        Args:
            batch: Batches of one topic partition come in order of offset. An empty one says that there is nothing to read;
                sources send it for idle polls.

        Raises:
            OpenLimitError: ``snapshots.max_open_bytes`` are open already; they are committed.
        """
        key = (batch.topic, batch.partition)
        known = self._position(key)
        start = batch.first_offset if known is None else known.next
        if batch.end_offset > start and self.open_bytes > self._rules.max_open_bytes:
            self._make_room(key)
        events, rejects = rows_from(batch.events, start), rows_from(batch.rejects, start)
        latest = int(events["t"].to_numpy().max()) if events.num_rows else None
        if batch.labels is None:
            self._event_clock.hear(
                key,
                max_t_us=latest,
                messages=batch.end_offset > max(start, batch.first_offset),
                quiet=batch.quiet,
                now_s=self._clock(),
            )
        pending = self.pending
        if known is None or batch.end_offset > known.next:
            pending.batches += 1
            pending.begins.setdefault(key, start)
            pending.positions[key] = Position(
                topic=batch.topic,
                partition=batch.partition,
                next=max(batch.end_offset, start),
                max_t_us=self._event_clock.max_t_us(key),
            )
            pending.tombstones[batch.topic] += batch.tombstones
            pending.converted[batch.topic] += batch.converted
            pending.add_rejects(batch.topic, rejects)
            if batch.labels is None:
                self._accept(batch.topic, batch.partition, self._without_history(key, events))
            else:
                pending.add_labels(key, self._without_history(key, rows_from(batch.labels, start)))
        watermark_us = self._event_clock.partition_watermark_us(key)
        if watermark_us is not None:
            self._observer.watermark(batch.topic, batch.partition, watermark_us)
        now = self._holding.look(self._event_clock, self._min_tau(), self._clock())
        self._observer.open_event_time(now)
        self._observe_pending()

    def advance(self, *, wait: bool = True) -> CommitRecord | None:
        """Commit if a commit is due; call it after offers and when there was nothing to offer.

        Args:
            wait: Wait for the commit. Without it, the commit runs while more is offered, and a later call returns it.

        Returns:
            The commit made, or None.

        Raises:
            OSError: The disk refuses.
            StoreError: As for ``LogWriter.commit``.
        """
        if self._commit is not None:
            return self._made(wait=wait or self.pending.bytes >= self._rules.max_pending_bytes)
        closed = self._closed()
        now = self._clock()
        min_tau = self._min_tau()
        seals = closed is not None and min_tau is not None and min_tau <= closed
        seals = seals and (self._unsealed or now >= self._next_seal_s)
        if not wait and not self._unsealed and self.pending.bytes < SEAL_BYTES:
            seals = seals and now - self._last_commit_s >= SEAL_EVERY_S
        overdue = now - self._last_commit_s >= self._rules.commit_every_s
        if seals or (self._anything() and (overdue or self.pending.bytes >= self._rules.max_pending_bytes)):
            self._begin(closed)
        return self._made(wait=wait)

    def seal_all(self) -> CommitRecord | None:
        """Commit everything and seal snapshots with events, ``SEAL_SNAPSHOTS`` at most; None if there is nothing left to do."""
        before = self._made(wait=True)
        closed = self._closed()
        latest = max(
            (tau for tau in (self.pending.max_tau, self._open.max_tau) if tau is not None), default=None
        )
        if latest is None:
            return self.flush() or before
        self._begin(latest if closed is None else max(latest, closed))
        return self._made(wait=True)

    def seal_before(self, t_us: int) -> CommitRecord | None:
        """Commit everything, and seal snapshots that end by an event time, ``SEAL_SNAPSHOTS`` at most.

        Returns:
            The commit; None if there is nothing left to do.
        """
        before = self._made(wait=True)
        through, min_tau = closed_by(t_us, self._writer.header.interval_us), self._min_tau()
        if not self._anything() and (min_tau is None or min_tau > through):
            return before
        closed = self._closed()
        self._begin(through if closed is None else max(through, closed))
        return self._made(wait=True)

    def flush(self) -> CommitRecord | None:
        """Commit pending batches, sealing only snapshots that the watermark has closed; None if there is nothing to do."""
        before = self._made(wait=True)
        if not self._anything():
            return before
        self._begin(self._closed())
        return self._made(wait=True)

    def _has_labels(self, key: Key) -> bool:
        return key == HISTORY_LABELS or self._kafka.has_labels(key[0])

    def _without_history(self, key: Key, events: pa.Table) -> pa.Table:
        """The events, or labels, that the log's history lacks; the others are counted."""
        repeated = self._border.in_history(key, events["offset"].to_numpy(), events["t"].to_numpy())
        if repeated is None:
            return events
        self.pending.in_history[key[0]] += int(np.count_nonzero(repeated))
        return events.filter(pa.array(~repeated))

    def _atomic(self, name: str) -> bool:
        """Whether the events of a message of a topic stand or fall together."""
        topic = self._kafka.topic_of(name)
        return topic is not None and FORMATS.find(topic.format).atomic

    def _accept(self, topic: str, partition: int, events: pa.Table) -> None:
        sealed_through = self._closed_through
        interval_us = self._writer.header.interval_us
        tau, late = place(events["t"].to_numpy(), interval_us, sealed_through)
        if self._event_ids is not None and events.num_rows:
            late_refused = late if self._rules.late == "dead-letter" else np.zeros(len(late), bool)
            # Events that stand or fall together have one id and one time: the first of a message decides.
            offsets = events["offset"].to_numpy()
            decides = (
                np.r_[True, offsets[1:] != offsets[:-1]] if self._atomic(topic) else np.ones(len(late), bool)
            )
            repeated = self._event_ids.duplicates(
                events["event_id"].filter(pa.array(decides)),
                events["t"].to_numpy()[decides],
                late_refused[decides],
            )[np.cumsum(decides) - 1]
            if repeated.any():
                self.pending.duplicates += int(np.count_nonzero(repeated))
                events = events.filter(pa.array(~repeated))
                tau, late = tau[~repeated], late[~repeated]
        num_late = int(np.count_nonzero(late))
        if num_late:
            self.pending.late[topic] += num_late
        if num_late and self._rules.late == "dead-letter":
            assert sealed_through is not None
            refused = events.filter(pa.array(late))
            own_tau = np.floor_divide(refused["t"].to_numpy(), interval_us)
            refused = refused.append_column("tau", pa.array(own_tau))
            self.pending.add_rejects(topic, late_rejects(refused, topic, partition, sealed_through))
            events, tau = events.filter(pa.array(~late)), tau[~late]
        if events.num_rows:
            self.pending.add_events(Run.of((topic, partition), tau, events))

    def _begin(self, closed: int | None) -> None:
        """Start a commit of everything pending, sealing up to τ = ``closed``, or less if those are many snapshots."""
        closed, wanted = self._bounded(closed), closed
        self._unsealed = closed != wanted
        pending, before = self.pending, self._open
        self.committing, self.pending = pending, Pending()
        self._closed_through = closed
        self._before = self._writer.last
        self._begun_s = self._clock()
        self._commit = self._thread.submit(self._write, pending, before, closed)

    def _bounded(self, closed: int | None) -> int | None:
        """The last τ up to ``closed`` that the next commit can seal."""
        first = self._min_tau()
        if closed is None or first is None or closed - first < SEAL_SNAPSHOTS:
            return closed
        taus = [self._open.rows["tau"].to_numpy(), *(run.tau for run in self.pending.events)]
        closing = np.unique(np.concatenate([tau[tau <= closed] for tau in taus]))
        return closed if len(closing) <= SEAL_SNAPSHOTS else int(closing[SEAL_SNAPSHOTS - 1])

    def _write(self, pending: Pending, before: OpenEvents, closed: int | None) -> _Done:
        """The commit, on its thread, tried again as long as the store refuses it and ``refused`` returns."""
        if pending.batches:
            self._confirm({topic for topic, _ in pending.begins})
        while True:
            last = self._writer.last
            try:
                record = self._write_once(pending, before, closed)
            except OSError as error:
                if self._writer.last is not last or self._closing:
                    raise
                self._refused(error)
            else:
                pending.events.clear()  # frees the memory here, not where events are taken in
                return _Done(record, OpenEvents.of(self._writer.open_tail()), self._clock())

    def _write_once(self, pending: Pending, before: OpenEvents, closed: int | None) -> CommitRecord:
        seal: Iterable[tuple[int, pa.Table]] = ()
        names = [*event_schema(self._ids).names, COMMIT]
        min_tau = min((tau for tau in (pending.min_tau, before.min_tau) if tau is not None), default=None)
        if closed is not None and min_tau is not None and min_tau <= closed:
            runs = [
                *runs_of(before.rows, closed),
                *(run.with_nulls(COMMIT, pa.int32()) for run in pending.events),
            ]
            seal = split_snapshots((run.select(names) for run in runs), closed)
        return self._writer.commit(
            positions=pending.positions,
            begins=pending.begins,
            tail=tail_rows(pending.events, closed, self._ids),
            rejects=pending.all_rejects(),
            labels=pending.all_labels(self._ids),
            seal=seal,
            refused=pending.refused_by_reason(),
            late=pending.late.total(),
            duplicates=pending.duplicates,
            in_history=pending.in_history.total(),
            sealed_through=closed,
        )

    def _made(self, *, wait: bool) -> CommitRecord | None:
        """The started commit, once it is made; None while there is none. A failed one stays, and raises at every call."""
        if self._commit is None or not (wait or self._commit.done()):
            return None
        try:
            done = self._commit.result()
        except Exception as error:
            record = self._writer.last
            if record is None or record is self._before:
                raise
            # The log has it, and what was read is not read again.
            _log.warning("a commit is made, but a step after it failed", commit=record.n, error=repr(error))
            done = _Done(record, OpenEvents.of(self._writer.open_tail()), self._clock())
        self._commit = None
        made, self.committing = self.committing, Pending()
        self._open = done.open
        self._last_commit_s = done.ended_s
        self._next_seal_s = 2 * done.ended_s - self._begun_s
        self._published = done.record.published
        self._report(made, done.record)
        return done.record

    def _report(self, pending: Pending, record: CommitRecord) -> None:
        for (topic, op), count in pending.accepted.items():
            self._observer.accepted(topic, op, count)
        for topic, count in pending.labelled.items():
            self._observer.labels(topic, count)
        for (topic, reason), count in pending.refused.items():
            self._observer.refused(topic, reason, count, pending.examples[topic, reason])
        for topic, count in pending.late.items():
            self._observer.late(topic, self._rules.late, count)
        for topic, count in pending.in_history.items():
            self._observer.in_history(topic, count)
        for topic, count in pending.converted.items():
            if count:
                self._observer.converted(topic, count)
        for topic, count in pending.tombstones.items():
            if count:
                self._observer.tombstones(topic, count)
        if self._event_ids is not None:
            self._observer.remembered(self._event_ids.size, self._event_ids.missed)
            self._event_ids.missed = 0
        self._observe_pending()
        self._observer.committed(record)

    @property
    def open_bytes(self) -> int:
        """Accepted events of open snapshots, committed or not."""
        return self.pending.bytes + self.committing.bytes + self._open.bytes

    def _make_room(self, key: Key) -> None:
        """Seal as much as possible; raise if too much is still open."""
        self.flush()
        while self._unsealed:
            self._begin(self._closed())
            self._made(wait=True)
        interval_us = self._writer.header.interval_us
        require_room(
            self.open_bytes,
            self._rules.max_open_bytes,
            self._event_clock.watermark_us(),
            interval_us,
            of_files=key == HISTORY,
        )

    def _observe_pending(self) -> None:
        self._observer.pending(self.pending.batches + self.committing.batches, self.open_bytes)

    def _position(self, key: Key) -> Position | None:
        pending, committing = self.pending.positions.get(key), self.committing.positions.get(key)
        return pending or committing or self._writer.positions.get(key)

    def _anything(self) -> bool:
        return bool(self.pending.positions) or self._writer.outbox.published != self._published

    def _min_tau(self) -> int | None:
        return min(
            (tau for tau in (self.pending.min_tau, self._open.min_tau) if tau is not None), default=None
        )

    def _closed(self) -> int | None:
        """Last τ to close now: up to the watermark, and everything open after a long idle time."""
        before = [] if self._closed_through is None else [self._closed_through]
        watermark = self._event_clock.watermark_us()
        if watermark is not None:
            before.append(closed_by(watermark, self._writer.header.interval_us))
        idle = self._event_clock.all_idle_s()
        if self._rules.idle_seal_s is not None and idle is not None and idle >= self._rules.idle_seal_s:
            before += [tau for tau in (self.pending.max_tau, self._open.max_tau) if tau is not None]
        return max(before, default=None)
