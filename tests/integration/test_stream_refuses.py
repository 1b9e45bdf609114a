"""What the stream job doesn't do, it says in one sentence that names what and where; exit codes 1 and 2."""

import json
import re
import signal
import time
from pathlib import Path

import pyarrow as pa
import pytest
from decoding import message_format
from kafka import KafkaAdminClient, TopicPartition
from kafka.admin import NewTopic
from log_lines import error_of
from running_job import endpoint, get, sealed
from streaming import (
    T0,
    command,
    configuration,
    edge,
    fresh_topic,
    log_table,
    run_job,
    send,
    settings,
    started,
    written,
)

from freshet_graph.schemas.events import event_schema
from freshet_graph.stream.kafka.producer import replay
from freshet_graph.stream.kafka.topics import ensure_topic
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.store.errors import OffsetGapError
from freshet_graph.stream.store.log.reader import LogReader

pytestmark = pytest.mark.integration


def wait_for(what: str, condition, timeout_s: float = 90) -> None:  # type: ignore[no-untyped-def]
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout_s} s for {what}"
        time.sleep(0.05)


def test_a_wrong_key_is_named(kafka: str, tmp_path: Path) -> None:
    content = configuration(tmp_path / "store", kafka, "edges")
    content["snapshots"]["intervall_s"] = 3
    done = command("run", "--config", written(tmp_path, content))
    assert done.returncode == 1
    assert "snapshots.intervall_s" in error_of(done.stderr)


def test_a_missing_topic_is_named_with_those_that_exist(kafka: str, tmp_path: Path) -> None:
    other = fresh_topic(kafka, stem="0-first")  # the sentence names the first ten
    done = command("run", "--config", written(tmp_path, configuration(tmp_path / "store", kafka, "nowhere")))
    assert done.returncode == 1
    assert "kafka.topics: topic nowhere doesn't exist" in error_of(done.stderr)
    assert other in error_of(done.stderr)


def test_a_broker_that_does_not_answer_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from freshet_graph.stream.kafka import greeting
    from freshet_graph.stream.service.failure import Failure

    monkeypatch.setattr(greeting, "PATIENCE_S", 0.5)
    with pytest.raises(Failure, match=r"no broker answers at 127\.0\.0\.1:9.*kafka\.bootstrap"):
        run_job(configuration(tmp_path / "store", "127.0.0.1:9", "edges"))


def test_an_unknown_lane_algorithm_fails_at_the_start(kafka: str, tmp_path: Path) -> None:
    topic = fresh_topic(kafka)
    lanes = [{"name": "x", "algorithm": "hsah", "parts": 2}]
    done = command(
        "run", "--config", written(tmp_path, configuration(tmp_path / "store", kafka, topic, lanes=lanes))
    )
    assert done.returncode == 1
    assert "hsah" in error_of(done.stderr)


def test_what_cannot_work_is_refused_before_a_broker_is_asked(tmp_path: Path) -> None:
    """Nobody listens at that address: whoever asked would say so."""
    mapped = {"name": "a", "fields": {"src": "u", "dst": "v", "t": "t", "features": ["x", "y"]}}
    for topic, more, told in (
        (mapped, {}, "lists 2 paths of features, but features.edge is 0. Set features.edge to 2"),
        ("a", {"lanes": [{"name": "x", "algorithm": "hsah", "parts": 2}]}, "lanes[x]: unknown partitioner 'hsah'"),
        ("a", {"lanes": [{"name": "x", "algorithm": "sep", "parts": 2, "params": {"hub": 1}}]}, "Did you mean hubs?"),
    ):  # fmt: skip
        done = command(
            "run",
            "--config",
            written(tmp_path, configuration(tmp_path / "store", "127.0.0.1:9", topic, **more)),
        )
        assert done.returncode == 1
        assert told in error_of(done.stderr)
        assert not (tmp_path / "store").exists()


