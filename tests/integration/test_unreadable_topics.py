"""A topic that the configuration can't read is held, and not used up; others go on."""

import json
from pathlib import Path
from typing import Any

import pytest
from registry_server import confluent, serving
from running_job import Running, reached
from streaming import T0, configuration, edge, fresh_topic, log_table, send, triples, written
from typer.testing import CliRunner

from freshet_graph.schemas.config import StreamConfig
from freshet_graph.stream.cli import app
from freshet_graph.stream.store.log.reader import LogReader

pytestmark = pytest.mark.integration

DAY = 86_400


def texts(count: int) -> list[bytes | None]:
    """Events with times as RFC 3339."""
    return [edge(7, i, f"2004-11-09T11:33:20.{i:03d}Z") for i in range(count)]  # type: ignore[arg-type]


def offsets(store: Path) -> dict[str, int]:
    last = LogReader(store).last if (store / "log" / "log.json").exists() else None
    return {position.topic: position.next for position in last.positions} if last else {}


def test_a_wrong_key_holds_its_topic_while_others_are_sealed_and_the_corrected_one_reads_it_all(
    kafka: str, tmp_path: Path
) -> None:
    good, wrong, few = (fresh_topic(kafka, stem=stem) for stem in ("good", "wrong", "few"))
    send(kafka, good, [edge(1, i, T0 + i * DAY) for i in range(3)])
    send(kafka, wrong, [*texts(118), b"hello world", edge(7, 118, T0)])  # a real topic has odd messages
    send(kafka, few, [*texts(99), edge(5, 5, T0 + 2 * DAY)])
    store = tmp_path / "store"

    def content(unit: str) -> dict[str, Any]:
        named = [
            {"name": topic, "time_unit": unit if topic == wrong else "s"} for topic in (good, wrong, few)
        ]
        return configuration(store, kafka, *named, snapshots={"idle_timeout_s": 0.5})

    running = Running(StreamConfig(**content("s")))
    try:
        reached(lambda: running.ready()[0] == 503 and "is held" in running.ready()[1])
        told = running.ready()[1]
        assert told.startswith(
            f"topic {wrong} is held: its first 100 messages are refused, 100 of them for wrong_type. The first is {wrong}[0] "
        )
        assert "Correct kafka.topics.time_unit and start again" in told
        reached(lambda: [s.tau for s in LogReader(store).snapshots] == [T0 // DAY, T0 // DAY + 1])
        send(kafka, good, texts(150))  # it had good ones: these are dead letters
        reached(lambda: offsets(store).get(good) == 153)
        labels = {"graph": "test", "topic": wrong, "reason": "wrong_type", "key": "kafka.topics.time_unit"}
        registry = running.job._metrics.registry
        assert registry.get_sample_value("freshet_stream_topic_held", labels) == 1
        lag = {"graph": "test", "topic": wrong, "partition": "0"}
        assert registry.get_sample_value("freshet_stream_consumer_lag_messages", lag) == 120
    finally:
        running.close()
    assert offsets(store) == {good: 153, wrong: 0, few: 100}
    assert LogReader(store).last.refused == {"wrong_type": 249}  # type: ignore[union-attr]

    path = written(tmp_path, content("s"))
    done = CliRunner().invoke(app, ["run", "--config", str(path), "--until-idle", "0.5", "--json"])
    assert done.exit_code == 1
    assert f"topic {wrong} is held: its first 100 messages" in done.stderr
    ended = json.loads(done.stdout)
    assert (ended["ended"], ended["refused"], len(ended["held"])) == ("idle", 0, 1)
    assert ended["held_messages"] == 120
    assert offsets(store)[wrong] == 0

    path = written(tmp_path, content("rfc3339"))
    done = CliRunner().invoke(app, ["run", "--config", str(path), "--until-idle", "0.5", "--json"])
    assert (done.exit_code, json.loads(done.stdout)["events"]) == (0, 118)
    assert sum(src == 7 for _, src, _, _ in triples(log_table(store))) == 118


def test_an_absent_registry_is_the_reason_why_nothing_is_read(kafka: str, tmp_path: Path) -> None:
    """Messages in hand are unread, and what was read before is committed."""
    avro, other, store = fresh_topic(kafka, stem="avro"), fresh_topic(kafka), tmp_path / "store"
    with serving() as registry:
        names = ("src", "dst", "t")
        schema = {"type": "record", "name": "E", "fields": [{"name": n, "type": "long"} for n in names]}
        number = registry.add(schema)
        topics = [{"name": avro, "format": "avro"}, other]
        section = {"schema_registry": {"url": registry.url}}
        running = Running(StreamConfig(**configuration(store, kafka, *topics, kafka=section)))
        try:
            send(kafka, other, [edge(1, i, T0 + i) for i in range(3)])
            reached(lambda: offsets(store).get(other) == 3)
            reached(lambda: running.ready()[0] == 200)
            registry.status = 500
            send(kafka, avro, [confluent(number, b"\x02\x04\x06")] * 7)  # 1, 2 and 3
            reached(lambda: running.ready()[0] == 503)
            assert running.ready()[1] == (
                f"topic {avro} partition 0 waits: the schema registry at {registry.url} answers /schemas/ids/{number} "
                "with HTTP 500. It is asked again"
            )
            lag = {"graph": "test", "topic": avro, "partition": "0"}
            reached(lambda: running.job.lag() == 7)
            metrics = running.job._metrics.registry
            assert metrics.get_sample_value("freshet_stream_consumer_lag_messages", lag) == 7
            registry.status = None
            reached(lambda: offsets(store).get(avro) == 7)
            assert (running.ready()[0], running.job.lag()) == (200, 0)
        finally:
            running.close()
    assert running.totals.refused == 0
