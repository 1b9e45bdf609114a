"""A graph's log in the process that writes it: takes micro-batches in, and follows up on each commit."""

import errno
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import pyarrow.compute as pc
import structlog

from freshet_graph.schemas.config import StreamConfig
from freshet_graph.schemas.errors import one_line
from freshet_graph.schemas.events import REJECT_SCHEMA
from freshet_graph.schemas.store import CommitRecord, Key
from freshet_graph.stream.background import Background, ClosedTogether
from freshet_graph.stream.job.held_topics import HeldTopic, HeldTopics
from freshet_graph.stream.kafka.dead_letters import DeadLetters
from freshet_graph.stream.kafka.discovery import TopicWatch
from freshet_graph.stream.kafka.group_offsets import GroupOffsets
from freshet_graph.stream.kafka.reader import Start
from freshet_graph.stream.metrics import StreamMetrics
from freshet_graph.stream.microbatch import MicroBatch
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.service.full_disk import FULL
from freshet_graph.stream.service.heartbeat import beat
from freshet_graph.stream.sink import SnapshotSink
from freshet_graph.stream.store.compact.store import Keep, compact
from freshet_graph.stream.store.errors import LaneBusyError, StoreError
from freshet_graph.stream.store.files.data import read_table
from freshet_graph.stream.store.log.layout import log_folder
from freshet_graph.stream.store.log.writer import LogWriter

WAITED_FOR = FULL | {errno.EHOSTUNREACH}
"""Errors after which a commit is tried again."""

RETRY_S = 2.0
"""How often a refused commit is tried again."""

LOOK_S = 0.1
"""How often the wait looks whether to stop."""

_log = structlog.get_logger()


class RoomForCommits:
    """Waits, in the thread of a commit, while the store has no room for it or doesn't answer.

    Attributes:
        reason: The error of the disk or bucket, while a commit waits; else None.
    """

    def __init__(self, store: str, *, stop: Callable[[], bool], retried: Callable[[], None]) -> None:
        """Expect room; ``retried`` is called at each further try, and a wait ends once ``stop`` returns True."""
        self.reason: str | None = None
        self._store, self._stop, self._retried = store, stop, retried

    def wait(self, error: OSError) -> None:
        """Return when the refused commit should be tried again.

        Raises:
            Failure: The disk is full or the bucket silent, and the job was stopped.
            OSError: The store refuses for another reason.
        """
        if error.errno not in WAITED_FOR:
            raise error
        text = one_line(error)
        if self.reason is None:
            what = "no room for a commit" if error.errno in FULL else "the store takes no commit"
            _log.error(f"{what}, waiting for it", store=self._store, error=text)
        self.reason = (
            f"the disk of {self._store} has no room for a commit: {text}"
            if error.errno in FULL
            else f"the store takes no commit: {text}"
        )
        again_s = time.monotonic() + RETRY_S
        while time.monotonic() < again_s:
            if self._stop():
                raise Failure(
                    f"{self.reason}. {'Make room and start' if error.errno in FULL else 'Start'} again. Nothing is lost: the job "
                    "resumes where the log ends"
                ) from error
            beat()
            time.sleep(LOOK_S)
        self._retried()

    def end_wait(self) -> None:
        """A commit was made."""
        if self.reason is not None:
            self.reason = None
            _log.info("the store takes commits again", store=self._store)


LOGGED_EVERY_S = 60.0
"""Shortest time between two lines about refusals for one reason; each has their number and an example."""


