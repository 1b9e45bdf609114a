"""Fields that a Kafka record has beside its message: time, key, headers, topic and partition, for messages of every format."""

import json
from collections.abc import Iterator
from io import BytesIO
from typing import Any

import pyarrow as pa
import pytest
from decoding import decoder, ipc, poll
from fastavro import parse_schema, schemaless_writer
from pydantic import ValidationError
from registry_server import Registry, confluent, serving

from freshet_graph.schemas.config import StreamConfig, Topic
from freshet_graph.schemas.events import Reason
from freshet_graph.stream.decode.formats.interface import FORMATS
from freshet_graph.stream.microbatch import MicroBatch

T_MS = 1_100_000_000_000
TIMES = [T_MS, T_MS + 1, T_MS + 2]


@pytest.fixture
def registry() -> Iterator[Registry]:
    with serving() as running:
        yield running


def read(topic: dict[str, Any], values: list[bytes | None], ids: str = "int", **more: Any) -> MicroBatch:
    """Decode messages; ``more`` are columns beside them, ``features`` and ``registry``."""
    config = {key: more.pop(key) for key in ("features", "registry") if key in more}
    return decoder(topic=topic, ids=ids, **config).decode(poll(values, **more))


def given(batch: MicroBatch, *columns: str) -> list[tuple[Any, ...]]:
    return list(zip(*(batch.events[name].to_pylist() for name in columns), strict=True))


def refused(batch: MicroBatch) -> list[tuple[int, str, str]]:
    return [(r["offset"], r["reason"], r["sentence"]) for r in batch.rejects.to_pylist()]


def avro(schema: Any, content: Any, number: int) -> bytes:
    written = BytesIO()
    schemaless_writer(written, parse_schema(schema), content)
    return confluent(number, written.getvalue())


RECORD = {
    "type": "record",
    "name": "Edge",
    "fields": [{"name": "a", "type": "long"}, {"name": "b", "type": "long"}],
}


PROTOBUF = 'syntax = "proto3"; message Edge { int64 a = 1; int64 b = 2; }'


@pytest.mark.parametrize("name", sorted(FORMATS.all()))
def test_time_and_key_come_from_the_record_in_every_format(name: str, registry: Registry) -> None:
    in_row = {"debezium": "after.", "debezium-avro": "after."}.get(name, "")
    envelope = {
        "type": "record",
        "name": "Envelope",
        "fields": [
            {"name": "before", "type": ["null", RECORD]},
            {"name": "after", "type": ["null", "Edge"]},
            {"name": "op", "type": "string"},
        ],
    }
    changes = [{"before": None, "after": {"a": i, "b": 9}, "op": "c"} for i in (1, 2)]
    values = {
        "json": lambda: [b'{"a":1,"b":9}', b'{"a":2,"b":9}'],
        "arrow": lambda: [ipc({"a": [1], "b": [9]}), ipc({"a": [2], "b": [9]})],
        "avro": lambda: [avro(RECORD, {"a": i, "b": 9}, registry.add(RECORD)) for i in (1, 2)],
        "protobuf": lambda: [
            confluent(registry.add(PROTOBUF, schemaType="PROTOBUF"), bytes([0, 0x08, i, 0x10, 9]))
            for i in (1, 2)
        ],
        "debezium": lambda: [json.dumps(change).encode() for change in changes],
        "debezium-avro": lambda: [avro(envelope, change, registry.add(envelope)) for change in changes],
    }[name]()
    fields = {
        "src": "$key",
        "dst": f"{in_row}a",
        "t": "$timestamp",
        "label": "$partition",
        "event_id": "$headers.id",
    }
    batch = read(
        {"format": name, "fields": fields},
        values,
        registry={"url": registry.url},
        timestamp=TIMES[:2],
        key=[b"71", b"72"],
        id=[b"x", None],
    )
    assert refused(batch) == []
    assert given(batch, "op", "src", "dst", "t", "label", "event_id") == [
        (1, 71, 1, T_MS * 1000, 3, "x"),
        (1, 72, 2, (T_MS + 1) * 1000, 3, None),
    ]


KEYED = {"src": "$key", "dst": "b", "t": "$timestamp"}


def test_keys_are_integers_as_java_writes_them() -> None:
    keys = [(-7).to_bytes(8, "big", signed=True), (8).to_bytes(4, "big"), b"123"]
    topic = {"fields": KEYED, "key_format": "integer"}
    batch = read(topic, [b'{"b":1}'] * 3, timestamp=TIMES, key=keys)
    assert given(batch, "src") == [(-7,), (8,)]
    sentence = "$key has 3 bytes, expected an integer of 4 or 8 (config key key_format)"
    assert refused(batch) == [(104, Reason.WRONG_TYPE, sentence)]


