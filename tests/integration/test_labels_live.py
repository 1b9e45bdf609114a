"""Label topics on a real broker: taken once although the job is killed at each step, never holding event time."""

import json
import signal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from forked import Commands
from streaming import T0, command, configuration, edge, fresh_topic, result, run_job, send, written
from sweeps import sweep

from freshet_graph.stream.store.crash import CRASH_POINTS
from freshet_graph.stream.store.inspect import inspect
from freshet_graph.stream.store.log.reader import LogReader
from freshet_graph.stream.store.verify.store import verify

pytestmark = pytest.mark.integration

DAY = 86_400
US = 1_000_000


def chargeback(payment: str, t: int, by: str | None = None, fraud: int = 1) -> bytes:
    return json.dumps({"payment": {"id": payment}, "fraud": fraud, "decided_at": t, "by": by}).encode()


def label_topic(name: str) -> dict[str, Any]:
    fields = {"event_id": "payment.id", "label": "fraud", "t": "decided_at", "source": "by"}
    return {"name": name, "kind": "labels", "sources": ["analyst", "model"], "fields": fields}


def test_labels_are_in_the_log_and_hold_no_snapshot(kafka: str, tmp_path: Path) -> None:
    events, labels = fresh_topic(kafka), fresh_topic(kafka, partitions=2, stem="chargebacks")
    content = configuration(tmp_path / "store", kafka, {"name": events}, label_topic(labels))
    send(kafka, events, [edge(i, i + 1, T0 + i * DAY) for i in range(4)])
    ran, _ = run_job(content)
    assert (ran.snapshots, ran.events) == (4, 4), "a label topic without a message holds nothing"

    send(kafka, labels, [chargeback("a", T0 - 90 * DAY, "model"), b"{}"], partition=1)
    send(kafka, labels, [chargeback("b", T0 - 80 * DAY)], partition=0)
    ran, metrics = run_job(content)
    assert (ran.events, ran.refused, ran.late, metrics.totals.labels) == (0, 1, 0, 2)

    log = LogReader(tmp_path / "store")
    assert log.last is not None and log.last.num_labels == 2
    rows = log.labels().drop_columns(["commit"]).to_pylist()
    visible = 4 * DAY * US + T0 // DAY * DAY * US  # the start of the first open snapshot
    common = {"node": None, "label": 1, "visible_us": visible}
    assert rows == [
        {"event_id": "b", "t": (T0 - 80 * DAY) * US, "source": None, "priority": 0, **common},
        {"event_id": "a", "t": (T0 - 90 * DAY) * US, "source": "model", "priority": 1, **common},
    ]
    assert log.labels(log.last.n).num_rows == 0
    cut = configuration(tmp_path / "hourly", kafka, {"name": events}, label_topic(labels))
    cut["snapshots"]["interval_s"] = 3600
    done = result("backfill", tmp_path / "store", "--config", written(tmp_path, cut))
    assert (done["events"], done["labels"]) == (4, 2)
    again = LogReader(tmp_path / "hourly").labels().drop_columns(["commit"]).to_pylist()
    assert again == rows, "they are visible no earlier than they were"
    assert run_job(cut)[0].events == 0
    assert verify(tmp_path / "hourly").problems == []
    assert inspect(tmp_path / "store")["labels"]["by_source"] == {"": 1, "model": 1}
    assert verify(tmp_path / "store").problems == []


@sweep
def test_a_kill_at_every_step_of_a_commit_loses_and_doubles_no_label(
    kafka: str, tmp_path: Path, commands: Commands, step: int
) -> None:
    events, labels = fresh_topic(kafka), fresh_topic(kafka, stem="labels")
    content = configuration(tmp_path / "store", kafka, {"name": events}, label_topic(labels))
    config = written(tmp_path, content)
    points = CRASH_POINTS[::step]
    for k, point in enumerate(points):
        send(kafka, events, [edge(k, i, T0 + 2 * k * DAY + i) for i in range(3)])
        send(kafka, labels, [chargeback(f"{k}/{i}", T0 + k, "analyst") for i in range(3)])
        log = tmp_path / f"{point}.log"
        ended = commands.run("run", "--config", config, "--until-idle", "0.3", log=log, crash_at=f"{point}:1")
        assert ended == -signal.SIGKILL, f"{point} was not reached: {log.read_text()}"
        if (tmp_path / "store/log/log.json").exists():
            assert verify(tmp_path / "store").problems == [], point
    log = tmp_path / "last.log"
    assert commands.run("run", "--config", config, "--until-idle", "0.3", log=log) == 0, log.read_text()
    taken = LogReader(tmp_path / "store").labels()
    assert taken["event_id"].to_pylist() == [f"{k}/{i}" for k in range(len(points)) for i in range(3)]
    assert set(taken["priority"].to_pylist()) == {2}
    assert taken.schema.field("visible_us").type == pa.int64()
    assert verify(tmp_path / "store").problems == []


