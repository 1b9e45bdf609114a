"""The stream's series: named by the contract, every one with the graph, counting what is durable."""

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from freshet_graph.schemas.config import StreamConfig
from freshet_graph.schemas.events import Op
from freshet_graph.schemas.store import CommitRecord
from freshet_graph.stream.metrics import StreamMetrics

CONTRACT = {
    "stream_events", "stream_refused", "stream_late", "stream_duplicates", "stream_gap_offsets",
    "stream_consumer_lag_messages", "stream_watermark_timestamp_seconds", "stream_last_commit_timestamp_seconds",
    "stream_last_sealed_timestamp_seconds", "stream_commit_seconds", "stream_queue_batches",
    "stream_open_snapshot_bytes", "stream_restarts", "store_bytes", "store_free_bytes", "lane_lag_snapshots",
    "lane_saving_ratio", "lane_cut_ratio", "lane_replication_factor", "lane_moved_ratio", "lane_balance_ratio",
    "lane_update_seconds", "build_info", "config_info",
}  # fmt: skip


@pytest.fixture
def metrics(tmp_path, clean_environment) -> StreamMetrics:  # type: ignore[no-untyped-def]
    kafka = {"bootstrap": "broker:9092", "topics": [{"name": "edges"}], "sasl_password": "hunter2"}
    store = tmp_path / "not made yet"
    return StreamMetrics(StreamConfig(graph="g", store=str(store), kafka=kafka, snapshots={"interval_s": 60}))


def test_every_series_of_the_contract_exists_and_carries_the_graph(metrics: StreamMetrics) -> None:
    text = generate_latest(metrics.registry).decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert set(families) >= {f"freshet_{name}" for name in CONTRACT}
    samples = [sample for family in families.values() for sample in family.samples]
    assert samples
    assert all(sample.labels["graph"] == "g" for sample in samples)
    assert "hunter2" not in text


def test_counts_go_by_topic_and_kind_and_into_the_totals(metrics: StreamMetrics) -> None:
    metrics.accepted("edges", Op.INSERT, 5)
    metrics.accepted("edges", Op.DELETE, 2)
    metrics.refused("edges", "not_json", 3, "edges[0] offset 5: it is not JSON")
    metrics.late("edges", "next-snapshot", 1)
    metrics.skipped("edges", 7)
    value = metrics.registry.get_sample_value
    assert value("freshet_stream_events_total", {"graph": "g", "topic": "edges", "op": "delete"}) == 2
    assert value("freshet_stream_refused_total", {"graph": "g", "topic": "edges", "reason": "not_json"}) == 3
    assert value("freshet_stream_gap_offsets_total", {"graph": "g", "topic": "edges"}) == 7
    totals = metrics.totals
    assert (totals.events, totals.refused, totals.late, totals.gap_offsets) == (7, 3, 1, 7)


def test_duplicates_count_from_the_log_as_it_was_found(metrics: StreamMetrics) -> None:
    metrics.opened_log(commit(duplicates=40), 0)
    metrics.committed(commit(duplicates=43))
    metrics.committed(commit(duplicates=43))
    assert metrics.totals.duplicates == 3
    assert (
        metrics.registry.get_sample_value("freshet_stream_last_commit_timestamp_seconds", {"graph": "g"})
        == 5.0
    )


def commit(*, duplicates: int) -> CommitRecord:
    return CommitRecord(
        n=0,
        previous="",
        writer="w",
        wall_time_us=5_000_000,
        positions=[],
        tail=[],
        tail_events=0,
        duplicates=duplicates,
    )
