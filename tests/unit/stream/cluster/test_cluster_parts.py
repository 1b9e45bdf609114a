"""What the pipeline on a cluster is made of: the plan, the coder, the log's host and its rule about gaps, the totals."""

import dataclasses
import json
import pickle
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from log_events import SECOND, event, label_poll, poll, stream_config
from no_offsets import NoOffsets, NoWatch
from pydantic import ValidationError

from freshet_graph.schemas.config import Runner, StreamConfig
from freshet_graph.stream.cluster import worker as workers
from freshet_graph.stream.cluster.job import JobTotals, options, sentence
from freshet_graph.stream.cluster.log_host import LogHost, open_log
from freshet_graph.stream.cluster.plan import ClusterPlan, announce, is_current, withdraw
from freshet_graph.stream.cluster.stages import VERSION, MicroBatchCoder
from freshet_graph.stream.kafka.reader import Start
from freshet_graph.stream.metrics import StreamMetrics
from freshet_graph.stream.microbatch import MicroBatch, Quiet
from freshet_graph.stream.pipeline import holding
from freshet_graph.stream.service import endpoint
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.sink import log_header
from freshet_graph.stream.snapshots.event_time import Held, OpenEventTime
from freshet_graph.stream.store.errors import LaneBusyError, OffsetGapError
from freshet_graph.stream.store.log.reader import LogReader
from freshet_graph.stream.store.log.writer import LogWriter


def with_password(**more: Any) -> StreamConfig:
    kafka = {
        "bootstrap": "b:9092",
        "topics": [{"name": "a"}],
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "PLAIN",
        "sasl_username": "me",
        "sasl_password": "hunter2",
    }
    return StreamConfig(**{"graph": "g", "store": "s", "kafka": kafka, "snapshots": {"interval_s": 1}} | more)


# The plan


def test_no_secret_is_in_what_a_runner_is_given(clean_environment: pytest.MonkeyPatch) -> None:
    plan = ClusterPlan.of(with_password(), [Start("a", 0, 5, 9)])
    assert b"hunter2" not in pickle.dumps(plan)
    assert '"sasl_password"' not in plan.settings
    with pytest.raises(Failure, match=r"a worker on .*sasl_password.*the worker's environment"):
        plan.config()


def test_a_worker_reads_the_configuration_that_was_submitted(
    clean_environment: pytest.MonkeyPatch,
) -> None:
    topic = {
        "name": "a",
        "time_unit": "rfc3339",
        "fields": {"src": "card.id", "dst": "merchant.id", "t": "created_at", "op": "change"},
        "ops": {"c": "insert", "d": "delete"},
        "id_prefix": {"src": "card:", "dst": "merchant:"},
    }
    config = StreamConfig.model_validate(
        {
            "graph": "g",
            "store": "s",
            "kafka": {"bootstrap": "b:9092", "topics": [topic, {"name": "b"}], "api_version": [2, 1]},
            "snapshots": {"interval_s": 1},
            "ids": "string",
            "time_bounds": [0, None],
            "lanes": [{"name": "l", "algorithm": "sep", "parts": 2, "params": {"hubs": 0.05}}],
        }
    )
    assert pickle.loads(pickle.dumps(ClusterPlan.of(config, []))).config() == config


def test_a_worker_takes_its_password_from_its_environment(clean_environment: pytest.MonkeyPatch) -> None:
    plan = pickle.loads(pickle.dumps(ClusterPlan.of(with_password(), [])))
    clean_environment.setenv("FRESHET_STREAM_KAFKA__SASL_PASSWORD", "from-here")
    clean_environment.setenv("FRESHET_STREAM_STORE", "/mnt/elsewhere")
    password = plan.config().kafka.sasl_password
    assert password is not None
    assert password.get_secret_value() == "from-here"
    assert plan.config().store == "/mnt/elsewhere"


def test_a_worker_in_the_jobs_process_has_the_jobs_configuration(
    clean_environment: pytest.MonkeyPatch,
) -> None:
    config = with_password()
    plan = ClusterPlan.of(config, [])
    with holding(plan.id, config):
        assert plan.config() is config


def test_flink_wants_a_job_server() -> None:
    with pytest.raises(ValidationError, match="job_server is missing"):
        with_password(runner={"name": "flink"})
    with pytest.raises(ValidationError, match="environment"):
        with_password(runner={"name": "flink", "job_server": "h:1", "environment": "docker"})


