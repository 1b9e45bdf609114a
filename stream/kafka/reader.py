"""One consumer for all topic partitions of a process, read partition by partition so that none starves."""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

import structlog
from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError, LogTruncationError, OffsetOutOfRangeError

from freshet_graph.schemas.config import Kafka
from freshet_graph.schemas.kafka_config import StartAt
from freshet_graph.stream.kafka.answers import BrokerAnswers
from freshet_graph.stream.kafka.client import (
    client_settings,
    connected,
    fetch_ahead,
    kafka_failures,
    large_reads_client,
)
from freshet_graph.stream.kafka.greeting import greet
from freshet_graph.stream.kafka.records import Records, joined, read_columns
from freshet_graph.stream.kafka.tls import CredentialError
from freshet_graph.stream.kafka.topics import (
    NoLeaderError,
    PartitionBounds,
    known_bounds,
    leaderless,
    offsets_at,
    offsets_by_leader,
    read_topics,
    topic_partitions,
    written_ends,
)
from freshet_graph.stream.microbatch import Quiet, RawBatch
from freshet_graph.stream.snapshots.event_time import BREAK_S
from freshet_graph.stream.store.errors import OffsetGapError


class QuietPartitions:
    """Keeps for each topic partition the time over which brokers confirmed that nothing in it is unread.

    To a consumer a partition without messages looks the same whether it is empty or its broker is gone, so quiet
    partitions are asked about regularly, also while others are busy.
    """

    def __init__(self, ask_s: float) -> None:
        """Know nothing yet; a quiet partition is asked about again after ``ask_s``, which is less than ``BREAK_S``."""
        self._ask_s = ask_s
        self._spans: dict[TopicPartition, tuple[float, float]] = {}
        self._asked_s = 0.0

    def said(self, tp: TopicPartition, *, unread: bool, messages: bool = False) -> None:
        """Brokers have said where a partition ends.

        Args:
            tp: The topic partition.
            unread: It has messages that were not read.
            messages: New ones came with the answer.
        """
        if unread:
            self._spans.pop(tp, None)
            return
        now = time.monotonic()
        before = self._spans.get(tp)
        unbroken = before is not None and not messages and now - before[1] <= BREAK_S
        self._spans[tp] = (before[0] if before is not None and unbroken else now, now)

    def to_ask(self, unanswered: Iterable[TopicPartition]) -> set[TopicPartition]:
        """Quiet partitions without news for too long, and those unanswered; empty if the last question is younger than that."""
        now = time.monotonic()
        if now - self._asked_s < self._ask_s:
            return set()
        return {tp for tp, (_, until) in self._spans.items() if now - until >= self._ask_s} | set(unanswered)

    def mark_asked(self) -> None:
        """Brokers were asked, whether or not they answered."""
        self._asked_s = time.monotonic()

    def of(self, tp: TopicPartition) -> Quiet | None:
        """The quiet time of a partition, as ages; None: it has unread messages, or nothing is known."""
        span = self._spans.get(tp)
        now = time.monotonic()
        return None if span is None else Quiet(now - span[0], now - span[1])


_log = structlog.get_logger()

LINGER_MS = 100
LINGER_BYTES = 64 << 10
"""A broker answers once it has this much or this long has passed: few polls on a slow topic, no delay on a fast one."""

POLL_S = 0.2
"""How long a poll waits for messages, and so the longest delay of a stop."""


ASK_S = 5.0
"""After so long without a message the brokers are asked for an answer, and again as often."""

ANSWER_MS = 1_500
"""How long each leader has to answer: the longest that such a question to one blocks the loop."""

RECONNECT_S = 10.0
"""After so long without an answer a reader is given up for a new one, which asks the addresses of the configuration and reads
certificates and passwords again: brokers may have moved, or have other certificates."""

FRESH_S = 1.0
"""Brokers that have described topics so short a time before a question answer, even if leaders do not."""


@dataclass(frozen=True, slots=True)
class Start:
    """Where reading of one topic partition begins.

    Attributes:
        offset: First offset to read.
        end: End of the partition when it was asked: earlier messages are unread.
    """

    topic: str
    partition: int
    offset: int
    end: int


NextOffset = Callable[[tuple[str, int]], int | None]
"""From (topic, partition) to the first offset that the log doesn't have; None: the log doesn't know it."""

Skipped = Callable[[str, int], None]
"""Called with a topic and the number of offsets that retention deleted unread, with ``on_gap: skip``."""


class OtherTopicError(OffsetGapError):
    """A topic ends before what was read of it, so it is another one, or was truncated."""


