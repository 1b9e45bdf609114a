"""Brokers that die or hang under a running job: it waits, says so, is not idle, and goes on when they are back."""

import signal
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from decoding import message_format
from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import NewTopic
from kafka.errors import KafkaError
from kafka_broker import free_addresses
from own_broker import Own
from running_job import Running, ended_by, endpoint, get, reached, read_of
from streaming import (
    T0,
    configuration,
    edge,
    expected,
    fresh_topic,
    interactions,
    log_table,
    send,
    settings,
    started,
    triples,
    written,
)
from structlog.testing import capture_logs

from freshet_graph.schemas.config import StreamConfig
from freshet_graph.stream.decode.files import read_events
from freshet_graph.stream.kafka import reader
from freshet_graph.stream.kafka.producer import replay
from freshet_graph.stream.store.log.reader import LogReader

pytestmark = pytest.mark.integration


def test_a_killed_broker_shows_in_readiness_seals_nothing_and_is_found_again_at_another_address(
    own: Own, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "RECONNECT_S", 2.0)
    topic, elsewhere = fresh_topic(own.address), free_addresses(["second"])["second"]
    bootstrap = f"{own.address},{elsewhere}"
    send(own.address, topic, [edge(1, i, T0 + i) for i in range(5)])
    idle = {"idle_timeout_s": 6.0, "idle_seal_s": 2.0}
    config = StreamConfig(**configuration(tmp_path / "store", bootstrap, topic, cycle_s=2.0, snapshots=idle))
    with capture_logs() as logs:
        running = Running(config)
        try:
            reached(lambda: running.ready() == (200, "ready"))
            reached(
                lambda: (last := LogReader(tmp_path / "store").last) is not None and last.tail_events == 5
            )
            own.signal(signal.SIGKILL)
            away = (
                f"no broker of {bootstrap} has answered for ",
                "no answer for ",
            )  # before a reason is known, and then
            reached(lambda: running.ready()[1].startswith(away))
            assert running.ready()[0] == 503
            reached(lambda: f"{elsewhere} (connection refused)" in running.ready()[1])  # both were asked
            assert running.thread.is_alive()
            assert LogReader(tmp_path / "store").snapshots == [], "silence of brokers is not idleness"
            own.resume(elsewhere)
            send(elsewhere, topic, [edge(2, i, T0 + 5 + i) for i in range(3)])
            reached(lambda: read_of(tmp_path / "store") == {0: 8})
        finally:
            running.close()
    assert [(ran.idle, ran.events) for ran in running.ran] == [(False, 8)]
    told = outages(logs)
    assert told[-1] == BACK, "once an outage"
    assert {line["bootstrap"] for line in logs if line["event"] == OUT} == {bootstrap}


@pytest.mark.slow  # starts three brokers
def test_a_partition_without_a_leader_is_named_and_waited_for_before_the_start_and_while_running(
    pair: tuple[Own, Own], tmp_path: Path
) -> None:
    (first, second), topic, store = pair, "edges", tmp_path / "store"
    admin = KafkaAdminClient(**settings(first.address))
    admin.create_topics([NewTopic(topic, replica_assignments={0: [1], 1: [2]})])
    reached(lambda: leaders(admin, topic) == {0: 1, 1: 2})
    for partition in (0, 1):
        send(first.address, topic, [edge(partition, i, T0 + i) for i in range(5)], partition=partition)
    second.signal(signal.SIGKILL)
    reached(lambda: leaders(admin, topic) == {0: 1, 1: -1})
    path, log = written(tmp_path, configuration(store, first.address, topic, cycle_s=1.0)), tmp_path / "log"
    job = started("run", "--config", path, log=log)
    try:
        ready, told = f"{endpoint(log)}/readyz", f"topic {topic} partition 1 has no leader. Start the brokers"
        reached(lambda: get(ready).startswith(told))
        assert read_of(store) == {}
        second.resume()
        reached(lambda: read_of(store) == {0: 5, 1: 5} and get(ready) == "ready\n")
        second.signal(signal.SIGKILL)
        reached(lambda: get(ready).startswith(told))
        for end in (6, 7, 8):  # and cycles end meanwhile
            send(first.address, topic, [edge(0, end, T0 + 10 + end)], partition=0)
            reached(lambda end=end: read_of(store) == {0: end, 1: 5})  # type: ignore[misc]  # bound here
        assert get(ready).startswith(told)
        ended_by(job, log)
    finally:
        job.kill()
        admin.close()


