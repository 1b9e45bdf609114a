"""Reading topic partitions through one consumer: fair, and never silently past something."""

import time
from pathlib import Path

import pytest
from kafka import KafkaAdminClient, KafkaProducer, TopicPartition
from kafka.errors import SaslAuthenticationFailedError
from streaming import edge, fresh_topic, send, settings
from structlog.testing import capture_logs

from freshet_graph.schemas.config import Kafka, Topic
from freshet_graph.stream.kafka.reader import PartitionReader
from freshet_graph.stream.store.errors import OffsetGapError

pytestmark = pytest.mark.integration


def reader_of(bootstrap: str, topic: str, skipped: list[tuple[str, int]], **more: object) -> PartitionReader:
    kafka = Kafka(bootstrap=bootstrap, topics=[Topic(name=topic)], **more)  # type: ignore[arg-type]
    return PartitionReader(kafka, lambda key: None, lambda name, count: skipped.append((name, count)))


def delete_before(bootstrap: str, topic: str, offset: int) -> None:
    admin = KafkaAdminClient(**settings(bootstrap))
    admin.delete_records({TopicPartition(topic, 0): offset})
    admin.close()


def test_what_one_partition_waits_for_is_not_what_another_brings(kafka: str) -> None:
    topic = fresh_topic(kafka, partitions=2)
    send(kafka, topic, [b"a", b"b"], partition=1)
    reader = reader_of(kafka, topic, [])
    empty = reader.take(topic, 0)
    while not reader.has_waiting:  # a poll brings messages of partition 1, which wait
        empty = reader.take(topic, 0)
    assert (empty.first_offset, empty.end_offset, empty.values.to_pylist()) == (0, 0, [])
    assert reader.has_waiting
    assert reader.idle_s == 0.0
    assert not reader.caught_up()
    full = reader.take(topic, 1)
    assert (full.first_offset, full.end_offset, full.high_watermark) == (0, 2, 2)
    assert full.values.to_pylist() == [b"a", b"b"]
    assert full.offsets.to_pylist() == [0, 1]
    assert reader.caught_up()
    assert reader.lag() == {(topic, 0): 0, (topic, 1): 0}
    reader.close()


def test_what_comes_next_is_fetched_while_other_partitions_wait_to_be_read(kafka: str) -> None:
    topic = fresh_topic(kafka, partitions=2)
    for partition in range(2):
        send(kafka, topic, [b"x" * 1_000] * 200, partition=partition)
    reader = reader_of(kafka, topic, [], max_partition_fetch_bytes=40_000)
    fetched = reader.consumer._fetcher._completed_fetches
    deadline_s = time.monotonic() + 30
    while not len(reader.take(topic, 0).values):
        assert time.monotonic() < deadline_s
    while (partitions := [fetch.topic_partition.partition for fetch in fetched]) != [1, 0]:
        assert time.monotonic() < deadline_s, partitions
        time.sleep(0.01)
    reader.close()


