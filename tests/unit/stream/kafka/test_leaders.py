"""Bounds of topic partitions while leaders are missing: the others are known, and the missing ones are named."""

from types import SimpleNamespace
from typing import Any

import pytest
from kafka import TopicPartition
from kafka.errors import KafkaTimeoutError, TopicAuthorizationFailedError

from freshet_graph.stream.kafka.topics import NO_LEADER, NoLeaderError, bounds, known_bounds

LED, LEADERLESS, SILENT, LOST = (TopicPartition("edges", partition) for partition in range(4))
LEADERS = {LED: 1, LEADERLESS: NO_LEADER, SILENT: 2, LOST: 3}


class Consumer:
    """A client that knows the leaders of before: one is away, and one partition has just lost its leader."""

    def __init__(self) -> None:
        self._cluster = SimpleNamespace(
            leader_for_partition=LEADERS.get,
            broker_metadata=lambda node: SimpleNamespace(host="10.0.0.7", port=9092) if node == 2 else None,
        )
        self.refuses = False

    def beginning_offsets(
        self, partitions: list[TopicPartition], *, timeout_ms: int
    ) -> dict[TopicPartition, int]:
        return self.end_offsets(partitions, timeout_ms=timeout_ms)

    def end_offsets(self, partitions: list[TopicPartition], *, timeout_ms: int) -> dict[TopicPartition, int]:
        if self.refuses:
            raise TopicAuthorizationFailedError({"edges"})
        if SILENT in partitions:
            raise KafkaTimeoutError("Timed out")
        offsets: Any = {} if LOST in partitions else dict.fromkeys(partitions, 5)
        return {tp: offsets[tp] for tp in partitions}  # as the client does


def test_leaders_that_are_missing_hide_no_other_partition() -> None:
    found, missing = known_bounds(Consumer(), list(LEADERS))
    assert [(each.partition, each.end) for each in found] == [(0, 5)]
    assert missing[LEADERLESS] == missing[LOST] == "has no leader"
    assert missing[SILENT].startswith("has a leader that does not answer, broker 2 at 10.0.0.7:9092 (")


def test_where_all_bounds_are_needed_the_missing_leader_is_the_error() -> None:
    with pytest.raises(
        NoLeaderError, match=r"^topic edges partition 1 has no leader\. Start the brokers of these"
    ):
        bounds(Consumer(), [LED, LEADERLESS])


def test_a_refusal_is_no_missing_leader() -> None:
    consumer = Consumer()
    consumer.refuses = True
    with pytest.raises(TopicAuthorizationFailedError):
        known_bounds(consumer, [LED])
