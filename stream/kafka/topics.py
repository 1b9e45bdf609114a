"""Topics and their partitions: which exist, their bounds, and making one."""

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import NewTopic
from kafka.errors import (
    KafkaError,
    TopicAlreadyExistsError,
    TopicAuthorizationFailedError,
    UnknownBrokerIdError,
    UnknownTopicOrPartitionError,
    UnsupportedVersionError,
)
from kafka.protocol.consumer import IsolationLevel

from freshet_graph.schemas.config import Kafka
from freshet_graph.schemas.errors import one_line
from freshet_graph.stream.kafka.client import WRITING, client_settings, connected, kafka_failures
from freshet_graph.stream.kafka.greeting import NoBrokerError, greet
from freshet_graph.stream.service.failure import Failure

NONE, UNKNOWN_TOPIC_OR_PARTITION, TOPIC_AUTHORIZATION_FAILED = 0, 3, 29
"""Kafka's error codes."""

METADATA_WAIT_S = 5.0
"""How long brokers may take to announce a topic that was just made."""

METADATA_LOOK_S = 0.2
"""How often they are asked meanwhile."""

BOUNDS_MS = 5_000
"""How long a leader has to say where its partitions begin, and where they end."""

NAMED = 3
"""Most partitions that a sentence names."""

NO_LEADER = -1
"""The client's number of the leader of a partition without one."""


class NoLeaderError(NoBrokerError):
    """Nothing is known of a topic partition, because no broker leads it: a job waits."""

    def __init__(self, missing: Mapping[TopicPartition, str]) -> None:
        """Name topic partitions, each with a clause that says what is wrong with its leader."""
        places = [f"topic {tp.topic} partition {tp.partition} {why}" for tp, why in missing.items()]
        more = f", and {len(places) - NAMED} more" if len(places) > NAMED else ""
        super().__init__(
            f"{', '.join(places[:NAMED])}{more}. Start the brokers of these partitions (kafka-topics.sh --describe names them)"
        )


class Ask(Protocol):
    """``beginning_offsets`` or ``end_offsets`` of a consumer."""

    def __call__(self, partitions: list[TopicPartition], *, timeout_ms: int) -> dict[TopicPartition, int]:
        """Offsets of all partitions."""
        ...


@dataclass(frozen=True, slots=True)
class PartitionBounds:
    """Begin and end of a topic partition now; offsets in [log_start, end) were written.

    Attributes:
        log_start: First offset that retention has kept.
        end: Offset of the next message.
    """

    topic: str
    partition: int
    log_start: int
    end: int


def read_topics(consumer: KafkaConsumer, kafka: Kafka) -> list[str]:
    """The names of all topics to read now.

    Raises:
        Failure: No topic matches a pattern, and none is named.
        KafkaError: A broker refuses.
    """
    if not kafka.has_patterns:
        return kafka.topics_among(())
    existing = consumer.topics()
    names = kafka.topics_among(existing)
    if not names:
        patterns = ", ".join(topic.label for topic in kafka.topics)
        raise Failure(
            f"kafka.topics: no topic at {kafka.bootstrap} matches pattern {patterns} (existing: "
            f"{', '.join(sorted(existing)[:10]) or 'none'}). Create one or correct the pattern"
        )
    return names


def topic_partitions(consumer: KafkaConsumer, topics: list[str], kafka: Kafka) -> list[TopicPartition]:
    """All partitions of the topics, in order of topic and partition. A topic of a pattern that is gone has none.

    Raises:
        Failure: A topic doesn't exist (the sentence names it and those that do), or the user may not describe it.
    """
    all_partitions: list[TopicPartition] = []
    for topic in topics:
        deadline = time.monotonic() + METADATA_WAIT_S
        while not (partitions := _numbers(consumer, topic, deadline)):
            if time.monotonic() > deadline:
                if kafka.by_pattern(topic):
                    break
                _require_described(topic, kafka)
                existing = ", ".join(sorted(consumer.topics())[:10]) or "none"
                raise Failure(
                    f"kafka.topics: topic {topic} doesn't exist at {kafka.bootstrap} (existing: {existing}). "
                    "Create it or correct its name"
                )
            time.sleep(METADATA_LOOK_S)
        all_partitions += [TopicPartition(topic, partition) for partition in sorted(partitions)]
    return all_partitions