def test_a_client_whose_login_is_refused_is_given_up_and_ends_nothing(
    kafka: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise SaslAuthenticationFailedError("Authentication failed")

    topic = fresh_topic(kafka)
    for of, call in (
        ("KafkaConsumer.poll", lambda reader: reader.take(topic, 0)),
        ("offsets_by_leader", PartitionReader.ask),
    ):
        reader = reader_of(kafka, topic, [])
        assert not reader.given_up
        with monkeypatch.context() as patch:
            patch.setattr(f"freshet_graph.stream.kafka.reader.{of}", refused)
            call(reader)
        assert reader.given_up, "the client would not try again"
        assert "refused the login. Check kafka.sasl_mechanism" in (reader.answers.reason or "")
        reader.close()


def test_messages_deleted_while_running_are_a_gap(kafka: str) -> None:
    topic = fresh_topic(kafka)
    send(kafka, topic, [b"%d" % i for i in range(10)])
    reader = reader_of(kafka, topic, [])
    delete_before(kafka, topic, 6)
    with pytest.raises(OffsetGapError, match=r"begins at offset 6, but the log's next offset is 0"):
        while not len(reader.take(topic, 0).values):
            pass
    assert isinstance(reader.failure, OffsetGapError)
    reader.close()


def test_messages_deleted_while_running_are_skipped_and_counted_on_request(kafka: str) -> None:
    topic = fresh_topic(kafka)
    send(kafka, topic, [b"%d" % i for i in range(10)])
    skipped: list[tuple[str, int]] = []
    reader = reader_of(kafka, topic, skipped, on_gap="skip")
    delete_before(kafka, topic, 6)
    with capture_logs() as told:
        while not len((batch := reader.take(topic, 0)).values):
            pass
    gap = {"event": "gap skipped", "topic": topic, "partition": 0, "offset": 0, "missing": 6}
    assert any(gap.items() <= line.items() for line in told), told
    assert (batch.first_offset, batch.values.to_pylist()) == (6, [b"6", b"7", b"8", b"9"])
    assert skipped == [(topic, 6)]
    reader.close()


def test_aborted_transactions_and_markers_are_holes_that_reading_passes(kafka: str) -> None:
    topic = fresh_topic(kafka)
    producer = KafkaProducer(**settings(kafka), transactional_id=topic)
    producer.init_transactions()
    for value, keep in ((b"kept", True), (b"aborted", False)):
        producer.begin_transaction()
        producer.send(topic, value, partition=0)
        producer.flush()
        producer.commit_transaction() if keep else producer.abort_transaction()
    producer.close()
    reader = reader_of(kafka, topic, [])
    values = []
    deadline = time.monotonic() + 60
    while (batch := reader.take(topic, 0)).end_offset < 4:  # two messages, and a marker for each transaction
        values += batch.values.to_pylist()
        assert time.monotonic() < deadline, f"read up to {batch.end_offset}"
    values += batch.values.to_pylist()
    assert values == [b"kept"]
    assert reader.caught_up()
    assert batch.end_offset == 4
    reader.close()


def test_latest_begins_at_the_end_and_stays_known(kafka: str, tmp_path: Path) -> None:
    from streaming import configuration, run_job

    topic = fresh_topic(kafka)
    content = configuration(tmp_path / "store", kafka, topic, kafka={"start": "latest"})
    send(kafka, topic, [edge(1, 2, 1_100_000_000)])
    assert run_job(content)[0].events == 0
    send(kafka, topic, [edge(2, 3, 1_100_000_001)])  # while no job runs: nothing of it is skipped
    assert run_job(content)[0].events == 1


def test_an_empty_partition_is_known_to_be_quiet_while_another_is_busy(kafka: str) -> None:
    topic = fresh_topic(kafka, partitions=2)
    config, begun_s = Kafka(bootstrap=kafka, topics=[Topic(name=topic)]), time.monotonic()
    reader = PartitionReader(config, lambda key: None, lambda name, count: None, ask_quiet_s=0.2)
    quiet = reader.take(topic, 0).quiet
    assert quiet is not None and quiet.until_s <= quiet.since_s <= time.monotonic() - begun_s
    deadline = time.monotonic() + 90
    while quiet is None or quiet.since_s - quiet.until_s < 1.5:
        assert time.monotonic() < deadline, "its silence is taken for an outage"
        before_s, end = time.monotonic(), reader.take(topic, 1).end_offset
        send(kafka, topic, [b"{}"], partition=1)
        while (busy := reader.take(topic, 1)).end_offset == end:
            quiet = reader.take(topic, 0).quiet
            assert time.monotonic() < deadline
        quiet = reader.take(topic, 0).quiet
        assert busy.quiet is None or busy.quiet.since_s <= time.monotonic() - before_s
    before_s = time.monotonic()
    send(kafka, topic, [b"{}"], partition=0)
    while (batch := reader.take(topic, 0)).end_offset == 0:
        reader.take(topic, 1)
        assert time.monotonic() < deadline
    assert batch.quiet is not None
    assert batch.quiet.since_s <= time.monotonic() - before_s, "a message begins the time anew"
    reader.close()
