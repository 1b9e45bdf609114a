"""From a file through a real Kafka into the log and its lanes."""

import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kafka import KafkaAdminClient
from kafka.admin import NewTopic
from running_job import reached
from streaming import (
    T0,
    configuration,
    edge,
    expected,
    fresh_topic,
    interactions,
    log_table,
    read_topic,
    result,
    run_job,
    send,
    settings,
    triples,
    written,
)

from freshet_graph.schemas.config import StreamConfig
from freshet_graph.stream.job.decoding import Decoding
from freshet_graph.stream.job.loop import StreamJob
from freshet_graph.stream.job.open_log import OpenLog
from freshet_graph.stream.kafka.reader import PartitionReader
from freshet_graph.stream.metrics import StreamMetrics
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.stream.store.log.reader import LogReader

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("message_format", ["json", "arrow"])
def test_a_replayed_file_is_in_the_log_in_order_of_time_and_in_the_lanes(
    kafka: str, tmp_path: Path, message_format: str
) -> None:
    table = interactions(tmp_path / "events.parquet")
    topic = fresh_topic(kafka)
    sent = result(
        "replay",
        tmp_path / "events.parquet",
        "--bootstrap",
        kafka,
        "--topic",
        topic,
        "--format",
        message_format,
    )
    assert sent["sent"] == table.num_rows
    lanes = [
        {"name": "two", "algorithm": "hash", "parts": 2},
        {"name": "three", "algorithm": "hash", "parts": 3},
    ]
    content = configuration(tmp_path / "store", kafka, {"name": topic, "format": message_format}, lanes=lanes)
    ran = result("run", "--config", written(tmp_path, content), "--until-idle", "1")
    assert (ran["events"], ran["refused"], ran["late"], ran["ended"]) == (table.num_rows, 0, 0, "idle")
    assert triples(log_table(tmp_path / "store")) == expected(table)
    sealed = [snapshot.tau for snapshot in LogReader(tmp_path / "store").snapshots]
    assert len(sealed) == ran["snapshots"] == 13  # 12 days of events that begin in the middle of one
    for lane in lanes:
        manifests = LaneReader(tmp_path / "store", str(lane["name"])).manifests
        assert [manifest.tau for manifest in manifests] == sealed


def test_wide_features_replayed_as_arrow_pass_a_topic_with_kafkas_default_limit(
    kafka: str, tmp_path: Path
) -> None:
    rows, width = 1_500, 300
    values = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(rows * width), pa.float32()), width)
    table = pa.table({"src": np.arange(rows), "dst": pa.nulls(rows, pa.int64()), "t": T0 + np.arange(rows)})
    pq.write_table(
        table.append_column("features", values.cast(pa.list_(pa.float32()))), tmp_path / "e.parquet"
    )
    topic = "wide-" + fresh_topic(kafka)
    admin = KafkaAdminClient(**settings(kafka))
    admin.create_topics([NewTopic(topic, 1, 1, topic_configs={"max.message.bytes": "1048588"})])
    admin.close()
    sent = result(
        "replay", tmp_path / "e.parquet", "--bootstrap", kafka, "--topic", topic, "--format", "arrow"
    )
    assert sent["sent"] == rows
    assert len(read_topic(kafka, topic)) == 3
    content = configuration(tmp_path / "store", kafka, {"name": topic, "format": "arrow"})
    ran, _ = run_job(content | {"features": {"node": width}})
    assert (ran.events, ran.refused) == (rows, 0)


def test_two_topics_of_several_partitions_and_both_formats_make_one_log(kafka: str, tmp_path: Path) -> None:
    first = interactions(tmp_path / "a.parquet", seed=1)
    second = interactions(tmp_path / "b.parquet", seed=2)
    json_topic, arrow_topic = fresh_topic(kafka, partitions=3), fresh_topic(kafka, partitions=2)
    result("replay", tmp_path / "a.parquet", "--bootstrap", kafka, "--topic", json_topic, "--partitions", "3")
    result(
        "replay", tmp_path / "b.parquet", "--bootstrap", kafka, "--topic", arrow_topic, "--format", "arrow"
    )
    content = configuration(tmp_path / "store", kafka, json_topic, {"name": arrow_topic, "format": "arrow"})
    ran, _ = run_job(content)
    log = triples(log_table(tmp_path / "store"))
    assert (ran.events, ran.late) == (10_000, 0)
    assert sorted(log) == sorted(expected(first) + expected(second))
    times = [t for _, _, _, t in log]
    assert times == sorted(times)
    last = LogReader(tmp_path / "store").last
    assert last is not None
    read = {
        topic: [p.next for p in last.positions if p.topic == topic] for topic in (json_topic, arrow_topic)
    }
    assert sum(read[json_topic]) == 5_000
    assert (
        len([offset for offset in read[json_topic] if offset]) == 3
    )  # the hash of src reached every partition