class Journal:
    """Writes the lines.

    Args:
        graph: In every line.
        store: Has examples of refused messages.
        last: The commit that the job resumes from; None: there is none.
        clock: Seconds.
    """

    def __init__(
        self,
        graph: str,
        store: str,
        last: CommitRecord | None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log = _log.bind(graph=graph)
        self._root = log_folder(store)
        self._clock = clock
        self._logged = Counter(last.refused if last is not None else {})  # totals by reason
        self._logged_s: dict[str, float] = {}

    def reading(self, starts: Iterable[tuple[str, int, int]], last: CommitRecord | None) -> None:
        """Reading begins or resumes at topic, partition and offset, after the last commit."""
        self._log.info("reading", commit=last.n if last is not None else None, offsets=_by_topic(starts))

    def committed(self, record: CommitRecord) -> None:
        """A commit is durable."""
        if record.sealed:
            self._log.info(
                "sealed",
                snapshot=record.sealed[-1].tau,
                snapshots=len(record.sealed),
                events=sum(snapshot.num_events for snapshot in record.sealed),
                commit=record.n,
                offsets=_by_topic((p.topic, p.partition, p.next) for p in record.positions),
            )
        now_s = self._clock()
        for reason, total in record.refused.items():
            if (
                total > self._logged[reason]
                and now_s >= self._logged_s.get(reason, -LOGGED_EVERY_S) + LOGGED_EVERY_S
            ):
                self._log.warning(
                    "messages refused",
                    reason=reason,
                    messages=total - self._logged[reason],
                    total=total,
                    **self._example(record, reason),
                )
                self._logged[reason], self._logged_s[reason] = total, now_s

    def _example(self, record: CommitRecord, reason: str) -> dict[str, Any]:
        """Place and sentence of a message that a commit refused for a reason; empty if it can't be read."""
        if record.rejects is None:
            return {}
        try:
            rejects = read_table(self._root, record.rejects, schema=REJECT_SCHEMA)
        except (OSError, StoreError):  # it is only an example
            return {}
        for row in rejects.filter(pc.field("reason") == reason).slice(0, 1).to_pylist():
            return {key: row[key] for key in ("topic", "partition", "offset", "sentence")}
        return {}  # the reason's messages were in a commit before


def _by_topic(offsets: Iterable[tuple[str, int, int]]) -> dict[str, dict[int, int]]:
    offsets_by_topic: dict[str, dict[int, int]] = {}
    for topic, partition, offset in offsets:
        offsets_by_topic.setdefault(topic, {})[partition] = offset
    return offsets_by_topic


PAUSE_S = 60.0
"""Shortest time between two looks at the store."""

CLOSE_S = 5.0
"""How long the end of a job waits for a compaction; the next one completes it if it is cut off."""


class CompactionThread:
    """Compacts a store while it is written, from the first ``wake`` to ``close``; a failure stops nothing else."""

    def __init__(self, config: StreamConfig, retried: Callable[[], None]) -> None:
        self._store = config.store
        self._keep = keep(config)
        self._looked_s = time.monotonic()
        self._work = Background("compaction", self._look, retry_s=PAUSE_S, on_retry=retried)
        self._started = False

    def wake(self) -> None:
        """Something was committed: look at the store, unless that was done a moment ago."""
        now = time.monotonic()
        if now - self._looked_s < PAUSE_S:
            return
        self._looked_s = now
        if self._started:
            self._work.ask()
        else:
            self._started = True
            self._work.start()

    def close(self) -> None:
        """Stop after the current step."""
        if self._started:
            self._work.close(CLOSE_S)

    def _look(self) -> None:
        try:
            done = compact(self._store, self._keep, stop=lambda: self._work.stopping)
        except LaneBusyError as error:  # freshet-stream compact, which does the same
            _log.info("another process compacts the store", store=self._store, reason=str(error))
            return
        if done.dropped or done.folded:
            _log.info(
                "compacted",
                store=self._store,
                dropped=done.dropped,
                folded=done.folded,
                first=done.first,
                held_by=done.held_by,
            )


def keep(config: StreamConfig) -> Keep:
    """The retention of a configuration."""
    return Keep(config.retention.snapshots, config.retention.time_s, config.dedup_window_s or 0.0)


class OpenLog:
    """The host of a log, in the local job and in a worker on a cluster.

    Nothing is made or sent before ``begin``. After each commit dead letters and group offsets are sent from threads of their
    own, and compaction is woken.

    Args:
        config: Of the stream.
        metrics: Counts everything.
        writer: The log.
        room: Waits while the disk has no room for a commit.
        stack: Closes everything in order, clients of brokers together.
        holds: Whether topics may be held.

    Attributes:
        sink: Takes batches in.
        brokers: Closes clients of brokers.
        topics: Watches the topics that are read; each commit asks it whether they are still those of the log.
        letters: Refused messages on their way to their topic; None: they stay in the log.
        topics_held: Keeps back topics that the configuration can't read; None on a cluster, where nobody could stop reading them.
    """

    def __init__(
        self,
        config: StreamConfig,
        metrics: StreamMetrics,
        writer: LogWriter,
        room: RoomForCommits,
        stack: ExitStack,
        *,
        holds: bool,
    ) -> None:
        self._config, self._metrics, self.writer, self._room = config, metrics, writer, room
        metrics.opened_log(writer.last, writer.totals.bytes)
        self._journal = Journal(config.graph, config.store, writer.last)
        self.topics = TopicWatch(config.kafka, writer.topic_ids)
        self.sink = SnapshotSink(
            writer, config, observer=metrics, confirm=self.topics.confirm, refused=room.wait
        )
        stack.callback(self.sink.close)
        self.brokers = stack.enter_context(ClosedTogether())
        self.brokers.add(self.topics)
        self.letters: DeadLetters | None = None
        self.topics_held = HeldTopics(config, writer.positions) if holds else None
        self._keys: list[Key] = []
        group = config.kafka.group or f"freshet-{config.graph}"
        self._offsets = self.brokers.add(GroupOffsets(config.kafka, group))
        self._compaction: CompactionThread | None = None

    def start_compaction(self, stack: ExitStack) -> None:
        """Compact the store from now on, until the stack ends."""
        again = self._metrics.restarted
        self._compaction = CompactionThread(self._config, lambda: again("compaction"))
        stack.callback(self._compaction.close)

    def begin(self, starts: Sequence[Start]) -> None:
        """Read topic partitions from these offsets on.

        Raises:
            OffsetGapError: A topic was made again since the log read it.
            Failure: A topic is gone, or the dead letters' topic can be neither found nor made.
        """
        self._keys = [(start.topic, start.partition) for start in starts]
        self.topics.reading(self._keys)
        if self.topics.lost is not None:
            raise self.topics.lost
        self.writer.topic_ids = self.topics.ids
        if self.letters is None and self._config.kafka.dead_letters is not None:
            self.letters = self.brokers.add(DeadLetters(self._config.kafka, self.writer))
        self._metrics.read({start.topic for start in starts})
        for start in starts:
            self.sink.begin((start.topic, start.partition), start.offset)
        self._journal.reading([(s.topic, s.partition, s.offset) for s in starts], self.writer.last)
        if self.topics_held is not None:
            self.topics_held.begin()
        self._assign()
        kafka = self._config.kafka
        # Another start would ask Kafka again, and find a later end.
        if any(kafka.start_of(start.topic) != "earliest" for start in starts):
            self.committed(self.sink.flush())

    def take_in(self, batch: MicroBatch, lag: Mapping[Key, int]) -> CommitRecord | None:
        """Take one micro-batch in, and commit if that is due.

        Args:
            batch: The next of its topic partition.
            lag: Unread messages by topic partition. While there are any, commits run beside reading, unless one waits for room.

        Returns:
            The commit, if one was made.

        Raises:
            Failure: The disk is full, and the job was told to end.
            StoreError, OSError: As ``SnapshotSink.advance``; a full disk is waited for.
        """
        for passed in self._passed(batch):
            self.sink.offer(passed)
        # While the store has no room nothing more is read, so memory doesn't grow.
        reads_on = any(lag.values()) and self._room.reason is None
        record = self.committed(self.sink.advance(wait=not reads_on))
        self._metrics.lag(lag)
        return record

    def rest(self) -> None:
        """At the end of the job: take in what waited to see whether its topic must be held."""
        for batch in [] if self.topics_held is None else self.topics_held.rest():
            self.sink.offer(batch)

    def committed(self, record: CommitRecord | None) -> CommitRecord | None:
        """Follow up on a commit, if there is one; returns it."""
        if record is not None:
            self._room.end_wait()
            self._journal.committed(record)
            if self.letters is not None:
                self.letters.committed()
            read = set(self._keys)
            self._offsets.committed([p for p in record.positions if (p.topic, p.partition) in read])
            if self._compaction is not None:
                self._compaction.wake()
        return record

    @property
    def held_by_name(self) -> Mapping[str, HeldTopic]:
        """The topics that are held, by name."""
        return {} if self.topics_held is None else self.topics_held.by_name

    def _passed(self, batch: MicroBatch) -> list[MicroBatch]:
        if self.topics_held is None:
            return [batch]
        before = self.held_by_name
        passed = self.topics_held.passed(batch)
        if self.held_by_name is not before:
            held_topic = self.held_by_name[batch.topic]
            self._metrics.topic_held(held_topic.name, held_topic.reason, held_topic.key)
            self._assign()
        return passed

    def _assign(self) -> None:
        """Event time waits for all partitions but those of held topics."""
        self.sink.assign([key for key in self._keys if key[0] not in self.held_by_name])