def test_files_of_labels_come_before_the_events_of_a_backfill_and_kafka_continues(
    kafka: str, tmp_path: Path
) -> None:
    events, labels = fresh_topic(kafka), fresh_topic(kafka, stem="chargebacks")
    content = configuration(tmp_path / "store", kafka, {"name": events}, label_topic(labels))
    config = written(tmp_path, content)
    times = [T0 + i * DAY for i in range(6)]
    history = tmp_path / "events.parquet"
    pq.write_table(pa.table({"src": [1] * 6, "dst": [2] * 6, "t": pa.array(times, pa.int64())}), history)
    decided = [times[0] + 10, times[3] + 10, times[5] + 30 * DAY]
    past = tmp_path / "labels.csv"
    past.write_text(
        "event_id,label,t,source\n" + "".join(f"p{i},1,{t},model\n" for i, t in enumerate(decided))
    )

    # A chargeback of the history is in the topic, too; the border keeps it out.
    send(kafka, labels, [chargeback("p0", decided[0], "model"), chargeback("new", times[4], "analyst")])
    until = ["--until", str(times[4])]
    done = result("backfill", history, "--labels", past, "--config", config, *until)
    assert (done["events"], done["labels"]) == (4, 2)
    log = LogReader(tmp_path / "store")
    known = log.labels().to_pylist()
    assert [(row["event_id"], row["visible_us"] // US, row["priority"]) for row in known] == [
        ("p0", decided[0], 1),
        ("p1", decided[1], 1),
    ]
    send(kafka, events, [edge(1, 2, t) for t in times[4:]])
    run_job(content)
    log.refresh()
    taken = log.labels()
    assert taken["event_id"].to_pylist() == ["p0", "p1", "new"]
    assert log.last is not None and log.last.in_history == 1
    assert verify(tmp_path / "store").problems == []


def test_a_backfill_of_labels_that_is_killed_resumes(kafka: str, tmp_path: Path, commands: Commands) -> None:
    topic = fresh_topic(kafka)
    content = configuration(tmp_path / "store", kafka, {"name": topic})
    config = written(tmp_path, content)
    history, past = tmp_path / "events.csv", tmp_path / "labels.parquet"
    history.write_text("src,dst,t\n" + "".join(f"1,2,{T0 + i * DAY}\n" for i in range(3)))
    pq.write_table(pa.table({"node": [1, 2], "label": [0, 1], "t": [T0 + 5, T0 + DAY]}), past)
    arguments = ("backfill", history, "--labels", past, "--config", config)
    for point in ("file.written:1", "commit.done:1"):
        log = tmp_path / f"{point}.log"
        assert commands.run(*arguments, log=log, crash_at=point) == -signal.SIGKILL, log.read_text()
    assert commands.run(*arguments, log=log) == 0, log.read_text()
    labels = LogReader(tmp_path / "store").labels()
    assert labels["node"].to_pylist() == [1, 2]
    assert labels["visible_us"].to_pylist() == [(T0 + 5) * US, (T0 + DAY) * US]
    assert verify(tmp_path / "store").problems == []


def test_labels_of_a_file_are_sent_to_their_topic(kafka: str, tmp_path: Path) -> None:
    events, labels = fresh_topic(kafka), fresh_topic(kafka, stem="labels")
    content = configuration(tmp_path / "store", kafka, {"name": events}, {"name": labels, "kind": "labels"})
    config = written(tmp_path, content)
    past = tmp_path / "labels.csv"
    past.write_text(f"event_id,label,t\na,1,{T0}\nb,0,{T0 + 1}\n")
    sent = result("replay", past, "--labels", "--topic", labels, "--config", config)
    assert sent["sent"] == 2
    tried = result("try", "--topic", labels, "--config", config)
    assert tried["events"] == 2 and tried["examples"][0]["label"]["event_id"] == "a"
    wrong = command("replay", past, "--topic", labels, "--config", config)
    assert wrong.returncode == 1
    run_job(content)
    taken = LogReader(tmp_path / "store").labels()
    assert taken.select(["event_id", "label", "t"]).to_pylist() == [
        {"event_id": "a", "label": 1, "t": T0 * US},
        {"event_id": "b", "label": 0, "t": (T0 + 1) * US},
    ]
