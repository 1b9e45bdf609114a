"""Topics and their partitions: which exist, their bounds, and making one."""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import NewTopic
from kafka.errors import (
    TopicAlreadyExistsError,
    UnknownBrokerIdError,
    UnknownTopicOrPartitionError,
    UnsupportedVersionError,
)

from schemas.config import Kafka
from stream.kafka.client import WRITING, client_settings, connected, kafka_failures
from stream.kafka.greeting import greet
from stream.service.failure import Failure

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


def topic_partitions(consumer: KafkaConsumer, topics: list[str], bootstrap: str) -> list[TopicPartition]:
    """All partitions of the topics, in order of topic and partition.

    Raises:
        Failure: A topic doesn't exist; the sentence names it and those that do.
    """
    found: list[TopicPartition] = []
    for topic in topics:
        deadline = time.monotonic() + METADATA_WAIT_S
        while not (partitions := consumer.partitions_for_topic(topic)):
            if time.monotonic() > deadline:
                there = ", ".join(sorted(consumer.topics())[:10]) or "none"
                raise Failure(
                    f"kafka.topics: topic {topic} doesn't exist at {bootstrap} (existing: {there}). "
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
    """Make a topic unless it exists; returns the number of its partitions.

    Args:
        settings: Of ``client_settings``.
        bootstrap: For messages.
        topic: Its name.
        partitions: Of a new topic.

    Raises:
        Failure: No broker answers, or the cluster refuses the topic.
    """
    with kafka_failures(bootstrap, f"creating topic {topic}"):
        admin = connected(KafkaAdminClient, settings)
        try:
            admin.create_topics([NewTopic(topic, partitions, replication_factor=_replicas(settings))])
            return partitions
        except TopicAlreadyExistsError:
            return _described(admin, topic)
        except (UnknownBrokerIdError, UnsupportedVersionError):
            # The demo's broker has no controller: it makes a topic when a client asks for it.
            return _asked_for(settings, bootstrap, topic)
        finally:
            admin.close()


def producer_to(kafka: Kafka, topic: str, partitions: int, **more: Any) -> KafkaProducer:
    """A producer for a topic, which is made if it is missing; ``more`` are settings of the client.

    Raises:
        Failure: No broker answers, or the topic can be neither found nor made.
    """
    doing = f"writing to topic {topic}"
    greet(kafka, doing)
    settings = client_settings(kafka)
    ensure_topic(settings, kafka.bootstrap, topic, partitions)
    with kafka_failures(kafka.bootstrap, doing):
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