def test_a_long_as_text_names_the_key_of_the_configuration() -> None:
    batch = read(
        {"fields": KEYED}, [b'{"b":1}'] * 2, timestamp=TIMES[:2], key=[(200).to_bytes(8, "big"), b"5"]
    )
    assert given(batch, "src") == [(5,)]
    ((_, reason, sentence),) = refused(batch)
    assert reason == Reason.WRONG_TYPE
    assert sentence.endswith(
        "which is no text in UTF-8. If it is a number of Java's, set key_format: integer"
    )


def test_keys_in_json_are_objects_or_values() -> None:
    topic = {"fields": KEYED | {"src": "$key.card.id"}, "key_format": "json"}
    keys = [b'{"card":{"id":5}}', b'{"card":{}}', b"{", None]
    batch = read(topic, [b'{"b":1}'] * 4, timestamp=[*TIMES, T_MS], key=keys)
    assert given(batch, "src") == [(5,)]
    assert [(offset, reason) for offset, reason, _ in refused(batch)] == [
        (102, Reason.MISSING_FIELD),
        (104, Reason.WRONG_TYPE),
        (106, Reason.MISSING_FIELD),
    ]
    assert refused(batch)[1][2].startswith("$key is no JSON value: not JSON")
    whole = {"fields": KEYED, "key_format": "json"}
    batch = read(whole, [b'{"b":"m"}'] * 2, "string", timestamp=TIMES[:2], key=[b'"a\\u0062"', b'"c"'])
    assert given(batch, "src", "dst") == [("ab", "m"), ("c", "m")]


@pytest.mark.parametrize(
    "schema", ["long", {"type": "record", "name": "K", "fields": [{"name": "id", "type": "long"}]}]
)
def test_keys_in_avro_are_records_or_values(schema: Any, registry: Registry) -> None:
    number = registry.add(json.dumps(schema))
    path, content = ("$key", 6) if schema == "long" else ("$key.id", {"id": 6})
    topic = {"fields": KEYED | {"src": path}, "key_format": "avro"}
    keys = [avro(schema, content, number), None, confluent(99, b"\x02"), b"\x07"]
    section = {"url": registry.url}
    batch = read(topic, [b'{"b":1}'] * 4, registry=section, timestamp=[*TIMES, T_MS], key=keys)
    assert given(batch, "src", "dst") == [(6, 1)]
    assert [(offset, reason) for offset, reason, _ in refused(batch)] == [
        (102, Reason.MISSING_FIELD),
        (104, Reason.WRONG_TYPE),
        (106, Reason.WRONG_TYPE),
    ]
    assert "schema 99" in refused(batch)[1][2] or "Schema not found" in refused(batch)[1][2]


def test_features_come_from_several_parts_of_a_record_all_or_none() -> None:
    fields = KEYED | {
        "features": ["amount", "$headers.risk", "$key.size"],
        "src": "$key.id",
        "weight": "$headers.risk",
    }
    topic = {"fields": fields, "key_format": "json"}
    values = [b'{"b":1,"amount":0.5}', b'{"b":2}', b'{"b":3}', b'{"b":4,"amount":1}']
    keys = [b'{"id":1,"size":2}', b'{"id":2}', b'{"id":3,"size":1}', b'{"id":4,"size":1}']
    batch = read(
        topic,
        values,
        timestamp=[*TIMES, T_MS],
        key=keys,
        risk=[b"1.5e0", None, None, b"high"],
        features={"edge": 3},
    )
    assert given(batch, "src", "features", "weight") == [(1, [0.5, 1.5, 2.0], 1.5), (2, None, 1.0)]
    assert refused(batch) == [
        (104, "missing_field", "features (amount) is missing, but others of features are given"),
        (106, "wrong_type", "features ($headers.risk) is the string 'high', expected a number"),
    ]


def test_a_header_may_be_an_array_or_an_object() -> None:
    fields = {"node": "$headers.meta.user", "t": "$timestamp", "features": r"$headers.x\.y"}
    columns = {"meta": [b'{"user":4}', b"4"], "x.y": [b"[1, 2]", b"[1,2]"]}
    batch = read({"fields": fields}, [b"{}"] * 2, timestamp=TIMES[:2], features={"node": 2}, **columns)
    assert given(batch, "op", "src", "dst", "features") == [(0, 4, None, [1.0, 2.0])]
    assert refused(batch) == [(102, "wrong_type", "$headers.meta is the number 4, expected an object")]