def test_a_worker_pool_becomes_an_external_environment() -> None:
    runner = Runner(name="flink", job_server="h:1", environment="external:pool:50000", parallelism=3)
    told = options(runner, ClusterPlan.of(with_password(), []))
    assert "--environment_type=EXTERNAL" in told
    assert "--environment_config=pool:50000" in told
    assert "--parallelism=3" in told


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('Traceback:\n  File "x"\nstream.store.errors.OffsetGapError: a gap\n\n\tat java', "a gap"),
        ("RuntimeError: Pipeline failed: java.lang.IllegalStateException: no slots", "no slots"),
        ("Pipeline x failed: java.lang.RuntimeException: boom\n\tat a.b(C.java)", "boom at a.b(C.java)"),
        ("freshet_graph.stream.service.failure.Failure: nobody answers (KafkaTimeoutError: 5 s); look", None),
        ("", "the runner gave no reason"),
    ],
)
def test_a_runners_traceback_becomes_its_last_exceptions_sentence(text: str, told: str | None) -> None:
    assert sentence(text) == (told or text.partition(": ")[2])


# The coder


def test_every_field_of_a_micro_batch_crosses_processes() -> None:
    batch = poll(
        "a", 3, [(7, [event(1, 2, 5), event(3, None, 6, features=[0.5])]), (9, None)], first=5, end=10
    )
    batch = dataclasses.replace(
        batch,
        high_watermark=12,
        tombstones=2,
        wall_time_us=77,
        quiet=Quiet(3.5, 0.25),
        skipped=4,
        converted=6,
        labels=label_poll("l", 0, [(0, "e", 1)], first=0, end=1).labels,
    )
    for field in dataclasses.fields(MicroBatch):  # a new field must differ from its default here, too
        assert field.default is dataclasses.MISSING or getattr(batch, field.name) != field.default, field.name
    coder = MicroBatchCoder()
    again = coder.decode(coder.encode(batch))
    for field in dataclasses.fields(MicroBatch):
        value, original = getattr(again, field.name), getattr(batch, field.name)
        assert value.equals(original) if isinstance(original, pa.RecordBatch) else value == original
    assert isinstance(again.quiet, Quiet)


def test_a_batch_of_another_release_is_refused() -> None:
    encoded = bytearray(MicroBatchCoder().encode(poll("a", 0, [], first=0, end=0)))
    encoded[0] = VERSION + 1
    with pytest.raises(ValueError, match=f"format {VERSION + 1} .* format {VERSION}"):
        MicroBatchCoder().decode(bytes(encoded))


# Which submission reads


def test_a_newer_submission_ends_an_older_one(tmp_path: Path) -> None:
    announce(tmp_path, "old")
    assert is_current(tmp_path, "old")
    announce(tmp_path, "new")
    assert not is_current(tmp_path, "old")
    withdraw(tmp_path, "old")
    assert is_current(tmp_path, "new")
    withdraw(tmp_path, "new")
    assert not is_current(tmp_path, "new")


# The log's host


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ClusterPlan]:
    """A job of one topic partition, begun at offset 10, whose configuration this process holds."""
    monkeypatch.setattr("freshet_graph.stream.job.open_log.GroupOffsets", NoOffsets)
    monkeypatch.setattr("freshet_graph.stream.job.open_log.TopicWatch", NoWatch)
    config = stream_config(str(tmp_path), commit_every_s=3600)
    config = config.model_copy(update={"metrics": config.metrics.model_copy(update={"port": 0})})
    plan = ClusterPlan.of(config, [Start("a", 0, 10, 30)])
    with holding(plan.id, config):
        announce(tmp_path, plan.id)
        yield plan


def batch(first: int, end: int) -> MicroBatch:
    return poll(
        "a",
        0,
        [(offset, [event(offset, 1, 5 * SECOND)]) for offset in range(first, end)],
        first=first,
        end=end,
    )


def hosted(plan: ClusterPlan) -> LogHost:
    config = plan.config()
    return LogHost(plan, config, StreamMetrics(config))


def offsets_in(store: Path) -> list[int]:
    with LogWriter.open(store, log_header(stream_config(str(store)))) as writer:
        return sorted(writer.open_tail()["offset"].to_pylist())


def test_what_is_offered_again_is_taken_once(plan: ClusterPlan, tmp_path: Path) -> None:
    host = hosted(plan)
    for first, end in ((10, 14), (10, 14), (12, 18), (18, 18)):
        host.write(batch(first, end))
    host.close()
    assert offsets_in(tmp_path) == list(range(10, 18))


@pytest.mark.parametrize("taken", [0, 4])
def test_a_batch_that_leaves_offsets_out_is_refused(plan: ClusterPlan, taken: int) -> None:
    host = hosted(plan)
    if taken:
        host.write(batch(10, 10 + taken))
    with pytest.raises(
        OffsetGapError, match=f"expected offset {10 + taken}, found a batch that begins at 15"
    ):
        host.write(batch(15, 17))
    host.close()


