"""A topic whose producers change their Avro schema, while the stream runs and is killed."""

from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from fastavro import parse_schema, schemaless_writer
from registry_server import confluent, serving
from running_job import ended_by, events_of, reached
from streaming import T0, configuration, fresh_topic, log_table, result, send, started, written

from freshet_graph.stream.store.log.reader import LogReader

pytestmark = pytest.mark.integration

DAY_US = 86_400_000_000
FIELDS = {"src": "card", "dst": "shop", "t": "at", "weight": "amount", "event_id": "id"}


def schema(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "Paid", "fields": [*fields]}


AT = {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}}
FIRST = schema({"name": "card", "type": "int"}, {"name": "shop", "type": "int"}, AT)
SECOND = schema(
    {"name": "amount", "type": "double", "default": 0.5},
    {"name": "shop", "type": ["null", "long"]},
    AT,
    {"name": "card_id", "type": "long", "aliases": ["card"]},
    {"name": "id", "type": "string", "default": "none"},
)


def message(number: int, by: dict[str, Any], n: int) -> bytes:
    written_value = BytesIO()
    row = {
        "card": n,
        "card_id": n,
        "shop": n + 1,
        "at": T0 * 10**6 + n * DAY_US,
        "amount": n / 2,
        "id": f"p{n}",
    }
    schemaless_writer(written_value, parse_schema(by), row)
    return confluent(number, written_value.getvalue())


def test_a_killed_stream_reads_messages_of_an_old_and_a_new_schema_once(kafka: str, tmp_path: Path) -> None:
    """It is killed between the two: the new one's messages are in hand, and the registry does not have it yet."""
    topic, store, log = fresh_topic(kafka), tmp_path / "store", tmp_path / "stream.log"
    with serving() as registry:
        topics = {"name": topic, "format": "avro", "fields": FIELDS}
        content = configuration(store, kafka, topics, kafka={"schema_registry": {"url": registry.url}})
        path = written(tmp_path, content)
        old = registry.add(FIRST)
        job = started("run", "--config", path, log=log)
        try:
            send(kafka, topic, [message(old, FIRST, n) for n in range(4)])
            reached(lambda: events_of(store) == 4)
            registry.status = 503
            new = old + 1
            send(
                kafka, topic, [message(*((new, SECOND) if n % 2 else (old, FIRST)), n) for n in range(4, 12)]
            )
            reached(lambda: f"/schemas/ids/{new}" in registry.asked)
        finally:
            job.kill()
            job.wait()
        assert events_of(store) == 4
        registry.status = None
        assert registry.add(SECOND) == new
        again = started("run", "--config", path, log=log)
        try:
            reached(lambda: events_of(store) == 12)
            send(kafka, topic, [message(old, FIRST, 12), message(new, SECOND, 13)])
            reached(lambda: events_of(store) == 14)
        finally:
            ended_by(again, log)
        send(kafka, topic, [message(new, SECOND, 14)])
        assert result("run", "--config", path, "--until-idle", "0.6")["refused"] == 0
    events = log_table(store)
    by_new = [n == 14 or (n >= 4 and n % 2 == 1) for n in range(15)]
    assert events["src"].to_pylist() == [*range(15)]
    assert events["dst"].to_pylist() == [n + 1 for n in range(15)]
    assert events["weight"].to_pylist() == [n / 2 if new_one else 1.0 for n, new_one in enumerate(by_new)]
    assert events["event_id"].to_pylist() == [
        f"p{n}" if new_one else None for n, new_one in enumerate(by_new)
    ]
    assert LogReader(store).last.refused == {}  # type: ignore[union-attr]
