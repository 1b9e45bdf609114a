"""What a consumer reads in columns is what the same client reads message by message, from a real broker."""

from typing import Any

import confluent_kafka
import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from streaming import fresh_topic, settings, settled

from freshet_graph.schemas.config import Kafka, Topic
from freshet_graph.stream.kafka.reader import open_consumer
from freshet_graph.stream.kafka.records import read_columns

pytestmark = pytest.mark.integration

Pairs = list[tuple[int, bytes | None]]


def consumer(bootstrap: str, topic: str) -> tuple[KafkaConsumer, TopicPartition, int]:
    reading = open_consumer(Kafka(bootstrap=bootstrap, topics=[Topic(name=topic)]))
    place = TopicPartition(topic, 0)
    reading.assign([place])
    reading.seek(place, 0)
    return reading, place, reading.end_offsets([place])[place]


def one_by_one(bootstrap: str, topic: str) -> tuple[Pairs, int]:
    reading, place, end = consumer(bootstrap, topic)
    found: Pairs = []
    while reading.position(place) < end:
        found += [(record.offset, record.value) for record in reading.poll(500).get(place, [])]
    reading.close()
    return found, end


def in_columns(bootstrap: str, topic: str, limit: int) -> tuple[Pairs, int]:
    reading, place, end = consumer(bootstrap, topic)
    read_columns(reading, limit)
    found: Pairs = []
    while reading.position(place) < end:
        for part in reading.poll(500, max_records=1).get(place, []):
            assert len(part) <= limit
            found += list(zip(part.offsets.to_pylist(), part.values.to_pylist(), strict=True))
    reading.close()
    return found, end


def produce(bootstrap: str, topic: str, **options: Any) -> None:
    """Values, tombstones, keys and headers in many small batches, one transaction of three given up."""
    transactional = "transactional_id" in options
    producer = KafkaProducer(**settings(bootstrap), linger_ms=1, batch_size=2_000, **options)
    if transactional:
        producer.init_transactions()
    for turn in range(3):
        if transactional:
            producer.begin_transaction()
        for i in range(500):
            value = None if i % 50 == 7 else f"{turn}-{i}".encode() * (1 + i % 9)
            producer.send(topic, value, key=b"k%d" % i, headers=[("h", b"x")], partition=0)
        producer.flush(timeout=30)
        if transactional:
            producer.abort_transaction() if turn == 1 else producer.commit_transaction()
    producer.close()
    settled(bootstrap, topic)


def test_batches_of_every_codec_of_another_client_are_read(kafka):
    topic, sent = fresh_topic(kafka), []
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": kafka, "compression.type": codec, "linger.ms": 50}
        )
        for i in range(300):
            sent.append(f"{codec}-{i}".encode() * 20)
            producer.produce(topic, sent[-1], partition=0)
        assert producer.flush(30) == 0
    assert in_columns(kafka, topic, 100_000) == (list(enumerate(sent)), len(sent))


@pytest.mark.parametrize(
    "options", [{}, {"compression_type": "gzip"}, {"transactional_id": "columns"}], ids=["plain", "gzip", "transactions"]
)  # fmt: skip
def test_columns_are_what_the_client_reads(kafka, options):
    topic = fresh_topic(kafka)
    produce(kafka, topic, **options)
    plain, end = one_by_one(kafka, topic)
    assert len(plain) == (1_000 if "transactional_id" in options else 1_500)
    for limit in (137, 100_000):
        assert in_columns(kafka, topic, limit) == (plain, end)
