"""Other people's tools beside ours: kcat and Kafka's console producer write events, Kafka's own tools see the lag."""

import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer
from running_job import Running, reached, read_of
from streaming import T0, configuration, edge, fresh_topic, log_table, run_job, send, settings
from structlog.testing import capture_logs

from freshet_graph.schemas.config import StreamConfig
from freshet_graph.stream.job.loop import StreamJob
from freshet_graph.stream.metrics import StreamMetrics
from freshet_graph.stream.store.log.reader import LogReader

pytestmark = pytest.mark.integration

TOOL = Path(__file__).parents[2] / "deploy" / "kafka" / "tool.py"


def kafka_tool(name: str, kafka: str, *options: str, given: bytes = b"") -> str:
    """Run one of Kafka's own tools; returns what it printed."""
    command = [sys.executable, str(TOOL), name, "--bootstrap-server", kafka, *options]
    done = subprocess.run(command, input=given, capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def described(text: str, topic: str) -> dict[int, tuple[int, int, int]]:
    """Partition: (current offset, end offset, lag), as kafka-consumer-groups --describe prints them."""
    lines = [line.split() for line in text.splitlines()]
    columns = next(line for line in lines if "LOG-END-OFFSET" in line)
    rows = [dict(zip(columns, line, strict=False)) for line in lines if topic in line]
    return {
        int(row["PARTITION"]): (int(row["CURRENT-OFFSET"]), int(row["LOG-END-OFFSET"]), int(row["LAG"]))
        for row in rows
    }


def lines_of(count: int, first: int = 0) -> bytes:
    return b"".join(edge(i, "café"[i % 4], T0 + i, weight=0.5) + b"\n" for i in range(first, first + count))


def logged(content: dict[str, Any]) -> list[tuple[str, str, int]]:
    table = log_table(Path(content["store"]))
    return [
        (row["src"], row["dst"], row["t"] // 1_000_000 - T0)
        for row in table.select(["src", "dst", "t"]).to_pylist()
    ]


def text_ids(content: bytes) -> bytes:
    """The same lines with strings for ids."""
    return content.replace(b'"src": ', b'"src": "').replace(b', "dst"', b'", "dst"')


EXPECTED = [(str(i), "café"[i % 4], i) for i in range(300)]


def test_kcat_writes_events(kafka: str, tmp_path: Path) -> None:
    if shutil.which("kcat") is None:
        pytest.skip("kcat is not installed")
    topic = fresh_topic(kafka)
    subprocess.run(
        ["kcat", "-P", "-b", kafka, "-t", topic], input=text_ids(lines_of(300)), check=True, timeout=60
    )
    # A key and nothing else is a tombstone: counted, and skipped.
    subprocess.run(
        ["kcat", "-P", "-b", kafka, "-t", topic, "-K", ":", "-Z"], input=b"gone:\n", check=True, timeout=60
    )
    content = configuration(tmp_path / "store", kafka, topic, ids="string")
    ran, metrics = run_job(content)
    assert (ran.events, ran.refused, ran.late) == (300, 0, 0)
    assert logged(content) == EXPECTED
    tombstones = {"graph": "test", "topic": topic}
    assert metrics.registry.get_sample_value("freshet_stream_tombstones_total", tombstones) == 1


def test_kafkas_console_producer_writes_events_and_its_group_tool_sees_the_lag(
    kafka: str, tmp_path: Path
) -> None:
    topic, group = fresh_topic(kafka), f"watched-{tmp_path.name}"
    kafka_tool("console-producer", kafka, "--topic", topic, given=text_ids(lines_of(300)))
    content = configuration(tmp_path / "store", kafka, topic, ids="string", kafka={"group": group})
    ran, _ = run_job(content)
    assert (ran.events, ran.refused, ran.late) == (300, 0, 0)
    assert logged(content) == EXPECTED
    send(kafka, topic, [edge("a", "b", T0)] * 70)
    told = kafka_tool("consumer-groups", kafka, "--describe", "--group", group)
    assert described(told, topic) == {0: (300, 370, 70)}


def test_a_group_that_a_consumer_is_a_member_of_is_named_once_and_stops_nothing(
    kafka: str, tmp_path: Path
) -> None:
    topic, store = fresh_topic(kafka), tmp_path / "store"
    group = f"held-{tmp_path.name}"
    # A consumer whose first look comes before the broker knows the topic would look again after five minutes.
    member = KafkaConsumer(topic, **settings(kafka), group_id=group, metadata_max_age_ms=500)
    try:
        reached(lambda: member.poll(timeout_ms=100) or member.assignment())
        with capture_logs() as logs:
            running = Running(StreamConfig(**configuration(store, kafka, topic, kafka={"group": group})))
            try:
                for end in (1, 2):
                    send(kafka, topic, [edge(0, end, T0 + end)])
                    reached(lambda end=end: read_of(store) == {0: end})  # type: ignore[misc]  # bound here
            finally:
                running.close()
    finally:
        member.close(autocommit=False)
    told = [line for line in logs if line["log_level"] in ("warning", "error")]
    assert [(line["event"], line["group"]) for line in told] == [
        ("the consumer group has a member, so its offsets are not set", group)
    ]


def test_group_offsets_follow_every_commit_of_an_interval_that_stays_open(kafka: str, tmp_path: Path) -> None:
    topic, group = fresh_topic(kafka, partitions=2), f"followed-{tmp_path.name}"
    content = configuration(tmp_path / "store", kafka, topic, kafka={"group": group})
    config = StreamConfig(**content)
    job = StreamJob(config, StreamMetrics(config))
    thread = threading.Thread(target=job.run)
    thread.start()
    admin = KafkaAdminClient(**settings(kafka))

    def committed() -> list[int]:
        """Next offsets of both partitions in the log's newest commit."""
        begun = any((tmp_path / "store" / "log" / "commits").glob("*.json"))
        last = LogReader(tmp_path / "store").last if begun else None
        return [] if last is None else [p.next for p in last.positions if p.topic == topic]

    def told() -> list[int]:
        """The same as Kafka knows it."""
        offsets = admin.list_group_offsets(group)
        found = {tp.partition: meta.offset for tp, meta in offsets.get(group, offsets).items()}
        return [found[partition] for partition in sorted(found)]

    try:
        for count in range(1, 5):  # one day's events: the snapshot stays open
            for partition in (0, 1):
                lines = [edge(partition, i, T0 + count) for i in range(20 + partition)]
                send(kafka, topic, lines, partition=partition)
            reached(lambda many=count: committed() == [20 * many, 21 * many])  # type: ignore[misc]  # bound here
            reached(lambda: told() == committed())
            last = LogReader(tmp_path / "store").last
            assert last is not None and last.tail_events == 41 * count
    finally:
        job.stop()
        thread.join(timeout=30)
        admin.close()
    assert not thread.is_alive()
    assert LogReader(tmp_path / "store").snapshots == []


def test_an_idle_stream_seals_its_open_snapshot_if_asked_to(kafka: str, tmp_path: Path) -> None:
    topic = fresh_topic(kafka, partitions=2)
    idle = {"idle_timeout_s": 1.0, "idle_seal_s": 0.5}
    config = StreamConfig(**configuration(tmp_path / "store", kafka, topic, snapshots=idle, cycle_s=5.0))
    job = StreamJob(config, StreamMetrics(config))
    thread = threading.Thread(target=job.run)
    thread.start()
    try:
        send(kafka, topic, [edge(1, 2, T0), edge(2, 3, T0 + 60)])  # partition 1 stays empty
        commits = tmp_path / "store" / "log" / "commits"
        reached(lambda: any(commits.glob("*.json")) and len(LogReader(tmp_path / "store").snapshots) == 1)
    finally:
        job.stop()
        thread.join(timeout=30)
    assert not thread.is_alive()
    assert [sealed.num_events for sealed in LogReader(tmp_path / "store").snapshots] == [2]