def made_again(name: str, bootstrap: str) -> str:
    """The sentences about a topic that has the name of one that was read."""
    return (
        f"topic {name} at {bootstrap} was deleted and made again since the log read it, so its offsets begin again. "
        "Choose a new store, or a topic of another name"
    )


def open_consumer(kafka: Kafka, **more: Any) -> KafkaConsumer:
    """A consumer without a group: offsets come from the log, never from Kafka. ``more`` are settings of the client."""
    greet(kafka, "connecting to Kafka")
    with kafka_failures(kafka.bootstrap, "connecting to Kafka"):
        reading = {
            "group_id": None,
            "enable_auto_commit": False,
            "auto_offset_reset": "none",  # a position out of range is a gap to report, not to skip
            "isolation_level": "read_committed",
            "max_poll_records": kafka.max_poll_records,
            "max_partition_fetch_bytes": kafka.max_partition_fetch_bytes,
            "fetch_max_bytes": max(52_428_800, kafka.max_partition_fetch_bytes),
            "fetch_min_bytes": LINGER_BYTES,
            "fetch_max_wait_ms": LINGER_MS,
            "metrics_enabled": False,  # its sensors cost time with every record
            "allow_auto_create_topics": False,  # a topic of a pattern that is deleted would come back
        }
        return connected(KafkaConsumer, client_settings(kafka) | reading | more)


