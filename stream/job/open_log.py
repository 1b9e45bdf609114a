"""A graph's log in the process that writes it: takes micro-batches in, and follows up on each commit."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack

from schemas.config import StreamConfig
from schemas.store import CommitRecord
from stream.background import ClosedTogether
from stream.job.held_topics import HeldTopic, HeldTopics
from stream.job.housekeeping import Housekeeping
from stream.job.journal import Journal
from stream.job.room import RoomForCommits
from stream.kafka.dead_letters import DeadLetters
from stream.kafka.discovery import TopicWatch
from stream.kafka.group_offsets import GroupOffsets
from stream.kafka.reader import Start
from stream.metrics import StreamMetrics
from stream.microbatch import MicroBatch
from stream.sink.snapshot_sink import SnapshotSink
from stream.snapshots.event_time import Key
from stream.store.log.writer import LogWriter


class OpenLog:
    """The host of a log, in the local job and in a worker on a cluster.

    Nothing is made or sent before ``begin``. After each commit dead letters and group offsets are sent from threads of their
    own, and housekeeping is woken.

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
        self.sink = SnapshotSink(writer, config, observer=metrics, beside=True, confirm=self.topics.confirm)
        stack.callback(self.sink.close)
        self.brokers = stack.enter_context(ClosedTogether())
        self.brokers.add(self.topics)
        self.letters: DeadLetters | None = None
        self.topics_held = HeldTopics(config, writer.positions) if holds else None
        self._keys: list[Key] = []
        group = config.kafka.group or f"freshet-{config.graph}"
        self._offsets = self.brokers.add(GroupOffsets(config.kafka, group))
        self._housekeeping: Housekeeping | None = None

    def keep_house(self, stack: ExitStack) -> None:
        """Compact the store from now on, until the stack ends."""
        again = self._metrics.restarted
        self._housekeeping = Housekeeping(self._config, lambda: again("compaction"))
        stack.callback(self._housekeeping.close)

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
        for start in starts:
            self.sink.begin((start.topic, start.partition), start.offset)
        self._journal.reading([(s.topic, s.partition, s.offset) for s in starts], self.writer.last)
        if self.topics_held is not None:
            self.topics_held.begin()
        self._assign()
        if self._config.kafka.start == "latest":  # another start would ask Kafka again, and find a later end
            self.commit(self.sink.flush)

    def take_in(self, batch: MicroBatch, lag: Mapping[Key, int]) -> CommitRecord | None:
        """Take one micro-batch in, and commit if that is due.

        Args:
            batch: The next of its topic partition.
            lag: Unread messages by topic partition. While there are any, commits run beside reading.

        Returns:
            The commit, if one was made.

        Raises:
            Failure: The disk is full, and the job was told to end.
            StoreError, OSError: As ``SnapshotSink.advance``; a full disk is waited for.
        """
        for passed in self._passed(batch):
            self.sink.offer(passed)
        wait = not any(lag.values())
        record = self.commit(lambda: self.sink.advance(wait=wait))
        self._metrics.lag(lag)
        return record

    def rest(self) -> None:
        """At the end of the job: take in what waited to see whether its topic must be held."""
        for batch in [] if self.topics_held is None else self.topics_held.rest():
            self.sink.offer(batch)

    def commit(self, make: Callable[[], CommitRecord | None]) -> CommitRecord | None:
        """Have the sink commit, once there is room, and follow up."""
        return self.committed(self._room.made(make))

    def committed(self, record: CommitRecord | None) -> CommitRecord | None:
        """Follow up on a commit, if there is one; returns it."""
        if record is not None:
            self._journal.committed(record)
            if self.letters is not None:
                self.letters.committed()
            self._offsets.committed(record.positions)
            if self._housekeeping is not None:
                self._housekeeping.wake()
        return record

    @property
    def held(self) -> Mapping[str, HeldTopic]:
        """The topics that are held, by name."""
        return {} if self.topics_held is None else self.topics_held.held

    def _passed(self, batch: MicroBatch) -> list[MicroBatch]:
        if self.topics_held is None:
            return [batch]
        before = self.held
        passed = self.topics_held.passed(batch)
        if self.held is not before:
            held = self.held[batch.topic]
            self._metrics.topic_held(held.name, held.reason, held.key)
            self._assign()
        return passed

    def _assign(self) -> None:
        """Event time waits for all partitions but those of held topics."""
        self.sink.assign([key for key in self._keys if key[0] not in self.held])
