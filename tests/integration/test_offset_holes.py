"""Topics with holes: transactions, compaction, tombstones. What a plain consumer reads is what the log holds."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import NewTopic
from running_job import Running, reached
from streaming import T0, configuration, edge, fresh_topic, log_table, run_job, settings, settled, triples

from freshet_graph.schemas.config import StreamConfig
from freshet_graph.stream.kafka.reader import PartitionReader
from freshet_graph.stream.store.log.reader import LogReader

pytestmark = pytest.mark.integration

COMMIT, ABORT, LEAVE_OPEN = "commit", "abort", "leave open"


def transaction(producer: KafkaProducer, topic: str, messages: list[bytes], ending: str) -> None:
    producer.begin_transaction()
    for message in messages:
        producer.send(topic, message, partition=0)
    producer.flush(timeout=30)
    if ending == COMMIT:
        producer.commit_transaction()
    elif ending == ABORT:
        producer.abort_transaction()


def transactional(kafka: str, topic: str) -> KafkaProducer:
    producer = KafkaProducer(**settings(kafka), transactional_id=f"of-{topic}", acks="all")
    producer.init_transactions()
    return producer


def read_next(store: Path) -> int:
    last = LogReader(store).last
    assert last is not None
    (position,) = last.positions
    return position.next


def end_of(kafka: str, topic: str) -> int:
    consumer = KafkaConsumer(**settings(kafka), isolation_level="read_uncommitted")
    tp = TopicPartition(topic, 0)
    end = consumer.end_offsets([tp])[tp]
    consumer.close()
    return int(end)


def test_only_committed_transactions_are_in_the_log_and_their_marks_hold_nothing_up(
    kafka: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, store = fresh_topic(kafka), tmp_path / "store"
    content = configuration(store, kafka, topic)
    producer = transactional(kafka, topic)
    sent: list[tuple[int, int, int, int]] = []
    for k, ending in enumerate([COMMIT, ABORT, COMMIT, ABORT, ABORT]):
        transaction(producer, topic, [edge(k, i, T0 + 10 * k + i) for i in range(4)], ending)
        if ending == COMMIT:
            sent += [(1, k, i, (T0 + 10 * k + i) * 1_000_000) for i in range(4)]
    settled(kafka, topic)
    assert run_job(content)[0].events == 8
    assert triples(log_table(store)) == sent
    assert read_next(store) == end_of(kafka, topic), "behind the last mark, though nothing was read after it"
    assert run_job(content)[0].events == 0

    transaction(producer, topic, [edge(7, i, T0 + 90_000 + i) for i in range(3)], LEAVE_OPEN)
    stable, asked = read_next(store), []
    caught_up = PartitionReader.caught_up

    def counted(reader: PartitionReader) -> bool:
        asked.append(reader.lag())
        return caught_up(reader)

    monkeypatch.setattr(PartitionReader, "caught_up", counted)
    running = Running(StreamConfig(**content), until_idle_s=0.2)
    try:
        reached(lambda: len(asked) > 3 or running.ran)
        assert not running.ran, "what is unread is not idle"
        assert asked[-1] == {(topic, 0): 3}
        assert read_next(store) == stable, "an open transaction is nothing to read"
        producer.commit_transaction()
        running.thread.join(timeout=60)
    finally:
        running.close()
        producer.close()
    assert [(ran.events, ran.idle) for ran in running.ran] == [(3, True)]
    assert read_next(store) == end_of(kafka, topic) == stable + 4


def test_a_compacted_topic_is_read_as_it_is_with_its_tombstones_counted(kafka: str, tmp_path: Path) -> None:
    topic, store = fresh_topic(kafka, stem="unused").replace("unused", "compacted"), tmp_path / "store"
    rules = {
        "cleanup.policy": "compact",
        "segment.ms": "50",
        "min.cleanable.dirty.ratio": "0.01",
        "max.compaction.lag.ms": "100",
    }
    admin = KafkaAdminClient(**settings(kafka))
    admin.create_topics([NewTopic(topic, 1, 1, topic_configs=rules)])
    admin.close()
    content = configuration(store, kafka, topic)
    producer = KafkaProducer(**settings(kafka))

    def put(round_: int) -> None:
        """A round over ten keys: all but one are overwritten by the next round, and one is deleted."""
        for key in range(10):
            value = None if key == 9 else edge(key, round_, T0 + round_ * 100 + key)
            unique = key == 5
            producer.send(topic, value, key=f"{key}-{round_ if unique else ''}".encode(), partition=0)
        producer.flush()
        time.sleep(0.1)  # the next message begins a segment

    def close(round_: int) -> None:
        """One message in a segment of its own, the last, which the cleaner leaves alone: all before it is its work."""
        producer.send(topic, edge(10, round_, T0 + round_ * 100 + 10), key=b"last", partition=0)
        producer.flush()

    for round_ in range(4):
        put(round_)
    close(3)
    before = compacted(
        kafka, topic, leaves=4 + 9 + 1
    )  # every round's of one key, the last of nine, the closing one
    ran, metrics = run_job(content)
    tombstones = [offset for offset, value in before if value is None]
    assert ran.events == len(before) - len(tombstones)
    assert (
        1
        <= len(tombstones)
        == metrics.registry.get_sample_value(
            "freshet_stream_tombstones_total", {"graph": "test", "topic": topic}
        )
    )
    assert read_next(store) == end_of(kafka, topic) == 41
    assert [src for _, src, _, _ in triples(log_table(store))] == [
        src_of(v) for _, v in before if v is not None
    ]

    # Where the log goes on is a hole by then: the messages there were overwritten.
    for round_ in range(4, 8):
        put(round_)
    close(7)
    after = compacted(kafka, topic, leaves=8 + 9 + 2)  # of the two closing ones the last is not looked at
    new = [value for offset, value in after if offset >= 41 and value is not None]
    assert 41 not in [offset for offset, _ in after]
    assert run_job(content)[0].events == len(new)
    assert read_next(store) == end_of(kafka, topic) == 82
    producer.close()


def src_of(value: bytes) -> int:
    return int(json.loads(value)["src"])


def plain(kafka: str, topic: str) -> list[tuple[int, bytes | None]]:
    """Offset and value of all that an ordinary consumer reads."""
    tp = TopicPartition(topic, 0)
    consumer = KafkaConsumer(**settings(kafka), auto_offset_reset="earliest", enable_auto_commit=False)
    consumer.assign([tp])
    consumer.seek_to_beginning()
    end, found = consumer.end_offsets([tp])[tp], []
    while consumer.position(tp) < end:
        found += [
            (record.offset, record.value) for records in consumer.poll(500).values() for record in records
        ]
    consumer.close()
    return found


def compacted(kafka: str, topic: str, *, leaves: int) -> list[tuple[int, Any]]:
    """Wait until the cleaner has nothing more to do; returns what it left."""
    deadline = time.monotonic() + 90
    while len(found := plain(kafka, topic)) > leaves:
        assert time.monotonic() < deadline, f"{len(found)} messages are left"
        time.sleep(0.2)
    return found