class PartitionReader:
    """Reads topic partitions through one consumer, from one thread.

    A poll may bring messages of any partition; those of partitions not asked for wait here. While some wait, nothing
    more is polled: at most one poll is in memory.

    Attributes:
        starts: The topic partitions, and where each begins.
        stop: Set to end the source.
        first_poll_s: Monotonic seconds of the first poll; None before it.
        last_arrival_s: Monotonic seconds of the last message, at first of the reader's construction.
        failure: The error of ``take``, kept because a runner passes on its text only.
        answers: Whether brokers answer.
        consumer: The client.
        ids: Kafka's ids of the topics of patterns, as far as brokers have them.
        left: Why a topic of a pattern is not read, by topic: its offsets are not those that the log has read.
    """

    def __init__(
        self,
        kafka: Kafka,
        next_offset: NextOffset,
        skipped: Skipped,
        *,
        ask_quiet_s: float = ASK_S,
        only: tuple[str, int] | None = None,
        answers: BrokerAnswers | None = None,
        ids: Mapping[str, str] | None = None,
        without: Container[str] = (),
        joins: bool = False,
    ) -> None:
        """Connect, find the topics' partitions and seek to where each was left.

        Args:
            kafka: Topics, and limits of a poll.
            next_offset: First offset that the log doesn't have.
            skipped: Called at gaps that ``on_gap: skip`` skips.
            ask_quiet_s: How often brokers are asked whether a partition without messages still has none.
            only: Read this topic partition alone; None: all of the topics.
            answers: Of the readers before this one; None: it is the first.
            ids: Kafka's ids of the topics that the log has read, by name.
            without: Topics to leave out.
            joins: Whether topics of patterns that the log doesn't know came after the reading began.

        Raises:
            OffsetGapError: Retention deleted unread messages, or a topic was made again.
            NoLeaderError: A topic partition that the log doesn't know has no leader.
            Failure: No broker answers, or a topic doesn't exist.
        """
        self._kafka, self._skipped = kafka, skipped
        self.consumer = open_consumer(kafka, kafka_client=large_reads_client)
        self._waiting: dict[TopicPartition, RawBatch] = {}
        self._held_from: dict[TopicPartition, int] = {}  # the first offset that the log doesn't have
        self.stop = threading.Event()
        self.first_poll_s: float | None = None
        self.last_arrival_s = time.monotonic()
        self.failure: Exception | None = None
        self._missing: dict[TopicPartition, str] = {}  # what is wrong with leaders that did not answer
        self._refused = False  # a new connection, which the client does not try again
        self._described_s = time.monotonic()
        self.consumer._cluster.add_listener(self._described)
        self.left: dict[str, str] = {}
        self.ids: dict[str, str] = {}
        self._ids, self._joins = ids or {}, joins
        try:
            names = [only[0]] if only is not None else self._names(without)
            self.starts = self._find_starts(next_offset, names, only)
        except BaseException:
            self.close()
            raise
        entries = {name: kafka.topic_of(name) for name in names}
        wanted = {name: kafka.record_columns(entry) for name, entry in entries.items() if entry is not None}
        read_columns(self.consumer, kafka.max_poll_records, kafka.max_batch_bytes, wanted)
        self._next = {TopicPartition(start.topic, start.partition): start.offset for start in self.starts}
        self._end = {TopicPartition(start.topic, start.partition): start.end for start in self.starts}
        self.answers = answers or BrokerAnswers(kafka.bootstrap)
        self._quiet = QuietPartitions(ask_quiet_s)
        for tp in self._next.keys() - self._missing.keys():
            self._quiet.said(tp, unread=self._next[tp] < self._end[tp])
        self.consumer.assign(list(self._next))
        for tp, offset in self._next.items():
            self.consumer.seek(tp, offset)

    @property
    def num_partitions(self) -> int:
        """Topic partitions of this reader."""
        return len(self._next)

    @property
    def has_waiting(self) -> bool:
        """Whether messages of some partition wait to be taken."""
        return bool(self._waiting)

    @property
    def idle_s(self) -> float:
        """Seconds since the last message came; 0 while some wait here or no broker answers."""
        return 0.0 if self._waiting or self.answers.out else time.monotonic() - self.last_arrival_s

    @property
    def no_leader(self) -> str | None:
        """The sentence about topic partitions without a leader that answers; None if there are none. For any thread."""
        missing = self._missing | leaderless(self.consumer, self._next)
        return str(NoLeaderError(missing)) if missing else None

    @property
    def given_up(self) -> bool:
        """Whether a new reader should look for brokers: they refuse the login, or have not answered for long."""
        silent_s = self.answers.silent_s
        return self._refused or (silent_s is not None and silent_s >= RECONNECT_S)

    def lag(self) -> dict[tuple[str, int], int]:
        """Unread offsets of each topic partition, as far as brokers have said."""
        begins = self._next | self._held_from
        return {(tp.topic, tp.partition): max(0, end - begins[tp]) for tp, end in self._end.items()}

    def take(self, topic: str, partition: int) -> RawBatch:
        """The next messages of one topic partition; waits a little for them unless other partitions' messages wait here.

        Returns:
            A batch, empty if there is nothing to read now.

        Raises:
            OffsetGapError: Retention deleted unread messages, or the topic was made again.
            Failure: Kafka refuses.
        """
        tp = TopicPartition(topic, partition)
        if not self._waiting:
            try:
                self._poll()
            except CredentialError as error:
                self._refuse(error)
                time.sleep(POLL_S)
            except Exception as error:
                self.failure = error
                raise
        return self._waiting.pop(tp, None) or self._batch(tp, self._next[tp], Records.none(self._next[tp]))

    def hold(self, topic: str, next_offset: NextOffset) -> None:
        """Read nothing more of a topic: what was read of it and not committed is unread, and is not waited for."""
        for tp in self._next:
            if tp.topic == topic and tp not in self._held_from:
                self._held_from[tp] = next_offset((topic, tp.partition)) or 0
                self.consumer.pause(tp)
                self._waiting.pop(tp, None)

    def ask(self) -> bool:
        """Ask for the ends of the partitions; returns whether the brokers answered in time.

        The end of an outage counts as an arrival: producers may have waited for the brokers, too.

        Raises:
            Failure: They answered, and refuse.
        """
        try:
            error = self._ask(list(self._next))
        except CredentialError as refused:
            self._refuse(refused)
            return False
        if error is not None:
            self.answers.missed(error)
        return error is None

    def caught_up(self) -> bool:
        """Ask the brokers whether nothing is unread in any partition, but for held topics; False if not all leaders answer."""
        return self.ask() and not self._missing and not self._waiting and self._all_read()

    def close(self) -> None:
        """Leave the brokers."""
        self.consumer.close(autocommit=False, timeout_ms=2_000)

    def _refuse(self, error: CredentialError) -> None:
        self._refused = True
        self.answers.missed(error)

    def _names(self, without: Container[str]) -> list[str]:
        """The topics to read; those of patterns that were made again are in ``left`` instead."""
        with kafka_failures(self._kafka.bootstrap, "asking for the topics"):
            names = [name for name in read_topics(self.consumer, self._kafka) if name not in without]
        for name in filter(self._kafka.by_pattern, names):
            if (topic_id := self.consumer._cluster.topic_id(name)) is None:  # brokers before 2.8 have none
                continue
            self.ids[name] = str(topic_id)
            if self._ids.get(name, self.ids[name]) != self.ids[name]:
                self.left[name] = made_again(name, self._kafka.bootstrap)
        return [name for name in names if name not in self.left]

    def _find_starts(
        self, next_offset: NextOffset, names: list[str], only: tuple[str, int] | None
    ) -> list[Start]:
        starts = []
        with kafka_failures(self._kafka.bootstrap, f"asking for topics {', '.join(names)}"):
            partitions = topic_partitions(self.consumer, names, self._kafka)
            known = {tp.topic for tp in partitions if next_offset((tp.topic, tp.partition)) is not None}
            if only is not None:
                partitions = [tp for tp in partitions if tp == TopicPartition(*only)]
            all_bounds, self._missing = known_bounds(self.consumer, partitions)
            begins = self._begins([one for one in all_bounds if one.topic not in known], known)
        for bounds in all_bounds:
            tp = TopicPartition(bounds.topic, bounds.partition)
            wanted = next_offset((bounds.topic, bounds.partition))
            try:
                # A partition added to a topic that is being read came after the reading began: all of it counts.
                begin = begins.get(tp, bounds.log_start) if wanted is None else self._checked(bounds, wanted)
            except OtherTopicError as error:
                if not self._kafka.by_pattern(bounds.topic):
                    raise
                self.left[bounds.topic] = str(error)
                continue
            starts.append(Start(bounds.topic, bounds.partition, begin, bounds.end))
        unknown: dict[TopicPartition, str] = {}
        for tp, why in self._missing.items():
            wanted = next_offset((tp.topic, tp.partition))
            if wanted is None:
                unknown[tp] = why
            else:  # its bounds are checked once a leader serves it
                starts.append(Start(tp.topic, tp.partition, wanted, wanted))
        if unknown:
            raise NoLeaderError(unknown)
        return [start for start in starts if start.topic not in self.left]

    def _begins(self, fresh: list[PartitionBounds], known: Iterable[str]) -> dict[TopicPartition, int]:
        """Where partitions of topics that the log doesn't know begin; those left out at their first message.

        All of a topic counts that came after its pattern was first read: the log knows another one of it, or the job runs.
        """
        begun = {self._entry(name) for name in {*known, *self._ids}} - {None}
        by_start: dict[StartAt, list[PartitionBounds]] = defaultdict(list)
        for bounds in fresh:
            pattern, start = self._entry(bounds.topic), self._kafka.start_of(bounds.topic)
            if start is not None and not (pattern is not None and (self._joins or pattern in begun)):
                by_start[start].append(bounds)
        begins: dict[TopicPartition, int] = {}
        for start, some in by_start.items():
            ends = {TopicPartition(one.topic, one.partition): one.end for one in some}
            if isinstance(start, datetime):
                begins |= ends | offsets_at(self.consumer, ends, start)
            elif start == "latest":
                begins |= ends
        return begins

    def _entry(self, name: str) -> str | None:
        """The pattern for which a topic is read; None: none."""
        topic = self._kafka.topic_of(name)
        return None if topic is None else topic.pattern

    def _described(self, _: object) -> None:
        """Brokers have described topics and their leaders; called by a thread of the client."""
        self._described_s = time.monotonic()

    def _all_read(self) -> bool:
        return all(self._next[tp] >= end for tp, end in self._end.items() if tp not in self._held_from)

    def _poll(self) -> None:
        self._poll_once()
        if not self._waiting and self.answers.due(ASK_S):
            self.ask()
        elif quiet := self._quiet.to_ask(self._missing):
            led = quiet - leaderless(self.consumer, quiet).keys()  # asking for the others would only wait
            if led:
                self._ask(sorted(led))

    def _ask(self, partitions: list[TopicPartition]) -> TimeoutError | None:
        """Ask where partitions end; returns why there was no answer in time, None if there was one."""
        self._quiet.mark_asked()
        asked_s, ask = time.monotonic(), partial(written_ends, self.consumer)
        with kafka_failures(self._kafka.bootstrap, "asking for the ends of the topics"):
            ends, missing = offsets_by_leader(self.consumer, partitions, ask, ANSWER_MS)
        self._end |= ends
        self._missing = {tp: why for tp, why in self._missing.items() if tp not in partitions} | missing
        for tp in ends:
            self._quiet.said(tp, unread=self._next[tp] < self._end[tp])
        if not ends and self._described_s < asked_s - FRESH_S:
            return TimeoutError(str(NoLeaderError(missing)))
        if self.answers.heard():
            self.last_arrival_s = time.monotonic()
        return None

    def _poll_once(self) -> None:
        if self.first_poll_s is None:
            self.first_poll_s = time.monotonic()
        with kafka_failures(self._kafka.bootstrap, "reading from Kafka", "Read"):
            try:
                polled = self.consumer.poll(timeout_ms=int(POLL_S * 1000), max_records=1)
            except OffsetOutOfRangeError as error:
                self._gap(list(error.args[0]))
                return
            except LogTruncationError as error:
                truncated = self._truncated(list(error.divergent_offsets))
                self._leave({tp.topic for tp in error.divergent_offsets}, truncated)
                return
            except KafkaError as error:
                if getattr(error, "retriable", False):
                    return
                raise
            for tp in self._next:
                self._end[tp] = max(self._end[tp], self.consumer.highwater(tp) or 0)
                if parts := polled.get(tp):
                    records = joined(parts)
                    first, self._next[tp] = self._next[tp], records.end_offset
                    self._end[tp] = max(self._end[tp], records.end_offset)
                    self._quiet.said(tp, unread=records.end_offset < self._end[tp], messages=True)
                    self._waiting[tp] = self._batch(tp, first, records)
                    self._missing.pop(tp, None)
                elif self._next[tp] < self._end[tp]:
                    self._quiet.said(tp, unread=True)
        if polled:
            self.answers.heard()
            self.last_arrival_s = time.monotonic()
            # A broker that waits for more data can't be asked for other partitions meanwhile.
            if any(self._end[tp] - self._next[tp] >= len(self._waiting[tp].offsets) for tp in polled):
                fetch_ahead(self.consumer)

    def _batch(self, tp: TopicPartition, first: int, records: Records) -> RawBatch:
        return RawBatch(
            topic=tp.topic,
            partition=tp.partition,
            first_offset=first,
            end_offset=self._next[tp],
            high_watermark=self._end[tp],
            offsets=records.offsets,
            values=records.values,
            quiet=self._quiet.of(tp) if self._next[tp] >= self._end[tp] else None,
            stamped_us=records.stamped_ms * 1000,
            beside=records.beside,
        )

    def _gap(self, partitions: list[TopicPartition]) -> None:
        for bounds in known_bounds(self.consumer, partitions)[0]:
            tp = TopicPartition(bounds.topic, bounds.partition)
            try:
                after = self._checked(bounds, self._next[tp])
            except OtherTopicError as error:
                self._leave({bounds.topic}, error)
                continue
            first, self._next[tp], self._end[tp] = self._next[tp], after, bounds.end
            self.consumer.seek(tp, after)
            self._quiet.said(tp, unread=after < bounds.end, messages=True)
            self._waiting[tp] = self._batch(tp, first, Records.none(after))

    def _leave(self, topics: Iterable[str], why: OffsetGapError) -> None:
        """Read nothing more of topics of patterns.

        Raises:
            OffsetGapError: One is named.
        """
        for topic in topics:
            if not self._kafka.by_pattern(topic):
                raise why
            self.left[topic] = str(why)
            self.hold(topic, lambda key: self._next[TopicPartition(*key)])

    def _truncated(self, partitions: list[TopicPartition]) -> OffsetGapError:
        places = ", ".join(
            f"topic {tp.topic} partition {tp.partition} (read up to offset {self._next[tp]})"
            for tp in partitions
        )
        return OffsetGapError(
            f"{places} at {self._kafka.bootstrap} no longer has the messages that were read: the topic was made again, or a "
            "broker that lacked messages became its leader and truncated it. Choose a new store, or a topic of "
            "another name"
        )

    def _checked(self, bounds: PartitionBounds, wanted: int) -> int:
        """Where reading can resume: ``wanted``, or the partition's first offset if a gap may be skipped."""
        place = f"topic {bounds.topic} partition {bounds.partition} at {self._kafka.bootstrap}"
        if wanted > bounds.end:
            raise OtherTopicError(
                f"{place} ends at offset {bounds.end}, but the log has read up to {wanted}: the topic was deleted and "
                "made again, or truncated. Choose a new store, or a topic of another name"
            )
        if wanted >= bounds.log_start:
            return wanted
        missing = bounds.log_start - wanted
        if self._kafka.on_gap == "fail":
            raise OffsetGapError(
                f"{place} begins at offset {bounds.log_start}, but the log's next offset is {wanted}: retention "
                f"deleted {missing} unread offsets. Set kafka.on_gap: skip to skip them (they are counted)"
            )
        _log.warning(
            "gap skipped", topic=bounds.topic, partition=bounds.partition, offset=wanted, missing=missing
        )
        self._skipped(bounds.topic, missing)
        return bounds.log_start
