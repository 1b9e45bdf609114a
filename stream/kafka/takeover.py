"""Where Kafka takes over from a log's history: the ends of its topics, and whether they reach back far enough."""

from collections.abc import Collection

from kafka import TopicPartition

from freshet_graph.schemas.config import Kafka
from freshet_graph.schemas.events import US_PER_S, show_time
from freshet_graph.schemas.store import Key
from freshet_graph.stream.kafka.client import kafka_failures
from freshet_graph.stream.kafka.reader import open_consumer
from freshet_graph.stream.kafka.topics import PartitionBounds, bounds, read_topics, topic_partitions
from freshet_graph.stream.store.errors import OffsetGapError

_US_PER_MS = US_PER_S // 1000


def topic_bounds(kafka: Kafka) -> list[PartitionBounds]:
    """All partitions of the configured topics, and their current bounds.

    Raises:
        Failure: No broker answers, or a topic doesn't exist.
    """
    consumer = open_consumer(kafka)
    try:
        with kafka_failures(
            kafka.bootstrap, f"asking for topics {', '.join(topic.label for topic in kafka.topics)}"
        ):
            return bounds(consumer, topic_partitions(consumer, read_topics(consumer, kafka), kafka))
    finally:
        consumer.close(autocommit=False)


def require_reach(kafka: Kafka, partitions: Collection[Key], until_us: int) -> None:
    """Check that retention has kept everything since a time, as far as the messages' own timestamps tell.

    A partition with its first message is complete. Any other must begin with a message from before the time, or the
    deleted messages may be neither in the history nor in Kafka.

    Raises:
        OffsetGapError: One begins later.
        Failure: No broker answers.
    """
    consumer = open_consumer(kafka)
    try:
        wanted = [TopicPartition(*key) for key in partitions]
        with kafka_failures(kafka.bootstrap, "asking for the first messages of the topics"):
            begun = {
                TopicPartition(b.topic, b.partition): b
                for b in bounds(consumer, wanted)
                if 0 < b.log_start < b.end
            }
            first = consumer.offsets_for_times(dict.fromkeys(begun, 0)) if begun else {}
    finally:
        consumer.close(autocommit=False)
    for tp, message in first.items():
        if message is not None and message.timestamp * _US_PER_MS > until_us:
            raise OffsetGapError(
                f"topic {tp.topic} partition {tp.partition} at {kafka.bootstrap} begins at offset "
                f"{begun[tp].log_start} with a message of {show_time(message.timestamp * _US_PER_MS)}, but the history "
                f"ends at {show_time(until_us)}: retention deleted the messages between them. Give files that reach "
                "further, or set kafka.on_gap: skip to do without these messages"
            )
