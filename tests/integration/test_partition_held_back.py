"""A topic partition whose messages don't come holds event time back: ``/readyz`` and the metrics say which, and since when."""

import re
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from kafka import TopicPartition
from streaming import T0, configuration, edge, fresh_topic, send
from structlog.testing import capture_logs

from freshet_graph.schemas.config import StreamConfig
from freshet_graph.stream.commands.run import _here
from freshet_graph.stream.job import loop, readiness
from freshet_graph.stream.job.loop import StreamJob
from freshet_graph.stream.kafka.reader import PartitionReader
from freshet_graph.stream.metrics import StreamMetrics

pytestmark = pytest.mark.integration


def answer(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=10) as told:
            return str(told.read().decode())
    except urllib.error.HTTPError as error:
        return str(error.read().decode())


def until(found: Callable[[], Any], what: str) -> Any:
    deadline_s = time.monotonic() + 120
    while not (value := found()):
        assert time.monotonic() < deadline_s, f"{what} did not happen"
        time.sleep(0.05)
    return value


def test_a_partition_that_holds_event_time_back_is_named_until_it_is_read_again(
    kafka: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = fresh_topic(kafka, partitions=2)
    send(kafka, topic, [edge(1, i, T0 + 60 * i) for i in range(10)], partition=0)
    send(kafka, topic, [edge(2, i, T0 + 60 * i) for i in range(5)], partition=1)
    stuck = TopicPartition(topic, 1)
    readers: list[PartitionReader] = []

    def half_deaf(*given: Any, **more: Any) -> PartitionReader:
        readers.append(PartitionReader(*given, **more))
        readers[-1].consumer.pause(stuck)  # as of a leader that serves nothing
        return readers[-1]

    monkeypatch.setattr(loop, "PartitionReader", half_deaf)
    monkeypatch.setattr(readiness, "HELD_S", 1.0)
    snapshots = {"interval_s": 1.0, "idle_timeout_s": 0.3}
    config = StreamConfig(**configuration(tmp_path / "store", kafka, topic, snapshots=snapshots))
    metrics = StreamMetrics(config)
    with ExitStack() as stack:
        with capture_logs() as lines:
            job, _ = _here(config, metrics, None, False, lambda: None, stack)
        (url,) = [line["url"] for line in lines if line["event"] == "metrics"]
        assert isinstance(job, StreamJob)
        thread = threading.Thread(target=job.run)
        thread.start()
        try:
            told = until(
                lambda: "held event time back" in (t := answer(f"{url}/readyz")) and t, "the sentence"
            )
            assert re.fullmatch(
                rf"topic {topic} partition 1 has held event time back for \d+ s, and nothing is sealed: it had no event yet\. "
                r"Find out why its 5 unread messages do not arrive: look at its leader, and for an open transaction\. "
                r"A partition with nothing unread no longer counts after snapshots\.idle_timeout_s \(0\.3 s\)\n",
                told,
            )
            shown = answer(f"{url}/metrics")
            assert (
                f'freshet_stream_held_since_timestamp_seconds{{graph="test",partition="1",topic="{topic}"}}'
                in shown
            )
            assert 'freshet_stream_ready{graph="test"} 0.0' in shown
            readers[-1].consumer.resume(stuck)
            until(lambda: answer(f"{url}/readyz") == "ready\n", "readiness")
            until(
                lambda: "freshet_stream_held_since_timestamp_seconds{" not in answer(f"{url}/metrics"),
                "its end",
            )
        finally:
            job.stop()
            thread.join(60)
    assert metrics.totals.events == 15
