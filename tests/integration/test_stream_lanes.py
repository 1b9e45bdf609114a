"""Lanes beside the log: a lane that fails stops nothing, shows, and heals; a new one catches up."""

import threading
from pathlib import Path
from typing import Any

import pytest
from running_job import reached, readiness
from streaming import T0, configuration, edge, fresh_topic, run_job, send

from freshet_graph.schemas.config import Metrics, StreamConfig
from freshet_graph.stream import background
from freshet_graph.stream.job.loop import StreamJob
from freshet_graph.stream.metrics import StreamMetrics
from freshet_graph.stream.service.endpoint import Endpoint
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.stream.store.lane.writer import LaneWriter
from freshet_graph.stream.store.log.reader import LogReader

pytestmark = pytest.mark.integration

LANES = [{"name": "good", "algorithm": "hash", "parts": 2}, {"name": "bad", "algorithm": "hash", "parts": 3}]


def week(kafka: str) -> str:
    topic = fresh_topic(kafka)
    send(kafka, topic, [edge(day, day + 1, T0 + 86_400 * day) for day in range(7)])
    return topic


def failing(monkeypatch: pytest.MonkeyPatch, broken: threading.Event) -> None:
    """Lane ``bad`` can't be written while ``broken`` is set."""
    whole = LaneWriter.catch_up

    def catch_up(self: LaneWriter, **options: Any) -> int:
        if broken.is_set() and self.header.lane == "bad":
            raise OSError("a disk of its own is full")
        return whole(self, **options)

    monkeypatch.setattr(LaneWriter, "catch_up", catch_up)


def test_a_failing_lane_stops_neither_log_nor_other_lanes_and_heals(
    kafka: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = threading.Event()
    broken.set()
    failing(monkeypatch, broken)
    monkeypatch.setattr(background, "RETRY_S", 0.1)
    config = StreamConfig(**configuration(tmp_path / "store", kafka, week(kafka), lanes=LANES))
    metrics = StreamMetrics(config)
    job = StreamJob(config, metrics)
    endpoint = Endpoint(Metrics(port=0), metrics.registry, job.not_ready)
    assert readiness(endpoint) == (503, "starting")
    worker = threading.Thread(target=job.run)
    worker.start()
    try:
        reached(lambda: len(manifests(tmp_path, "good")) == 6)
        assert manifests(tmp_path, "bad") == []
        assert readiness(endpoint) == (503, "lane bad: a disk of its own is full")
        broken.clear()
        reached(lambda: len(manifests(tmp_path, "bad")) == 6)
        reached(lambda: readiness(endpoint) == (200, "ready"))
        value = metrics.registry.get_sample_value
        assert value("freshet_stream_restarts_total", {"graph": "test", "cause": "lane"}) >= 1
        assert value("freshet_lane_lag_snapshots", {"graph": "test", "lane": "bad"}) == 0
    finally:
        job.stop()
        worker.join(timeout=30)
        endpoint.close()
    assert not worker.is_alive()


def test_a_lane_that_cannot_be_brought_up_to_date_fails_the_run_and_not_the_log(
    kafka: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = threading.Event()
    broken.set()
    failing(monkeypatch, broken)
    content = configuration(tmp_path / "store", kafka, week(kafka), lanes=LANES)
    with pytest.raises(
        Failure, match=r"lane bad is not up to date: a disk of its own is full\. The log is complete"
    ):
        run_job(content)
    assert len(LogReader(tmp_path / "store").snapshots) == len(manifests(tmp_path, "good")) == 7
    broken.clear()
    run_job(content)
    assert len(manifests(tmp_path, "bad")) == 7


def test_a_lane_added_later_is_filled_from_the_log(kafka: str, tmp_path: Path) -> None:
    content = configuration(tmp_path / "store", kafka, week(kafka), lanes=LANES[:1])
    run_job(content)
    _, metrics = run_job(content | {"lanes": LANES})
    assert len(manifests(tmp_path, "bad")) == 7
    found = metrics.registry.get_sample_value("freshet_lane_saving_ratio", {"graph": "test", "lane": "bad"})
    assert found is not None and found < 1


def manifests(tmp_path: Path, lane: str) -> list[Any]:
    if not (tmp_path / "store" / "lanes" / lane / "lane.json").exists():
        return []
    return LaneReader(tmp_path / "store", lane).manifests