def offsets_at(
    consumer: KafkaConsumer, partitions: Iterable[TopicPartition], since: datetime
) -> dict[TopicPartition, int]:
    """First offsets whose records have a time or a later one; partitions without such a record are left out."""
    asked_ms = dict.fromkeys(partitions, int(since.timestamp() * 1000))
    answers = consumer.offsets_for_times(asked_ms) if asked_ms else {}
    return {tp: answer.offset for tp, answer in answers.items() if answer is not None}


def bounds(consumer: KafkaConsumer, partitions: list[TopicPartition]) -> list[PartitionBounds]:
    """Ask the brokers where partitions begin and end.

    Raises:
        NoLeaderError: One has no leader that answers.
    """
    known, missing = known_bounds(consumer, partitions)
    if missing:
        raise NoLeaderError(missing)
    return known


def known_bounds(
    consumer: KafkaConsumer, partitions: list[TopicPartition]
) -> tuple[list[PartitionBounds], dict[TopicPartition, str]]:
    """As ``bounds``, of the partitions whose leaders answer; for the others, why they don't."""
    missing = leaderless(consumer, partitions)  # asking for them would only wait
    led = [tp for tp in partitions if tp not in missing]
    starts, silent = offsets_by_leader(consumer, led, consumer.beginning_offsets, BOUNDS_MS)
    ends, lost = offsets_by_leader(consumer, starts, consumer.end_offsets, BOUNDS_MS)
    partition_bounds = [
        PartitionBounds(tp.topic, tp.partition, starts[tp], ends[tp]) for tp in partitions if tp in ends
    ]
    return partition_bounds, missing | silent | lost


def offsets_by_leader(
    consumer: KafkaConsumer, partitions: Iterable[TopicPartition], ask: Ask, timeout_ms: int
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, str]]:
    """Ask each leader for itself: the client has no answer for all if one leader is missing.

    Args:
        consumer: Knows the leaders.
        partitions: Topic partitions.
        ask: Of the same consumer.
        timeout_ms: How long each leader has.

    Returns:
        Offsets, and for partitions without one what is wrong with the leader.

    Raises:
        KafkaError: A broker refuses.
    """
    led: dict[int | None, list[TopicPartition]] = defaultdict(list)
    for tp in partitions:
        led[consumer._cluster.leader_for_partition(tp)].append(tp)
    offsets: dict[TopicPartition, int] = {}
    missing: dict[TopicPartition, str] = {}
    for leader, of_leader in led.items():
        try:
            offsets |= ask(of_leader, timeout_ms=timeout_ms)
        except KeyError:  # the client leaves out partitions that have just lost their leader
            missing |= dict.fromkeys(of_leader, "has no leader")
        except KafkaError as error:
            if not getattr(error, "retriable", False):
                raise
            missing |= dict.fromkeys(of_leader, _silence(consumer, leader, error))
    return offsets, missing


def written_ends(
    consumer: KafkaConsumer, partitions: list[TopicPartition], *, timeout_ms: int
) -> dict[TopicPartition, int]:
    """Ends of topic partitions with the messages of open transactions, which ``end_offsets`` leaves out."""
    fetcher = consumer._fetcher
    level, fetcher._isolation_level = fetcher._isolation_level, IsolationLevel.READ_UNCOMMITTED
    try:
        return dict(consumer.end_offsets(partitions, timeout_ms=timeout_ms))
    finally:
        fetcher._isolation_level = level


def leaderless(consumer: KafkaConsumer, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, str]:
    """Partitions without a leader, as far as the client was told, as for ``NoLeaderError``."""
    leader = consumer._cluster.leader_for_partition
    return {tp: "has no leader" for tp in partitions if leader(tp) == NO_LEADER}