@pytest.mark.parametrize("name", ["json", "arrow", "avro"])
def test_a_record_without_a_value_is_an_event_if_key_and_headers_have_it(
    name: str, registry: Registry
) -> None:
    fields = {"src": "$key", "dst": "$headers.to", "t": "$timestamp", "op": "$headers.op"}
    batch = read(
        {"format": name, "fields": fields},
        [None, b"", None, None],
        "string",
        registry={"url": registry.url},
        timestamp=[*TIMES, T_MS],
        key=[b"a", b"b", b"c", b"d"],
        to=[b"x", b"y", None, b""],
        op=[None, b"delete", None, None],
    )
    assert given(batch, "offset", "op", "src", "dst") == [(100, 1, "a", "x"), (102, -1, "b", "y")]
    assert batch.tombstones == 1
    assert refused(batch) == [(106, "bad_id", "dst ($headers.to) is an empty string")]
    half = {"format": name, "fields": fields | {"dst": "to"}}
    assert read(half, [None], registry={"url": registry.url}, key=[b"1"], timestamp=[T_MS]).tombstones == 1


def test_times_and_prefixes_apply_beside_the_message() -> None:
    fields = {"src": "$key", "dst": "$headers.to", "t": "$headers.at"}
    topic = {"fields": fields, "id_prefix": {"src": "card:", "dst": "m:"}, "time_unit": "ms"}
    columns = {"key": [b"1", b""], "to": [b"2", b"2"], "at": [b"1100000000000.25", b"1"]}
    batch = read(topic, [b"{}"] * 2, "string", **columns)
    assert given(batch, "src", "dst", "t") == [("card:1", "m:2", T_MS * 1000 + 250)]
    assert refused(batch) == [(102, "bad_id", "src ($key) is an empty string")]
    dated = {"fields": fields}
    batch = read(
        dated, [b"{}"] * 2, key=[b"1"] * 2, to=[b"2"] * 2, at=[b"2004-11-09T11:33:20Z", b"1100000000.5"]
    )
    assert given(batch, "t") == [(T_MS * 1000,), (T_MS * 1000 + 500_000,)]


def test_a_node_in_the_message_has_no_end_beside_it() -> None:
    fields = {"src": "a", "dst": "$key", "node": "n", "t": "$timestamp", "features": "f"}
    values = [b'{"a":1}', b'{"n":2,"f":[1]}']
    batch = read({"fields": fields}, values, timestamp=TIMES[:2], key=[b"7", b"8"], features={"node": 1})
    assert given(batch, "op", "src", "dst") == [(1, 1, 7), (0, 2, None)]


def test_a_moved_pair_keeps_the_end_that_is_in_the_key() -> None:
    rows = {"before": {"b": 1}, "after": {"b": 2}, "op": "u"}
    fields = {"src": "$key.payload.id", "dst": "after.b", "t": "$timestamp"}
    topic = {"format": "debezium", "fields": fields, "key_format": "json"}
    batch = read(
        topic, [json.dumps(rows).encode(), None], timestamp=TIMES[:2], key=[b'{"payload":{"id":5}}'] * 2
    )
    assert given(batch, "op", "src", "dst") == [(-1, 5, 1), (1, 5, 2)]
    assert batch.tombstones == 1


@pytest.mark.parametrize(
    ("topic", "words"),
    [
        ({"fields": {"src": "$kee", "dst": "b", "t": "c"}}, [r"$headers.NAME", r"Write \$kee"]),
        ({"fields": {"src": "$headers", "dst": "b", "t": "c"}}, ["$headers.NAME"]),
        ({"fields": {"src": "a", "dst": "b", "t": "$timestamp.x"}}, ["begins with a dollar"]),
        (
            {"fields": {"src": "$key.id", "dst": "b", "t": "c"}},
            ["key_format is text. Set key_format to json"],
        ),
        ({"fields": {"src": "a", "dst": "b", "t": "c"}, "key_format": "json"}, ["fields names no $key"]),
        ({"fields": {"src": "a", "dst": "b", "node": "$key", "t": "c"}}, ["every message is a node event"]),
    ],
)
def test_a_wrong_path_beside_the_message_is_named(topic: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ValidationError) as caught:
        Topic(name="payments", **topic)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_keys_in_avro_need_a_registry() -> None:
    topic = {"name": "t", "fields": KEYED, "key_format": "avro"}
    kafka = {"bootstrap": "b:1", "topics": [topic]}
    with pytest.raises(ValidationError, match=r"Give its address in kafka\.schema_registry\.url"):
        StreamConfig(graph="g", store="s", kafka=kafka, snapshots={"interval_s": 1})


def test_a_key_of_a_message_may_begin_with_a_dollar() -> None:
    topic = {"fields": {"src": r"\$key", "dst": "_id.$oid", "t": "t"}}
    batch = read(topic, [b'{"$key":1,"_id":{"$oid":2},"t":1100000000}'])
    assert given(batch, "src", "dst") == [(1, 2)]


def test_a_poll_without_columns_beside_it_has_nulls() -> None:
    values = pa.array([b'{"b":1}'], pa.large_binary())
    batch = decoder(topic={"fields": KEYED}).decode(poll(values.to_pylist()))
    assert batch.rejects["sentence"].to_pylist() == ["src ($key) is missing"]
