"""Every kind of wrong message ends in the dead letters, and the rest of its batch in the log."""

import base64
import json
from pathlib import Path

import pyarrow as pa
import pytest
from streaming import T0, configuration, edge, fresh_topic, log_table, read_topic, run_job, send, written

from freshet_graph.schemas.events import event_schema
from freshet_graph.stream.store.log.reader import LogReader

pytestmark = pytest.mark.integration

FAR_FUTURE = 32_503_680_000  # the year 3000

BAD = {
    "not_json": b"not json at all",
    "missing_field": json.dumps({"src": 1, "t": T0}).encode(),
    "wrong_type": json.dumps({"src": 1, "dst": 2, "t": T0, "weight": "heavy"}).encode(),
    "not_finite": b'{"node": 1, "t": %d, "features": [0.5, NaN]}' % T0,
    "time_out_of_bounds": edge(1, 2, FAR_FUTURE),
}


def test_each_bad_message_is_a_dead_letter_with_its_place_and_reason(kafka: str, tmp_path: Path) -> None:
    topic, dead = fresh_topic(kafka), fresh_topic(kafka, stem="dead")
    messages: list[bytes | None] = []
    places: dict[str, int] = {}
    for index, (reason, message) in enumerate(BAD.items()):
        messages.append(edge(index, index + 1, T0 + index))
        places[reason] = len(messages)
        messages.append(message)
    messages += [None, edge(98, 99, T0 + 50)]  # a tombstone is skipped and counted
    send(kafka, topic, messages)
    content = configuration(
        tmp_path / "store", kafka, topic, kafka={"dead_letters": dead}, features={"node": 2}
    )
    ran, metrics = run_job({**content, "time_bounds": None})

    assert (ran.events, ran.refused) == (len(BAD) + 1, len(BAD))
    log = log_table(tmp_path / "store")
    assert log["src"].to_pylist() == [*range(len(BAD)), 98]
    letters = {
        json.loads(value or b"")["reason"]: (key, json.loads(value or b""))
        for key, value in read_topic(kafka, dead)
    }
    assert set(letters) == set(BAD)
    for reason, (key, letter) in letters.items():
        assert key == f"{topic}/0/{places[reason]}".encode()
        assert (letter["topic"], letter["partition"], letter["offset"]) == (topic, 0, places[reason])
        assert letter["sentence"]
        assert base64.b64decode(letter["raw"]) == BAD[reason]
        labels = {"graph": "test", "topic": topic, "reason": reason}
        assert metrics.registry.get_sample_value("freshet_stream_refused_total", labels) == 1
    tombstones = metrics.registry.get_sample_value(
        "freshet_stream_tombstones_total", {"graph": "test", "topic": topic}
    )
    assert tombstones == 1
    last = LogReader(tmp_path / "store").last
    assert last is not None
    assert last.refused == dict.fromkeys(BAD, 1)


def test_an_id_that_is_too_long_is_refused_and_its_neighbours_are_not(kafka: str, tmp_path: Path) -> None:
    topic, dead = fresh_topic(kafka), fresh_topic(kafka, stem="dead")
    send(kafka, topic, [edge("a", "b", T0), edge("x" * 257, "b", T0 + 1), edge("ü" * 128, "b", T0 + 2)])
    content = configuration(tmp_path / "store", kafka, topic, kafka={"dead_letters": dead}, ids="string")
    ran, _ = run_job(content)
    assert (ran.events, ran.refused) == (2, 1)
    assert log_table(tmp_path / "store")["src"].to_pylist() == ["a", "ü" * 128]
    ((_, letter),) = read_topic(kafka, dead)
    assert json.loads(letter or b"")["reason"] == "id_too_long"


def test_rows_of_an_arrow_message_are_letters_of_their_own(kafka: str, tmp_path: Path) -> None:
    """Each is named by its row, also in its key: a compacted topic keeps them all."""
    topic, dead = fresh_topic(kafka), fresh_topic(kafka, stem="dead")

    def arrow(*seconds: int) -> bytes:
        schema = event_schema("int")
        rows = [
            {"op": 1, "src": 1, "dst": i, "t": s * 1_000_000, "weight": 1.0} for i, s in enumerate(seconds)
        ]
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema) as writer:
            writer.write_batch(pa.RecordBatch.from_pylist(rows, schema))
        return sink.getvalue().to_pybytes()

    named = {"name": topic, "format": "arrow"}
    content = configuration(tmp_path / "store", kafka, named, kafka={"dead_letters": dead})
    content["snapshots"]["late"] = "dead-letter"
    send(kafka, topic, [b"not arrow", arrow(T0, -5, T0 + 1, -6)])
    assert [(ran.events, ran.refused) for ran, _ in [run_job(content)]] == [(2, 3)]
    send(kafka, topic, [arrow(-7, T0, T0 + 86_400, T0 + 1)])  # the first snapshot is sealed by now
    assert [(ran.events, ran.refused, ran.late) for ran, _ in [run_job(content)]] == [(1, 1, 2)]
    published = [(key, json.loads(value or b"")) for key, value in read_topic(kafka, dead)]
    assert [(key.decode(), letter["row"], letter["reason"]) for key, letter in published] == [
        (f"{topic}/0/0", None, "not_arrow"),
        (f"{topic}/0/1/1", 1, "time_out_of_bounds"),
        (f"{topic}/0/1/3", 3, "time_out_of_bounds"),
        (f"{topic}/0/2/0", 0, "time_out_of_bounds"),
        (f"{topic}/0/2/1", 1, "late"),
        (f"{topic}/0/2/3", 3, "late"),
    ]


def test_letters_are_published_once_where_nothing_crashes(kafka: str, tmp_path: Path) -> None:
    topic, dead = fresh_topic(kafka), fresh_topic(kafka, stem="dead")
    content = configuration(tmp_path / "store", kafka, topic, kafka={"dead_letters": dead})
    send(kafka, topic, [b"one"])
    run_job(content)
    send(kafka, topic, [b"two"])
    run_job(content)
    run_job(content)
    assert [json.loads(value or b"")["offset"] for _, value in read_topic(kafka, dead)] == [0, 1]


@pytest.mark.parametrize(("late", "in_log"), [("next-snapshot", 4), ("dead-letter", 3)])
def test_late_events_follow_the_policy_and_are_counted(
    kafka: str, tmp_path: Path, late: str, in_log: int
) -> None:
    topic = fresh_topic(kafka)
    content = configuration(tmp_path / "store", kafka, topic, snapshots={"late": late})
    send(kafka, topic, [edge(1, 2, T0), edge(1, 3, T0 + 86_400)])
    run_job(content)
    send(kafka, topic, [edge(1, 4, T0 + 1), edge(1, 5, T0 + 86_400 * 3)])
    ran, _ = run_job(content)
    assert (ran.late, ran.refused) == (1, 0)
    assert log_table(tmp_path / "store").num_rows == in_log


def test_the_command_counts_what_it_refused(kafka: str, tmp_path: Path) -> None:
    from streaming import result

    topic = fresh_topic(kafka)
    send(kafka, topic, [b"{", edge(1, 2, T0)])
    path = written(tmp_path, configuration(tmp_path / "store", kafka, topic))
    ran = result("run", "--config", path, "--until-idle", "0.5")
    assert (ran["events"], ran["refused"], ran["snapshots"]) == (1, 1, 1)