def leaders(admin: KafkaAdminClient, topic: str) -> dict[int, int]:
    try:
        parts = admin.describe_topics([topic])[0]["partitions"]
    except KafkaError:  # it asked the broker that was killed
        return {}
    return {part["partition_index"]: part["leader_id"] for part in parts}


OUT, BACK = "no broker answers, waiting for them", "brokers answer again"


def outages(logs: Sequence[Mapping[str, Any]]) -> list[str]:
    """What was told of them: each begins once and ends once, also one that a busy machine only feigns."""
    told = [str(line["event"]) for line in logs if line["event"] in (OUT, BACK)]
    assert told == [OUT, BACK] * (len(told) // 2) + [OUT] * (len(told) % 2)
    return told


def test_a_broker_that_hangs_is_not_idle_and_the_job_goes_on_after_it(own: Own, tmp_path: Path) -> None:
    topic = fresh_topic(own.address)
    send(own.address, topic, [edge(1, i, T0 + i) for i in range(5)])
    producer = KafkaProducer(**settings(own.address))
    producer.send(topic, b"{", partition=0).get(timeout=30)  # it is connected
    config = StreamConfig(**configuration(tmp_path / "store", own.address, topic))
    with capture_logs() as logs:
        running = Running(config, until_idle_s=4.0)
        try:
            reached(lambda: running.ready() == (200, "ready"))
            own.signal(signal.SIGSTOP)
            try:
                reached(lambda: running.ready()[0] == 503)
                threading.Event().wait(6)  # longer than it takes to be idle
                assert running.thread.is_alive(), "brokers that don't answer are not idle"
                for i in range(3):  # on their way when it goes on
                    producer.send(topic, edge(2, i, T0 + 10 + i), partition=0)
            finally:
                own.signal(signal.SIGCONT)
            producer.flush(timeout=60)
            running.thread.join(timeout=60)
        finally:
            running.close()
            producer.close()
    assert [(ran.idle, ran.events) for ran in running.ran] == [(True, 8)]
    told = outages(logs)
    assert OUT in told and told[-1] == BACK


def test_a_broker_that_restarts_in_mid_stream_costs_no_event_and_doubles_none(
    own: Own, tmp_path: Path
) -> None:
    file = interactions(tmp_path / "events.parquet", events=3_000)
    topic = fresh_topic(own.address)
    events = read_events(tmp_path / "events.parquet").events
    options = {
        "settings": settings(own.address),
        "bootstrap": own.address,
        "topic": topic,
        "rate": 500.0,
        "message_format": message_format("json"),
    }
    producer = threading.Thread(target=replay, args=(events,), kwargs=options)
    # Cycles end in the outage, too.
    config = StreamConfig(**configuration(tmp_path / "store", own.address, topic, cycle_s=1.0))
    running = Running(config, until_idle_s=5.0)
    try:
        producer.start()
        reached(lambda: running.totals.events > 500)
        own.signal(signal.SIGKILL)
        reached(lambda: running.ready()[0] == 503)
        threading.Event().wait(2)
        before = running.totals.events
        assert before < 3_000, "it restarts in mid-stream"
        own.resume()
        producer.join(120)
        running.thread.join(120)
    finally:
        running.close()
    assert [(ran.idle, ran.events, ran.late) for ran in running.ran] == [(True, 3_000, 0)]
    assert triples(log_table(tmp_path / "store")) == expected(file)