def test_what_a_lost_worker_had_taken_in_is_missed_by_the_next(plan: ClusterPlan, tmp_path: Path) -> None:
    lost = hosted(plan)
    lost.write(batch(10, 15))
    lost.close(flush=False)  # as if its process had died
    following = hosted(plan)
    with pytest.raises(OffsetGapError):
        following.write(batch(15, 20))
    following.write(batch(10, 20))
    following.close()
    assert offsets_in(tmp_path) == list(range(10, 20))


def test_a_busy_log_is_waited_for_and_then_named(plan: ClusterPlan) -> None:
    host = hosted(plan)
    with pytest.raises(LaneBusyError, match="is being written by"):
        open_log(plan.config(), wait_s=0)
    host.close()
    with open_log(plan.config(), wait_s=0):
        pass


# A process's worker


def test_the_last_stage_that_is_torn_down_commits_and_gives_the_log_back(
    plan: ClusterPlan, tmp_path: Path
) -> None:
    first, second = workers.acquire(plan), workers.acquire(plan)
    assert first is second
    first.write(batch(10, 12))
    workers.release(plan)
    with pytest.raises(LaneBusyError):
        open_log(plan.config(), wait_s=0)
    workers.release(plan)
    assert offsets_in(tmp_path) == [10, 11]


def test_a_worker_that_no_stage_gives_back_is_closed_once_its_job_has_ended(
    plan: ClusterPlan, tmp_path: Path
) -> None:
    worker = workers.acquire(plan)
    worker.write(batch(10, 12))
    workers.dismiss(plan)
    assert offsets_in(tmp_path) == [10, 11]
    open_log(plan.config(), wait_s=0).close()
    workers.release(plan)  # late
    workers.dismiss(plan)
    assert workers.acquire(plan) is not worker
    workers.release(plan)


def test_a_failure_while_writing_has_the_log_opened_anew(plan: ClusterPlan, tmp_path: Path) -> None:
    worker = workers.acquire(plan)
    worker.write(batch(10, 12))
    with pytest.raises(OffsetGapError):
        worker.write(batch(15, 17))
    with pytest.raises(OffsetGapError, match="expected offset 10"):  # what was pending went with it
        worker.write(batch(12, 17))
    worker.write(batch(10, 17))
    workers.release(plan)
    assert offsets_in(tmp_path) == list(range(10, 17))


def test_a_log_that_has_snapshots_wakes_the_lanes_when_it_is_opened(
    plan: ClusterPlan, tmp_path: Path
) -> None:
    host = hosted(plan)
    host.write(batch(10, 12))
    assert host.log.sink.seal_all() is not None
    host.close()
    worker = workers.acquire(plan)
    assert worker.write(batch(12, 12)) == [5]
    assert worker.write(batch(12, 12)) == []
    workers.release(plan)


def test_a_worker_says_itself_that_event_time_is_held_back(plan: ClusterPlan) -> None:
    worker = workers.acquire(plan)
    worker.write(batch(10, 12))
    worker._metrics.open_event_time(OpenEventTime(0, Held("a", 0, 9_000.0, None)))
    assert worker.endpoint is not None
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"{worker.endpoint.url}/readyz", timeout=10)
    assert b"topic a partition 0 has held event time back for 150 min" in refused.value.read()
    workers.release(plan)


# Totals


def test_totals_count_what_was_committed_since_they_began(plan: ClusterPlan, tmp_path: Path) -> None:
    totals = JobTotals(str(tmp_path))
    assert not totals.refresh()
    host = hosted(plan)
    host.write(batch(10, 13))
    host.close()
    totals.begin()
    assert (totals.events, totals.snapshots) == (0, 0)
    host = hosted(plan)
    host.write(batch(13, 20))
    assert host.log.sink.seal_all() is not None
    host.close()
    assert totals.refresh()
    assert not totals.refresh()
    assert (totals.events, totals.snapshots) == (7, 1)
    assert totals.next_offset(("a", 0)) == 20
    assert len(LogReader(tmp_path).events(5)) == 10


def test_the_plan_in_the_pipeline_is_json(plan: ClusterPlan) -> None:
    assert json.loads(plan.settings)["graph"] == "test"
    assert re.fullmatch(r"[0-9a-f]{32}", plan.id)


def test_a_worker_that_has_only_lanes_is_alive_however_long_nothing_is_sealed(
    plan: ClusterPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = workers.Worker(plan)
    try:
        worker._serve()
        assert worker.endpoint is not None
        monkeypatch.setattr(endpoint, "silent_s", lambda: 1e6)
        with urllib.request.urlopen(f"{worker.endpoint.url}/healthz", timeout=30) as answer:
            assert answer.read() == b"alive\n"
    finally:
        worker.close()
