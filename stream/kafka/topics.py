"""Topics and their partitions: which exist, their bounds, and making one."""

import time
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import NewTopic
from kafka.errors import (
    TopicAlreadyExistsError,
    TopicAuthorizationFailedError,
    UnknownBrokerIdError,
    UnknownTopicOrPartitionError,
    UnsupportedVersionError,
)

from schemas.config import Kafka
from stream.kafka.client import WRITING, client_settings, connected, kafka_failures
from stream.kafka.greeting import greet
from stream.service.failure import Failure

NONE, UNKNOWN_TOPIC_OR_PARTITION, TOPIC_AUTHORIZATION_FAILED = 0, 3, 29
"""Kafka's error codes."""

METADATA_WAIT_S = 5.0
"""How long brokers may take to announce a topic that was just made."""

METADATA_LOOK_S = 0.2
"""How often they are asked meanwhile."""


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


def topic_partitions(consumer: KafkaConsumer, topics: list[str], kafka: Kafka) -> list[TopicPartition]:
    """All partitions of the topics, in order of topic and partition.

    Raises:
        Failure: A topic doesn't exist (the sentence names it and those that do), or the user may not describe it.
    """
    found: list[TopicPartition] = []
    for topic in topics:
        deadline = time.monotonic() + METADATA_WAIT_S
        while not (partitions := consumer.partitions_for_topic(topic)):
            if time.monotonic() > deadline:
                _require_described(topic, kafka)
                there = ", ".join(sorted(consumer.topics())[:10]) or "none"
                raise Failure(
                    f"kafka.topics: topic {topic} doesn't exist at {kafka.bootstrap} (existing: {there}). "
                    "Create it or correct its name"
                )
            time.sleep(METADATA_LOOK_S)
        found += [TopicPartition(topic, partition) for partition in sorted(partitions)]
    return found


def bounds(consumer: KafkaConsumer, partitions: list[TopicPartition]) -> list[PartitionBounds]:
    """Ask the brokers where partitions begin and end."""
    starts, ends = consumer.beginning_offsets(partitions), consumer.end_offsets(partitions)
    return [PartitionBounds(tp.topic, tp.partition, starts[tp], ends[tp]) for tp in partitions]


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
            found = admin.describe_topics([topic])[0]
            code, rights = found.get("error_code", NONE), found.get("authorized_operations")
            if code == TOPIC_AUTHORIZATION_FAILED or (code == NONE and rights and "WRITE" not in rights):
                raise TopicAuthorizationFailedError(topic)
        if code == NONE and found["partitions"]:
            return len(found["partitions"])
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
