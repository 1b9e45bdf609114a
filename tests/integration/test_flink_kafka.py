"""What Kafka does to a job on Flink: logins, partitions that are added, retention, and topics that are made anew."""

import json
import os
import re
import signal
import urllib.request
from pathlib import Path

import pytest
from flink_server import flink, worker_pool  # noqa: F401  a fixture
from kafka import KafkaAdminClient, TopicPartition
from kafka.admin import NewPartitions
from on_flink import on_flink
from running_job import reached
from secure_broker import PASSWORD, SecureBroker
from streaming import (
    T0,
    command,
    configuration,
    edge,
    fresh_topic,
    send,
    settings,
    started,
    written,
)

from freshet_graph.stream.kafka.topics import ensure_topic
from freshet_graph.stream.store.log.reader import LogReader
from freshet_graph.stream.store.verify.store import verify

pytestmark = [pytest.mark.integration, pytest.mark.slow]

SETTING = "FRESHET_STREAM_KAFKA__SASL_PASSWORD"


def read_of(store: Path) -> dict[int, int]:
    """Next offset by partition, as far as the log is."""
    last = LogReader(store).last if (store / "log" / "log.json").exists() else None
    return {position.partition: position.next for position in last.positions} if last else {}


def edges(src: int, count: int, t: float) -> list[bytes | None]:
    return [edge(src, i, t + i) for i in range(count)]


def skipped_by_workers(pool_log: Path, topic: str) -> float:
    """What the workers that serve metrics have counted of gaps."""
    total = 0.0
    for url in set(
        re.findall(r'"event": ?"metrics".*?"url": ?"(http[^"]+)"', pool_log.read_text(errors="replace"))
    ):
        try:
            with urllib.request.urlopen(f"{url}/metrics", timeout=5) as answer:
                text = answer.read().decode()
        except OSError:  # of a worker that has ended
            continue
        found = re.search(
            rf'^freshet_stream_gap_offsets_total{{.*topic="{topic}".*}} (\S+)$', text, re.MULTILINE
        )
        total += float(found.group(1)) if found else 0.0
    return total


def test_a_login_new_partitions_a_gap_and_a_topic_made_anew(
    secure: SecureBroker,
    flink: str,  # noqa: F811
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain, store, log, pool_log = (
        secure.addresses["PLAIN"],
        tmp_path / "store",
        tmp_path / "run.log",
        tmp_path / "pool.log",
    )
    topic = fresh_topic(plain, partitions=2)
    admin = KafkaAdminClient(**settings(plain))
    keys = secure.login("SCRAM-SHA-512", on_gap="skip", metadata_refresh_s=0.5, dead_letters=f"{topic}.dead")
    del keys["sasl_password"]
    given = {
        SETTING: PASSWORD
    }  # the only place where it is: the environment of the submitter and of the workers
    monkeypatch.setenv(SETTING, PASSWORD)  # a worker pool's
    with worker_pool(pool_log) as (address, pool):
        runner = on_flink(flink, environment=f"external:{address}")
        content = configuration(store, keys["bootstrap"], topic, kafka=keys, runner=runner)
        path = written(tmp_path, content)
        send(plain, topic, [*edges(0, 4, T0), b"{"])
        first = command("run", "--config", path, "--until-idle", "1", "--json", secrets=given)
        assert first.returncode == 0, first.stderr
        assert read_of(store) == {0: 5, 1: 0}

        send(plain, topic, edges(0, 20, T0 + 86_500))
        admin.delete_records({TopicPartition(topic, 0): 20})  # 15 that nobody has read
        job = started("run", "--config", path, "--json", log=log, secrets=given)
        try:
            reached(lambda: read_of(store) == {0: 25, 1: 0})
            reached(lambda: skipped_by_workers(pool_log, topic) == 15)
            admin.create_partitions({topic: NewPartitions(3)})
            reached(lambda: log.read_text().count('"submitted"') == 2)
            send(plain, topic, edges(2, 3, T0 + 86_600), partition=2)
            reached(lambda: read_of(store) == {0: 25, 1: 0, 2: 3})
            listed = " ".join(
                " ".join(process.cmdline()) for process in [pool, *pool.children(recursive=True)]
            )
            job.send_signal(signal.SIGTERM)
            assert job.wait(90) == 0, log.read_text()
        finally:
            job.kill()
            job.wait()
    ran = json.loads(log.read_text().splitlines()[-1])
    assert (ran["events"], ran["late"], ran["ended"]) == (5 + 3, 0, "stopped")
    last = LogReader(store).last
    assert last is not None
    assert (last.tail_events, last.refused, [*last.topic_ids]) == (8, {"not_json": 1}, [topic])
    assert verify(store).problems == []

    admin.delete_topics([topic])
    reached(lambda: topic not in admin.list_topics())
    admin.close()
    ensure_topic(settings(plain), plain, topic, 3)
    for partition in range(3):
        send(plain, topic, edges(9, 30, T0), partition=partition)
    anew = command("run", "--config", path, "--until-idle", "1", secrets=given)
    assert anew.returncode == 1
    assert f"topic {topic}" in anew.stderr and "made again" in anew.stderr
    assert LogReader(store).positions[topic, 0].next == 25

    texts = [first.stdout + first.stderr + anew.stdout + anew.stderr, listed]
    servers = [
        Path(folder) / name for folder, _, names in os.walk(tmp_path_factory.getbasetemp()) for name in names
    ]
    texts += [
        file.read_bytes().decode(errors="replace")
        for file in servers
        if "flink" in str(file) or file.is_relative_to(tmp_path)
    ]
    assert len(texts) > 4
    assert not any(PASSWORD in text for text in texts)
