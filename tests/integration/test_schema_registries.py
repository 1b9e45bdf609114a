"""Topics whose messages name schemas, through a real broker: each format and header, from ``try`` to a store."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import yaml
from fastavro import parse_schema
from registry_server import Registry, confluent, serving
from streaming import T0, configuration, fresh_topic, log_table, read_topic, result, send_records, written
from typer.testing import CliRunner

from freshet_graph.stream.cli import app

pytestmark = pytest.mark.integration

GUID = UUID("89791762-2336-4186-9674-299b90a802e2")
PAYMENT = """syntax = "proto3"; package shop; import "google/protobuf/timestamp.proto";
message Payment { Card card = 1; string merchant = 2; google.protobuf.Timestamp created_at = 3; double amount = 4; }
message Card { int64 id = 1; }"""
AVRO = {
    "type": "record",
    "name": "Payment",
    "fields": [
        {
            "name": "card",
            "type": {"type": "record", "name": "Card", "fields": [{"name": "id", "type": "long"}]},
        },
        {"name": "merchant", "type": "string"},
        {"name": "created_at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "amount", "type": "double"},
    ],
}


@pytest.fixture
def registry() -> Iterator[Registry]:
    with serving() as running:
        yield running


def varint(number: int) -> bytes:
    digits = []
    while number > 127:
        digits.append(number & 127 | 128)
        number >>= 7
    return bytes([*digits, number])


def protobuf(n: int) -> bytes:
    at = b"\x08" + varint(T0 + n)
    parts = {1: b"\x08" + varint(n + 1), 2: f"m{n % 3}".encode(), 3: at}
    return (
        b"".join(bytes([number << 3 | 2, len(part)]) + part for number, part in parts.items())
        + b"\x21"
        + b"\0" * 6
        + b"\xf0\x3f"
    )


def avro(n: int) -> bytes:
    from io import BytesIO

    from fastavro import schemaless_writer

    sink = BytesIO()
    row = {"card": {"id": n + 1}, "merchant": f"m{n % 3}", "created_at": (T0 + n) * 1000, "amount": 1.0}
    schemaless_writer(sink, parse_schema(AVRO), row)
    return sink.getvalue()


def text(n: int) -> bytes:
    row = {"card": {"id": n + 1}, "merchant": f"m{n % 3}", "created_at": T0 + n, "amount": 1.0}
    return json.dumps(row).encode()


@pytest.mark.parametrize(
    ("name", "header"),
    [
        ("protobuf", "confluent"),
        ("json", "confluent"),
        ("protobuf", "record"),
        ("avro", "record"),
        ("avro", "apicurio"),
        ("json", "apicurio"),
        ("protobuf", "apicurio"),
        ("json", "glue"),
    ],
)
def test_a_topic_becomes_a_store_by_what_try_proposes(
    name: str, header: str, kafka: str, registry: Registry, tmp_path: Path
) -> None:
    number = {
        "avro": lambda: registry.add(AVRO),
        "protobuf": lambda: registry.add(PAYMENT, schemaType="PROTOBUF"),
        "json": lambda: registry.add({"type": "object"}, schemaType="JSON"),
    }[name]()
    registry.guids[str(GUID)] = number
    indexes = b"\0" if name == "protobuf" else b""
    value_of = {"avro": avro, "protobuf": protobuf, "json": text}[name]
    before = {
        "confluent": confluent(number, indexes),
        "record": b"",
        "apicurio": b"\0" + number.to_bytes(8, "big") + indexes.replace(b"\0", b"\x09\x0a\x07Payment"),
        "glue": bytes([3, 0]) + GUID.bytes,
    }[header]
    own = [("__value_schema_id", b"\1" + GUID.bytes + indexes)] if header == "record" else []
    topic, dead = fresh_topic(kafka, stem="payments"), fresh_topic(kafka, stem="dead")
    records: list[dict[str, Any]] = [{"value": before + value_of(n), "headers": own} for n in range(40)]
    records.insert(20, {"value": before + value_of(1)[:-1] + b"\xff\xff", "headers": own})
    send_records(kafka, topic, records)

    address = [] if name == "json" else ["--registry", registry.url]
    done = CliRunner().invoke(app, ["try", "--topic", topic, "--bootstrap", kafka, *address, "--json"])
    assert done.exit_code == 0, done.output
    trial = json.loads(done.stdout)
    assert trial["events"] == 40
    assert trial["fields"] == {"src": "card.id", "dst": "merchant", "t": "created_at", "weight": "amount"}
    proposal = trial["proposal"]
    assert proposal["kafka"]["topics"][0].get("format", "json") == name
    assert proposal["kafka"].get("schema_registry", {}).get("header", "confluent") == header

    content = configuration(
        tmp_path / "store", kafka, kafka=proposal["kafka"] | {"dead_letters": dead}, ids="string"
    )
    ran = result("run", "--config", written(tmp_path, content), "--until-idle", "2")
    assert (ran["events"], ran["refused"]) == (40, 1)
    table = log_table(tmp_path / "store").select(["src", "dst", "t"])
    assert sorted(table.to_pylist(), key=lambda row: row["t"]) == [
        {"src": str(n + 1), "dst": f"m{n % 3}", "t": (T0 + n) * 10**6} for n in range(40)
    ]
    (letter,) = (json.loads(value or b"") for _, value in read_topic(kafka, dead))
    assert (letter["reason"], letter["offset"]) == (f"not_{name}", 20)
    assert result("verify", tmp_path / "store")["ok"]


def test_try_asks_for_the_registry(kafka: str, registry: Registry) -> None:
    topic = fresh_topic(kafka)
    send_records(kafka, topic, [{"value": confluent(registry.add(AVRO), avro(0))}])
    done = CliRunner().invoke(app, ["try", "--topic", topic, "--bootstrap", kafka])
    assert done.exit_code == 1
    assert "messages name schemas (confluent header). Give --registry URL of their registry" in done.stderr
    done = CliRunner().invoke(app, ["try", "--topic", topic, "--bootstrap", kafka, "--registry", "r:1"])
    assert "--registry must be an address such as http://registry:8081" in done.stderr
    shown = CliRunner().invoke(
        app, ["try", "--topic", topic, "--bootstrap", kafka, "--registry", registry.url]
    )
    _, _, block = shown.stdout.partition("ids: ")
    assert yaml.safe_load(f"ids: {block}")["kafka"]["schema_registry"] == {"url": registry.url}