def ensure_topic(settings: dict[str, Any], bootstrap: str, topic: str, partitions: int) -> int:
    """Find a topic, and make it if it doesn't exist; returns the number of its partitions.

    Only making it takes the right to do so.

    Args:
        settings: Of ``client_settings``.
        bootstrap: For messages.
        topic: Its name.
        partitions: Of a new topic.

    Raises:
        Failure: No broker answers, the cluster refuses the topic, or the user may not write to it.
    """
    with ExitStack() as stack:
        with kafka_failures(bootstrap, f"looking for topic {topic}", "Write"):
            admin = connected(KafkaAdminClient, settings)
            stack.callback(admin.close)
            description = admin.describe_topics([topic])[0]
            code, rights = description.get("error_code", NONE), description.get("authorized_operations")
            if code == TOPIC_AUTHORIZATION_FAILED or (code == NONE and rights and "WRITE" not in rights):
                raise TopicAuthorizationFailedError(topic)
        if code == NONE and description["partitions"]:
            return len(description["partitions"])
        stack.enter_context(kafka_failures(bootstrap, f"creating topic {topic}", "Create"))
        try:
            admin.create_topics([NewTopic(topic, partitions, replication_factor=_replicas(settings))])
            return partitions
        except TopicAlreadyExistsError:
            return _described(admin, topic)
        except (UnknownBrokerIdError, UnsupportedVersionError):
            # The demo's broker has no controller: it makes a topic when a client asks for it.
            return _asked_for(settings, bootstrap, topic)


def producer_to(kafka: Kafka, topic: str, partitions: int, **more: Any) -> KafkaProducer:
    """A producer for a topic, which is made if it is missing; ``more`` are settings of the client.

    Raises:
        Failure: No broker answers, or the topic can be neither found nor made.
    """
    doing = f"writing to topic {topic}"
    greet(kafka, doing)
    settings = client_settings(kafka)
    ensure_topic(settings, kafka.bootstrap, topic, partitions)
    with kafka_failures(kafka.bootstrap, doing, "Write"):
        return connected(KafkaProducer, settings | WRITING | more)


def send_all(
    producer: KafkaProducer, topic: str, messages: Iterable[tuple[bytes, bytes]], timeout_s: float
) -> int:
    """Send keys and values, and wait until the brokers have all of them; returns their number.

    Raises:
        KafkaError: The brokers don't have one in time, or refuse it.
    """
    sent = [producer.send(topic, value, key=key) for key, value in messages]
    producer.flush(timeout=timeout_s)
    for future in sent:
        future.get(timeout=timeout_s)
    return len(sent)


def _require_described(topic: str, kafka: Kafka) -> None:
    """Check that a topic that was not found is not only hidden from the user: a list of all topics leaves it out."""
    admin = connected(KafkaAdminClient, client_settings(kafka))
    try:
        if admin.describe_topics([topic])[0]["error_code"] == TOPIC_AUTHORIZATION_FAILED:
            raise TopicAuthorizationFailedError(topic)
    finally:
        admin.close()


def _numbers(consumer: KafkaConsumer, topic: str, until_s: float) -> set[int]:
    """Partitions of a topic, empty if it is unknown. A broker that does not answer is no reason: others are asked."""
    while True:
        try:
            return set(consumer.partitions_for_topic(topic))
        except KafkaError as error:
            if not getattr(error, "retriable", False) or time.monotonic() > until_s:
                raise
            time.sleep(METADATA_LOOK_S)


def _silence(consumer: KafkaConsumer, leader: int | None, error: KafkaError) -> str:
    if leader is None or leader == NO_LEADER:
        return "has no leader"
    broker = consumer._cluster.broker_metadata(leader)
    place = f"broker {leader}" if broker is None else f"broker {leader} at {broker.host}:{broker.port}"
    return f"has a leader that does not answer, {place} ({one_line(error)})"


def _described(admin: KafkaAdminClient, topic: str) -> int:
    """The number of a topic's partitions, which brokers may not know of a topic that was just made."""
    deadline = time.monotonic() + METADATA_WAIT_S
    while not (partitions := admin.describe_topics([topic])[0]["partitions"]):
        if time.monotonic() > deadline:
            raise UnknownTopicOrPartitionError(topic)
        time.sleep(METADATA_LOOK_S)
    return len(partitions)


def _replicas(settings: dict[str, Any]) -> int:
    """The cluster's default; brokers before 2.4 can't be asked for it."""
    return 1 if settings.get("api_version", (2, 4)) < (2, 4) else -1


def _asked_for(settings: dict[str, Any], bootstrap: str, topic: str) -> int:
    producer = connected(KafkaProducer, settings)
    try:
        return len(producer.partitions_for(topic))
    finally:
        producer.close()
