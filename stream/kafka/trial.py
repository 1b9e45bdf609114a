"""The newest messages of a topic, read without a group and without a trace."""

import time
from typing import Any

import pyarrow as pa
from kafka import TopicPartition

from freshet_graph.schemas.config import Kafka
from freshet_graph.stream.kafka.client import kafka_failures
from freshet_graph.stream.kafka.reader import open_consumer
from freshet_graph.stream.kafka.records import beside
from freshet_graph.stream.kafka.topics import bounds, topic_partitions
from freshet_graph.stream.microbatch import RawBatch
from freshet_graph.stream.service.failure import Failure

WAIT_S = 10.0
"""How long the brokers have to send the messages."""


class NoMessagesError(Failure):
    """The topic is empty."""


def newest(kafka: Kafka, topic: str, messages: int) -> list[RawBatch]:
    """The newest messages of a topic, as many of each partition as of the others, as polls with all that is beside them.

    Raises:
        NoMessagesError: The topic has no messages.
        Failure: No broker answers, or the topic doesn't exist.
    """
    consumer = open_consumer(kafka)
    try:
        with kafka_failures(kafka.bootstrap, f"reading topic {topic}", "Read"):
            partitions = topic_partitions(consumer, [topic], kafka)
            ends = bounds(consumer, partitions)
            share = -(-messages // len(partitions))
            wanted = {
                TopicPartition(topic, one.partition): (max(one.log_start, one.end - share), one.end)
                for one in ends
                if one.end > one.log_start
            }
            if not wanted:
                raise NoMessagesError(f"topic {topic} at {kafka.bootstrap} has no messages. Send some first")
            consumer.assign(list(wanted))
            for tp, (start, _) in wanted.items():
                consumer.seek(tp, start)
            records: dict[TopicPartition, list[Any]] = {tp: [] for tp in wanted}
            until_s = time.monotonic() + WAIT_S
            while time.monotonic() < until_s and any(
                consumer.position(tp) < end for tp, (_, end) in wanted.items()
            ):
                for tp, some in consumer.poll(timeout_ms=200).items():
                    records[tp] += [record for record in some if record.offset < wanted[tp][1]]
    finally:
        consumer.close(autocommit=False)
    headers = {name for some in records.values() for record in some for name, _ in record.headers}
    columns = ["$timestamp", "$key", *(f"$headers.{name}" for name in sorted(headers))]
    return [
        RawBatch(
            topic=topic,
            partition=tp.partition,
            first_offset=wanted[tp][0],
            end_offset=wanted[tp][1],
            high_watermark=wanted[tp][1],
            offsets=pa.array([record.offset for record in some], pa.int64()),
            values=pa.array([record.value for record in some], pa.large_binary()),
            beside=beside(some, columns),
        )
        for tp, some in records.items()
        if some
    ]