def test_a_wrong_width_refuses_everything_with_code_1_and_the_corrected_file_goes_on_in_that_store(
    kafka: str, tmp_path: Path
) -> None:
    topic = fresh_topic(kafka)
    lanes = [{"name": "h", "algorithm": "hash", "parts": 2}]
    path = written(tmp_path, configuration(tmp_path / "store", kafka, topic, lanes=lanes))
    send(kafka, topic, [edge(1, i, T0 + i, features=[0.5, i]) for i in range(4)] + [b"{"])
    run = ("run", "--config", path, "--until-idle", "0.6", "--json")
    done = command(*run)
    assert done.returncode == 1
    (told,) = [line for line in done.stderr.splitlines() if "everything that was read was refused" in line]
    ran = json.loads(done.stdout)
    assert (ran["events"], ran["refused"], ran["ended"]) == (0, 5, "idle")
    assert ran["refused_by_reason"]["feature_width"]["count"] == 4
    assert re.fullmatch(
        rf"{topic}\[0\] offset \d: features has 2 values, but config key features.edge is 0",
        ran["refused_by_reason"]["feature_width"]["example"],
    )
    for reason in ("feature_width 4", "not_json 1", f"({topic}[0] offset 4: "):
        assert reason in told
    shown = json.loads(command("inspect", tmp_path / "store", "--json").stdout)
    assert shown["refused_by_reason"] == ran["refused_by_reason"]
    assert command(*run).returncode == 0, "nothing new was refused"

    written(tmp_path, configuration(tmp_path / "store", kafka, topic, lanes=lanes, features={"edge": 2}))
    send(kafka, topic, [edge(1, i, T0 + i, features=[0.5, i]) for i in range(3)])
    done = command(*run)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["events"] == 3
    assert log_table(tmp_path / "store")["features"].to_pylist() == [[0.5, i] for i in range(3)]
    shown = json.loads(command("inspect", tmp_path / "store", "--json").stdout)
    assert (shown["refused"], shown["offsets"], shown["lanes"]["h"]["snapshots"]) == (5, {topic: {"0": 8}}, 1)
    assert json.loads(command("verify", tmp_path / "store", "--json").stdout)["ok"]


def open_bytes(url: str) -> float:
    """Bytes of events that a job has read and not sealed."""
    found = re.search(r"^freshet_stream_open_snapshot_bytes{.*} (\S+)$", get(url), re.MULTILINE)
    assert found is not None
    return float(found[1])


def test_a_second_job_on_the_store_is_refused_and_the_first_ends_cleanly_on_sigterm(
    kafka: str, tmp_path: Path
) -> None:
    topic = fresh_topic(kafka)
    store = tmp_path / "store"
    lanes = [{"name": "h", "algorithm": "hash", "parts": 2}]
    path = written(
        tmp_path, configuration(store, kafka, topic, lanes=lanes, snapshots={"commit_every_s": 60})
    )
    send(kafka, topic, [edge(1, i, T0 + 86_400 * i) for i in range(4)])
    first = started("run", "--config", path, log=tmp_path / "first.log")
    try:
        wait_for("three sealed snapshots", lambda: sealed(store) == 3)
        second = command("run", "--config", path)
        assert second.returncode == 1
        assert str(first.pid) in error_of(second.stderr)  # the writer id names the process that holds it
        url = f"{endpoint(tmp_path / 'first.log')}/metrics"
        before = open_bytes(url)
        send(kafka, topic, [edge(7, 8, T0 + 86_400 * 3 + 5)])
        wait_for("the fifth event, which is not due for a commit", lambda: open_bytes(url) > before)
        asked = time.monotonic()
        first.send_signal(signal.SIGTERM)
        assert first.wait(timeout=50) == 0
        assert time.monotonic() - asked < 30, "the next commit is due after a minute"
    finally:
        first.kill()
        first.wait()
    reader = LogReader(store)
    assert reader.last is not None
    assert [position.next for position in reader.last.positions] == [5]
    assert reader.last.tail_events == 2  # the open day is durable, and still open
    assert run_job(configuration(store, kafka, topic))[0].events == 0
    assert log_table(store).num_rows == 5


