"""Topics that change under a running job: new partitions, retention, deletion, one made anew under the same name."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient, TopicPartition
from kafka.admin import NewPartitions
from kafka.errors import KafkaTimeoutError, TopicAlreadyExistsError
from running_job import Running, reached, read_of
from streaming import (
    T0,
    configuration,
    edge,
    fresh_topic,
    log_table,
    result,
    run_job,
    send,
    settings,
    started,
    triples,
    written,
)

from freshet_graph.schemas.config import StreamConfig
from freshet_graph.stream.kafka.reader import PartitionReader
from freshet_graph.stream.kafka.topics import ensure_topic
from freshet_graph.stream.metrics import StreamMetrics
from freshet_graph.stream.microbatch import RawBatch
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.store.errors import OffsetGapError
from freshet_graph.stream.store.log.reader import LogReader

pytestmark = pytest.mark.integration

LOOK = {"metadata_refresh_s": 0.3}


def test_new_partitions_are_read_within_seconds_and_from_their_first_message_on(
    kafka: str, tmp_path: Path, admin: KafkaAdminClient
) -> None:
    topic, store = fresh_topic(kafka), tmp_path / "store"
    send(kafka, topic, [edge(0, i, T0 + i) for i in range(5)])  # before the job: not wanted
    content = configuration(store, kafka, topic, kafka=LOOK | {"start": "latest"})
    running = Running(StreamConfig(**content))
    try:
        reached(lambda: read_of(store) == {0: 5})
        admin.create_partitions({topic: NewPartitions(3)})
        reached(lambda: sorted(admin_partitions(admin, topic)) == [0, 1, 2])
        send(kafka, topic, [edge(2, i, T0 + 10 + i) for i in range(4)], partition=2)
        send(kafka, topic, [edge(1, 1, T0 + 20)], partition=0)
        reached(lambda: read_of(store) == {0: 6, 1: 0, 2: 4})
    finally:
        running.close()
    assert [(ran.events, ran.late) for ran in running.ran] == [(5, 0)]
    assert run_job(content)[0].events == 0  # and what was open is sealed
    assert [src for _, src, _, _ in triples(log_table(store))] == [2, 2, 2, 2, 1]

    admin.create_partitions({topic: NewPartitions(4)})
    reached(lambda: len(admin_partitions(admin, topic)) == 4)
    send(kafka, topic, [edge(3, 3, T0 + 90_000)], partition=3)
    assert run_job(content)[0].events == 1, "also those added while no job ran"


def test_a_start_at_the_latest_message_is_in_the_log_at_once_also_of_a_topic_that_comes_later(
    kafka: str, tmp_path: Path
) -> None:
    topics, store = [fresh_topic(kafka), fresh_topic(kafka)], tmp_path / "store"
    for topic in topics:
        send(kafka, topic, [edge(0, i, T0 + i) for i in range(3)])  # before the job: not wanted
    late = {"kafka": {"start": "latest"}, "snapshots": {"commit_every_s": 3_600}}

    def positions() -> dict[str, int]:
        last = LogReader(store).last if (store / "log" / "log.json").exists() else None
        return {each.topic: each.next for each in last.positions} if last else {}

    for known in (topics[:1], topics):
        path = written(tmp_path, configuration(store, kafka, *known, **late))
        job = started("run", "--config", path, log=tmp_path / "out")
        try:
            reached(lambda known=known: positions() == dict.fromkeys(known, 3))  # type: ignore[misc]  # bound here
            for topic in known:
                send(kafka, topic, [edge(1, i, T0 + i) for i in range(5)])
        finally:
            job.kill()
            job.wait()
    assert positions() == dict.fromkeys(topics, 3)
    assert result("run", "--config", path, "--until-idle", "0.5")["events"] == 15


def admin_partitions(admin: KafkaAdminClient, topic: str) -> list[int]:
    parts = admin.describe_topics([topic])[0]["partitions"]
    return [part["partition_index"] for part in parts if part["leader_id"] >= 0]


def in_the_middle(store: Path, count: int, change: Any) -> threading.Thread:
    """Run ``change`` once the log has read so many messages, and the topics have been looked at."""

    def wait() -> None:
        reached(lambda: read_of(store) == {0: count})
        time.sleep(3 * LOOK["metadata_refresh_s"])
        change()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def test_a_topic_deleted_in_mid_run_ends_the_job_with_what_was_read(
    kafka: str, tmp_path: Path, admin: KafkaAdminClient
) -> None:
    topic, store = fresh_topic(kafka), tmp_path / "store"
    send(kafka, topic, [edge(0, i, T0 + i) for i in range(5)])
    thread = in_the_middle(store, 5, lambda: admin.delete_topics([topic]))
    with pytest.raises(Failure, match=f"topic {topic} at .* was deleted while it was being read"):
        run_job(configuration(store, kafka, topic, kafka=LOOK), until_idle_s=60)
    thread.join()
    assert read_of(store) == {0: 5}


def test_a_topic_made_anew_in_mid_run_is_not_read_on(
    kafka: str, tmp_path: Path, admin: KafkaAdminClient
) -> None:
    topic, store = fresh_topic(kafka), tmp_path / "store"
    send(kafka, topic, [edge(0, i, T0 + i) for i in range(5)])

    thread = in_the_middle(store, 5, lambda: made_again(kafka, admin, topic))
    with pytest.raises((OffsetGapError, Failure), match=r"made again|was deleted while"):
        run_job(configuration(store, kafka, topic, kafka=LOOK), until_idle_s=60)
    thread.join()
    assert read_of(store) == {0: 5}


def made_again(kafka: str, admin: KafkaAdminClient, topic: str) -> None:
    admin.delete_topics([topic])
    while True:
        try:
            ensure_topic(settings(kafka), kafka, topic, 1)
            return
        except TopicAlreadyExistsError:
            time.sleep(0.02)


def test_a_topic_made_again_is_not_read_also_where_the_first_look_at_its_id_fails(
    kafka: str, tmp_path: Path, admin: KafkaAdminClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, store = fresh_topic(kafka), tmp_path / "store"
    send(kafka, topic, [edge(0, i, T0 + i) for i in range(5)])
    content = configuration(store, kafka, topic)
    run_job(content)
    made_again(kafka, admin, topic)
    send(kafka, topic, [edge(9, i, T0 + i) for i in range(10)])
    looks, describe = [], KafkaAdminClient.describe_topics

    def fails_first(self: KafkaAdminClient, topics: list[str]) -> Any:
        looks.append(topics)
        if len(looks) == 1:
            raise KafkaTimeoutError
        return describe(self, topics)

    monkeypatch.setattr(KafkaAdminClient, "describe_topics", fails_first)
    with pytest.raises(OffsetGapError, match="was deleted and made again since the log read it"):
        run_job(content)
    assert len(looks) > 1
    assert read_of(store) == {0: 5}


@pytest.fixture
def paused(monkeypatch: pytest.MonkeyPatch) -> Callable[[], AbstractContextManager[None]]:
    """Inside of it nothing is polled, as when a disk is slow."""
    event, take = threading.Event(), PartitionReader.take

    def wait(self: PartitionReader, topic: str, partition: int) -> RawBatch:
        while event.is_set():
            time.sleep(0.02)
        return take(self, topic, partition)

    @contextmanager
    def pause() -> Iterator[None]:
        event.set()
        try:
            time.sleep(0.6)  # a fetch that is under way comes back
            yield
        finally:
            event.clear()

    monkeypatch.setattr(PartitionReader, "take", wait)
    return pause


def test_nothing_of_a_topic_made_anew_is_committed_before_its_id_is_looked_at(
    kafka: str, tmp_path: Path, admin: KafkaAdminClient, paused: Callable[[], AbstractContextManager[None]]
) -> None:
    """Nobody looks between commits, and it is longer than what was read when it is first read from."""
    topic, store = fresh_topic(kafka), tmp_path / "store"
    send(kafka, topic, [edge(0, i, T0 + i) for i in range(5)])

    def longer() -> None:
        with paused():
            made_again(kafka, admin, topic)
            send(kafka, topic, [edge(9, i, T0 + i) for i in range(20)])

    content = configuration(store, kafka, topic, kafka={"metadata_refresh_s": 3_600})
    thread = in_the_middle(store, 5, longer)
    try:
        with pytest.raises(OffsetGapError, match="made again"):
            run_job(content, until_idle_s=10)
    finally:
        thread.join()
    assert read_of(store) == {0: 5}


@pytest.mark.parametrize("on_gap", ["fail", "skip"])
def test_retention_that_overtakes_a_running_job(
    kafka: str,
    tmp_path: Path,
    admin: KafkaAdminClient,
    paused: Callable[[], AbstractContextManager[None]],
    on_gap: str,
) -> None:
    topic, store = fresh_topic(kafka), tmp_path / "store"
    send(kafka, topic, [edge(0, i, T0 + i) for i in range(5)])

    def overtake() -> None:
        with paused():
            send(kafka, topic, [edge(1, i, T0 + 100 + i) for i in range(20)])
            admin.delete_records({TopicPartition(topic, 0): 17})

    content = configuration(store, kafka, topic, kafka=LOOK | {"on_gap": on_gap})
    thread = in_the_middle(store, 5, overtake)
    try:
        if on_gap == "fail":
            with pytest.raises(OffsetGapError, match=r"begins at offset 17, .* next offset is 5.* 12 unread"):
                run_job(content, until_idle_s=60)
            assert read_of(store) == {0: 5}
        else:
            ran, metrics = run_job(content, until_idle_s=4)
            assert (ran.events, read_of(store)) == (13, {0: 25})
            assert gaps(metrics, topic) == 12
    finally:
        thread.join()


def gaps(metrics: StreamMetrics, topic: str) -> float | None:
    labels = {"graph": "test", "topic": topic}
    return metrics.registry.get_sample_value("freshet_stream_gap_offsets_total", labels)
