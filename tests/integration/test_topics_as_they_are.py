"""Topics as people have them, through a real broker: fields beside the message, and several events in one."""

import json
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient
from kafka.admin import NewTopic
from streaming import (
    T0,
    configuration,
    fresh_topic,
    log_table,
    read_topic,
    result,
    run_job,
    send,
    send_records,
    settings,
    written,
)
from typer.testing import CliRunner

from freshet_graph.stream.cli import app

pytestmark = pytest.mark.integration

FIELDS = {"src": "$key", "dst": "to", "t": "$timestamp", "weight": "$headers.w", "event_id": "$headers.id"}


def record(key: bytes, to: int | None, seconds: float, /, **headers: bytes) -> dict[str, Any]:
    value = None if to is None else json.dumps({"to": to}).encode()
    return {
        "value": value,
        "key": key,
        "timestamp_ms": int((T0 + seconds) * 1000),
        "headers": list(headers.items()),
    }


def kept(store: Path, *columns: str) -> list[tuple[Any, ...]]:
    table = log_table(store).select(columns)
    return sorted(zip(*(table[name].to_pylist() for name in columns), strict=True))


def test_time_key_and_headers_of_records_are_read_and_sent_again(kafka: str, tmp_path: Path) -> None:
    topic, dead = fresh_topic(kafka), fresh_topic(kafka, stem="dead")
    records = [record((100 + n).to_bytes(8, "big"), n, n + 0.25, w=b"0.5") for n in range(5)]
    records += [
        record(b"odd", 9, 7),
        record((7).to_bytes(8, "big"), None, 8),
        record((100).to_bytes(8, "big"), 0, 0.25),
    ]
    for n in (0, 7):
        records[n]["headers"] = [("id", b"same")]
    send_records(kafka, topic, records)
    named = {"name": topic, "fields": FIELDS, "key_format": "integer"}
    content = configuration(
        tmp_path / "store", kafka, named, kafka={"dead_letters": dead}, dedup_window_s=86_400
    )
    ran, _ = run_job(content)
    assert (ran.events, ran.refused) == (5, 1)
    assert kept(tmp_path / "store", "src", "dst", "t", "weight") == [
        (100 + n, n, T0 * 10**6 + n * 10**6 + 250_000, 1.0 if n == 0 else 0.5) for n in range(5)
    ]
    (letter,) = (json.loads(value or b"") for _, value in read_topic(kafka, dead))
    assert letter["sentence"].startswith("$key has 3 bytes")

    assert result("resend", "--config", written(tmp_path, content))["sent"] == 1
    ran, _ = run_job(content)
    assert (ran.events, ran.refused) == (0, 1), (
        "the record is the same: its key, headers and time were sent again"
    )
    again = read_topic(kafka, topic)[-1]
    assert again == (b"odd", b'{"to": 9}')


def test_the_brokers_time_is_read_where_the_topic_has_it(kafka: str, tmp_path: Path) -> None:
    topic = f"{fresh_topic(kafka)}.appended"
    admin = KafkaAdminClient(**settings(kafka))
    admin.create_topics([NewTopic(topic, 1, 1, topic_configs={"message.timestamp.type": "LogAppendTime"})])
    admin.close()
    send_records(kafka, topic, [record(b"5", 6, 0)] * 3)
    content = configuration(tmp_path / "store", kafka, {"name": topic, "fields": FIELDS})
    assert run_job(content)[0].events == 3
    (first, *_) = kept(tmp_path / "store", "t")
    assert first[0] > (T0 + 10**8) * 10**6, "not the producer's time of 2004"


def test_a_record_without_a_value_is_an_event(kafka: str, tmp_path: Path) -> None:
    topic = fresh_topic(kafka)
    records = [record(b"a", None, n, to=str(n).encode()) for n in range(3)] + [record(b"b", None, 9)]
    send_records(kafka, topic, records)
    fields = {"src": "$key", "dst": "$headers.to", "t": "$timestamp", "label": "$partition"}
    content = configuration(tmp_path / "store", kafka, {"name": topic, "fields": fields}, ids="string")
    ran, metrics = run_job(content)
    assert (ran.events, ran.refused) == (3, 0)
    tombstones = {"graph": "test", "topic": topic}
    assert metrics.registry.get_sample_value("freshet_stream_tombstones_total", tombstones) == 1
    assert kept(tmp_path / "store", "src", "dst") == [("a", "0"), ("a", "1"), ("a", "2")]


def test_try_finds_what_is_beside_a_message(kafka: str) -> None:
    topic = fresh_topic(kafka)
    send_records(kafka, topic, [record(b"5", 6, n) for n in range(3)])
    done = CliRunner().invoke(app, ["try", "--topic", topic, "--bootstrap", kafka, "--json"])
    assert done.exit_code == 0, done.output
    trial = json.loads(done.stdout)
    assert trial["events"] == 3
    assert trial["fields"] == {"src": "$key", "dst": "to", "t": "$timestamp"}
    assert trial["examples"][0]["event"] == {"src": 5, "dst": 6, "t": T0}


def test_elements_are_events_with_ids_and_dead_letters_of_their_own(kafka: str, tmp_path: Path) -> None:
    orders, lines, dead = (fresh_topic(kafka, stem=stem) for stem in ("orders", "lines", "dead"))
    items = [{"sku": 1, "id": "a"}, {"sku": "x"}, {"sku": 2, "id": "b"}, {"sku": 1, "id": "a"}]
    send(
        kafka,
        orders,
        [json.dumps({"user": 7, "items": items}).encode(), b'{"user":8,"items":[]}', b'{"user":8}'],
    )
    rows = [{"src": 100 + n, "dst": n, "t": T0 + n} for n in range(3)]
    send(kafka, lines, ["\n".join(map(json.dumps, rows)).encode() + b"\n{", json.dumps(rows[:1]).encode()])
    fields = {"src": "user", "dst": "items.sku", "t": "$timestamp", "event_id": "items.id"}
    topics = [{"name": orders, "many": "items", "fields": fields}, {"name": lines, "many": "."}]
    content = configuration(
        tmp_path / "store", kafka, *topics, kafka={"dead_letters": dead}, dedup_window_s=10**9
    )
    ran, metrics = run_job(content)
    assert (ran.events, ran.refused) == (2 + 4, 3)
    assert metrics.registry.get_sample_value("freshet_stream_duplicates_total", {"graph": "test"}) == 1
    assert kept(tmp_path / "store", "src", "dst") == [(7, 1), (7, 2), (100, 0), (100, 0), (101, 1), (102, 2)]
    letters = [json.loads(value or b"") for _, value in read_topic(kafka, dead)]
    places = {(each["topic"], each["offset"], each["row"], each["reason"]) for each in letters}
    assert places == {
        (orders, 0, 1, "bad_id"), (orders, 2, None, "missing_field"), (lines, 0, 3, "not_json"),
    }  # fmt: skip


def test_try_finds_arrays_and_lines(kafka: str) -> None:
    topic = fresh_topic(kafka)
    rows = [{"user": "a", "item": n, "at": T0 + n} for n in range(3)]
    send(kafka, topic, [json.dumps(rows).encode(), "\n".join(map(json.dumps, rows)).encode()])
    done = CliRunner().invoke(app, ["try", "--topic", topic, "--bootstrap", kafka, "--json"])
    assert done.exit_code == 0, done.output
    trial = json.loads(done.stdout)
    assert (trial["events"], trial["many"]) == (6, ".")
    assert trial["fields"] == {"src": "user", "dst": "item", "t": "at"}