def test_deleted_messages_stop_the_job_with_both_offsets_or_are_skipped_and_counted(
    kafka: str, tmp_path: Path
) -> None:
    topic = fresh_topic(kafka)
    content = configuration(tmp_path / "store", kafka, topic)
    send(kafka, topic, [edge(1, i, T0 + i) for i in range(10)])
    run_job(content)
    send(kafka, topic, [edge(2, i, T0 + 90_000 + i) for i in range(20)])
    admin = KafkaAdminClient(**settings(kafka))
    admin.delete_records({TopicPartition(topic, 0): 25})
    admin.close()
    with pytest.raises(
        OffsetGapError, match=r"begins at offset 25, but the log's next offset is 10.*15 unread"
    ):
        run_job(content)
    content["kafka"]["on_gap"] = "skip"
    ran, metrics = run_job(content)
    assert ran.events == 5
    labels = {"graph": "test", "topic": topic}
    assert metrics.registry.get_sample_value("freshet_stream_gap_offsets_total", labels) == 15
    assert metrics.totals.gap_offsets == 15


@pytest.mark.parametrize("messages", [1, 20])
def test_a_topic_made_anew_is_not_read_as_if_it_were_the_old_one(
    kafka: str, tmp_path: Path, messages: int
) -> None:
    topic = fresh_topic(kafka)
    content = configuration(tmp_path / "store", kafka, topic)
    send(kafka, topic, [edge(1, i, T0 + i) for i in range(10)])
    run_job(content)
    admin = KafkaAdminClient(**settings(kafka))
    admin.delete_topics([topic])
    wait_for("its end", lambda: topic not in admin.list_topics())
    admin.close()
    ensure_topic(settings(kafka), kafka, topic, 1)
    send(kafka, topic, [edge(3, 4, T0 + 100_000 + i) for i in range(messages)])
    with pytest.raises(OffsetGapError, match=f"topic {topic} .* made again"):
        run_job(content)  # also where the new one is longer than what was read of the old one
    assert log_table(tmp_path / "store").num_rows == 10


def test_a_failure_inside_the_pipeline_surfaces_as_itself(
    kafka: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from freshet_graph.stream.sink import SnapshotSink

    def refuse(self: SnapshotSink, **_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(SnapshotSink, "advance", refuse)
    topic = fresh_topic(kafka)
    send(kafka, topic, [edge(1, 2, T0)])
    with pytest.raises(OSError, match="Input/output error"):
        run_job(configuration(tmp_path / "store", kafka, topic))


def test_replay_names_a_topic_with_other_partitions_and_a_file_that_is_not_there(
    kafka: str, tmp_path: Path
) -> None:
    topic = fresh_topic(kafka, partitions=2)
    (tmp_path / "e.csv").write_text("src,dst,t\n1,2,3\n")
    done = command("replay", tmp_path / "e.csv", "--bootstrap", kafka, "--topic", topic, "--partitions", "3")
    assert done.returncode == 1
    assert "has 2 partitions, but --partitions is 3" in error_of(done.stderr)
    done = command("replay", tmp_path / "none.csv", "--bootstrap", kafka, "--topic", topic)
    assert done.returncode == 1
    assert "none.csv" in error_of(done.stderr)
    assert command("replay", "--bootstrap", kafka).returncode == 2


@pytest.mark.parametrize("partitions", [1, 3])
def test_a_row_too_long_for_its_topic_as_json_is_named_as_in_the_file(kafka: str, partitions: int) -> None:
    topic = "narrow-" + fresh_topic(kafka)
    admin = KafkaAdminClient(**settings(kafka))
    admin.create_topics([NewTopic(topic, partitions, 1, topic_configs={"max.message.bytes": "100000"})])
    admin.close()
    rows = [{"op": 0, "src": i, "t": i, "weight": 1.0, "features": [0.5]} for i in range(100)]
    rows[72]["features"] = [0.5] * 50_000
    events = pa.Table.from_pylist(rows, schema=event_schema("int"))
    with pytest.raises(Failure, match=rf"^row 73 is 20\d,\d+ bytes as a message, more than topic {topic} "):
        replay(
            events,
            settings=settings(kafka),
            bootstrap=kafka,
            topic=topic,
            message_format=message_format("json"),
        )
