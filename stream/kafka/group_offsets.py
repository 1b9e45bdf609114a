"""Kafka's group offsets, set after each commit as a hint for lag monitors. The log's own offsets are the truth."""

from contextlib import suppress

import structlog
from kafka import KafkaConsumer, OffsetAndMetadata, TopicPartition
from kafka.errors import CommitFailedError

from freshet_graph.schemas.config import Kafka
from freshet_graph.schemas.store import Position
from freshet_graph.stream.background import Background
from freshet_graph.stream.kafka.client import client_settings, connected, kafka_failures
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.store.crash import crash_point

COMMIT_TIMEOUT_MS = 10_000

CLOSE_S = 2.0

_log = structlog.get_logger()


class GroupOffsets:
    """Sends the log's positions of topics from a thread of its own; a failure is logged and never stops the stream."""

    def __init__(self, kafka: Kafka, group: str) -> None:
        self._kafka, self._group = kafka, group
        self._latest: list[Position] = []
        self._has_member = False  # the group, at the last attempt
        self._consumer: KafkaConsumer | None = None
        self._work = Background("group-offsets", self._commit, on_end=self._leave)
        self._work.start()

    def committed(self, positions: list[Position]) -> None:
        """A commit was made, with these positions of topic partitions that are read; only the newest are sent."""
        self._latest = positions
        self._work.ask()

    def close(self) -> None:
        """Send the newest positions, if the brokers accept them at once, and stop."""
        in_time = self._work.settle(CLOSE_S)
        self._work.close(CLOSE_S if in_time else 0.0)

    def _leave(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close(autocommit=False, timeout_ms=1_000)

    def _commit(self) -> None:
        positions = self._latest
        if not positions:
            return
        offsets = {TopicPartition(p.topic, p.partition): OffsetAndMetadata(p.next, "", -1) for p in positions}
        try:
            with kafka_failures(self._kafka.bootstrap, f"committing offsets of group {self._group}", "Read"):
                taken = self._set(offsets)
        except Failure:
            self._leave()  # the next try looks for the brokers again, and reads certificates and passwords again
            raise
        if not taken and not self._has_member:
            _log.warning(
                "the consumer group has a member, so its offsets are not set",
                group=self._group,
                remedy="stop that consumer, or set kafka.group to a name that no consumer has",
            )
        self._has_member = not taken
        if not taken:
            return
        crash_point("offsets.sent")
        if self._latest is positions:
            self._latest = []

    def _set(self, offsets: dict[TopicPartition, OffsetAndMetadata]) -> bool:
        """Whether the broker took the offsets, which it does not while the group has a member."""
        if self._consumer is None:
            group = {"group_id": self._group, "enable_auto_commit": False}
            self._consumer = connected(KafkaConsumer, client_settings(self._kafka) | group)
        with suppress(CommitFailedError):
            self._consumer.commit(offsets, timeout_ms=COMMIT_TIMEOUT_MS)
            return True
        return False