def test_a_restart_goes_on_where_the_last_commit_ended(kafka: str, tmp_path: Path) -> None:
    topic = fresh_topic(kafka)
    content = configuration(tmp_path / "store", kafka, topic)
    send(kafka, topic, [edge(i, i + 1, T0 + 3600 * i) for i in range(100)])
    assert run_job(content)[0].events == 100
    send(kafka, topic, [edge(i, i + 1, T0 + 86_400 * 30 + i) for i in range(50)])
    again, _ = run_job(content)
    assert (again.events, again.late) == (50, 0)
    assert log_table(tmp_path / "store").num_rows == 150
    nothing, _ = run_job(content)
    assert (nothing.events, nothing.snapshots, nothing.seconds) == (0, 0, 0.0)


def test_group_offsets_follow_the_commits(kafka: str, tmp_path: Path) -> None:
    topic = fresh_topic(kafka)
    send(kafka, topic, [edge(1, 2, T0 + i) for i in range(70)])
    run_job(configuration(tmp_path / "store", kafka, topic, kafka={"group": "watched"}))
    admin = KafkaAdminClient(**settings(kafka))
    offsets = admin.list_group_offsets("watched")
    admin.close()
    found = offsets.get("watched", offsets)
    assert {(tp.topic, tp.partition): meta.offset for tp, meta in found.items() if tp.topic == topic} == {
        (topic, 0): 70
    }


def test_nothing_is_lost_or_doubled_across_cycles_and_idle_partitions_starve_nobody(
    kafka: str, tmp_path: Path
) -> None:
    topic = fresh_topic(kafka, partitions=4)
    config = StreamConfig(**configuration(tmp_path / "store", kafka, topic, cycle_s=0.7))
    metrics = StreamMetrics(config)
    job = StreamJob(config, metrics)
    ran = []
    worker = threading.Thread(target=lambda: ran.append(job.run()))
    worker.start()

    def renewed() -> float:
        found = {"graph": "test", "cause": "cycle"}
        return metrics.registry.get_sample_value("freshet_stream_restarts_total", found) or 0

    try:
        for burst in range(8):  # partitions 1 and 2 stay empty
            for partition in (0, 3):
                first = burst * 40
                messages = [edge(partition, i, T0 + 60 * i) for i in range(first, first + 40)]
                send(kafka, topic, messages, partition=partition)
            time.sleep(0.3)
        reached(lambda: metrics.totals.events >= 640 and renewed() >= 2)
    finally:
        job.stop()
        worker.join(timeout=60)
    again, _ = run_job(config.model_dump())  # which seals what is open
    assert (ran[0].events, again.events) == (640, 0)
    log = log_table(tmp_path / "store")
    assert len(set(zip(log["src"].to_pylist(), log["dst"].to_pylist(), strict=True))) == log.num_rows == 640


class _StageError(Exception):
    """An error that Beam does not know."""


@pytest.mark.parametrize(
    ("stage", "method"), [(PartitionReader, "_poll"), (Decoding, "batches"), (OpenLog, "take_in")]
)
def test_an_error_of_a_stage_leaves_the_pipeline_as_itself(
    kafka: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: type, method: str
) -> None:
    topic = fresh_topic(kafka)
    send(kafka, topic, [edge(1, 2, T0)])
    raised = _StageError("at its place")

    def fails(*_: object, **__: object) -> None:
        raise raised

    monkeypatch.setattr(stage, method, fails)
    with pytest.raises(_StageError) as found:
        run_job(configuration(tmp_path / "store", kafka, topic))
    assert found.value is raised
