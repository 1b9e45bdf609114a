"""Several events in a message: elements of an array, lines, lists of columns; and texts inside of messages that are JSON."""

import json
from collections.abc import Iterator
from io import BytesIO
from typing import Any

import pyarrow as pa
import pytest
from decoding import decoder, ipc, poll
from fastavro import parse_schema, schemaless_writer
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from registry_server import Registry, confluent, serving

from freshet_graph.schemas.config import Topic
from freshet_graph.stream.decode.json_lists import _elements, _inlined
from freshet_graph.stream.decode.json_messages import array_elements, with_inner
from freshet_graph.stream.decode.reading import Limits, RefusedError
from freshet_graph.stream.microbatch import MicroBatch
from freshet_graph.stream.service.failure import Failure

T = 1_100_000_000


def read(topic: dict[str, Any], *values: bytes | None, ids: str = "int", **more: Any) -> MicroBatch:
    config = {key: more.pop(key) for key in ("features", "registry", "max_message_rows") if key in more}
    return decoder(topic=topic, ids=ids, **config).decode(poll(list(values), **more))


def events(batch: MicroBatch, *columns: str) -> list[tuple[Any, ...]]:
    return list(zip(*(batch.events[name].to_pylist() for name in columns), strict=True))


def refused(batch: MicroBatch) -> list[tuple[int, int | None, str, str]]:
    return [(r["offset"], r["row"], r["reason"], r["sentence"]) for r in batch.rejects.to_pylist()]


ORDER = {"many": "order.items", "fields": {"src": "user", "dst": "order.items.sku", "t": "at"}}


def order(user: object, *skus: object, **more: object) -> bytes:
    return json.dumps(
        {"user": user, "at": T, "order": {"items": [{"sku": sku} for sku in skus]}, **more}
    ).encode()


def test_each_element_is_an_event_with_the_fields_around_it() -> None:
    bad = b'{"user":9,"at":1100000000,"order":{"items":[{"sku":1},{"sku":"x"},null,7,{"sku":4}]}}'
    batch = read(
        ORDER, order(1, 10, 11), bad, order(2), order("u", 5), b'{"user":3,"at":1100000000}', order(4, 12)
    )
    assert events(batch, "offset", "row", "src", "dst") == [
        (100, 0, 1, 10), (100, 1, 1, 11), (102, 0, 9, 1), (102, 4, 9, 4), (110, 0, 4, 12),
    ]  # fmt: skip
    assert refused(batch) == [
        (102, 1, "bad_id", "dst (order.items.sku) is the string 'x', but ids are int64 (config key ids)"),
        (102, 2, "missing_field", "dst (order.items.sku) is missing"),
        (102, 3, "wrong_type", "order.items is the number 7, expected an object"),
        (106, None, "bad_id", "src (user) is the string 'u', but ids are int64 (config key ids)"),
        (108, None, "missing_field", "order.items is missing"),
    ]
    assert batch.rejects["raw"].to_pylist()[:3] == [b'{"sku":"x"}', b"null", b"7"]
    assert batch.tombstones == 1, "an empty array holds no event"


def test_elements_may_be_values_and_features_lie_inside_and_around() -> None:
    topic = {"many": "friends", "fields": {"src": "user", "dst": "friends", "t": "at"}}
    batch = read(topic, b'{"user":"a","at":1100000000,"friends":["b","\\u0063"]}', ids="string")
    assert events(batch, "src", "dst") == [("a", "b"), ("a", "c")]
    fields = {"src": "u", "dst": "l.d", "t": "$timestamp", "features": ["l.x", "y", "$headers.z"]}
    values = [b'{"u":1,"y":5,"l":[{"d":2,"x":1},{"d":3}]}', b'{"u":1,"l":[{"d":4}]}']
    columns = {"timestamp": [T * 1000, T * 1000 + 1], "z": [b"9", None]}
    batch = read({"many": "l", "fields": fields}, *values, features={"edge": 3}, **columns)
    assert events(batch, "dst", "features", "t") == [
        (2, [1.0, 5.0, 9.0], T * 10**6),
        (4, None, T * 10**6 + 1000),
    ]
    ((offset, _, reason, sentence),) = refused(batch)
    assert (offset, reason) == (100, "missing_field")
    assert sentence == "features (l.x) is missing, but others of features are given"


def test_a_message_may_be_an_array_or_lines() -> None:
    rows = [json.dumps({"src": i, "dst": i + 1, "t": T}).encode() for i in range(4)]
    lines = b"\n".join([rows[0], b"", b"no JSON", rows[1] + b"\r", rows[2]]) + b"\n"
    values = [b"[" + b", ".join(rows[:2]) + b"]", lines, rows[3], b"[1,", b"5", b"[]", b"", None]
    batch = read({"many": "."}, *values)
    assert events(batch, "offset", "row", "src") == [
        (100, 0, 0), (100, 1, 1), (102, 0, 0), (102, 2, 1), (102, 3, 2), (104, 0, 3),
    ]  # fmt: skip
    assert [(offset, row, reason) for offset, row, reason, _ in refused(batch)] == [
        (102, 1, "not_json"), (106, None, "not_json"), (108, 0, "not_json"),
    ]  # fmt: skip
    assert batch.tombstones == 3


def test_ids_of_events_are_the_elements() -> None:
    items = {"many": "l", "fields": {"src": "l.a", "dst": "l.b", "t": "t", "event_id": "l.id"}}
    value = b'{"t":1100000000,"id":"m","l":[{"a":1,"b":2,"id":"x"},{"a":1,"b":2,"id":7},{"a":1,"b":2}]}'
    assert events(read(items, value), "event_id") == [("x",), ("7",), (None,)]
    for path, more in (("id", {}), ("$key", {"key": [b"m"]})):
        around = items | {"fields": items["fields"] | {"event_id": path}}
        assert events(read(around, value, **more), "event_id") == [("m/0",), ("m/1",), ("m/2",)]


def test_messages_of_many_elements_are_read_in_parts_and_have_a_limit() -> None:
    values = [order(i, *range(10)) for i in range(7)]
    reader = decoder(topic=ORDER, max_message_rows=25)
    raw = poll([*values, order(8, *range(30)), order(9, 1)])
    parts = list(reader.batches(raw))
    assert [part.events.num_rows for part in parts] == [20, 20, 20, 11]
    whole = reader.decode(raw)
    assert pa.Table.from_batches([part.events for part in parts]).equals(
        pa.Table.from_batches([whole.events])
    )
    ((_, row, reason, sentence),) = refused(whole)
    assert (row, reason) == (None, "too_large")
    assert sentence == "30 elements, but config key kafka.max_message_rows is 25"


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(st.lists(JSON_VALUES, max_size=5), st.booleans(), st.data())
def test_the_kernel_finds_the_elements_that_the_reference_finds(
    values: list[Any], ascii_only: bool, data: st.DataObject
) -> None:
    text = json.dumps(values, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    if data.draw(st.booleans()):
        place = data.draw(st.integers(0, len(text)))
        text = text[:place] + data.draw(st.binary(max_size=2)) + text[place + data.draw(st.integers(0, 2)) :]
    array = pa.array([b"[1]", text, b"[[2], 3]"], pa.large_binary())
    elements, places, rows, refusals = _elements(array, Limits(1 << 20, 1 << 20), "path")
    found = [value for value, place in zip(elements.to_pylist(), places.tolist(), strict=True) if place == 1]
    try:
        expected = array_elements(text, lines=False)
    except RefusedError:
        assert [place for place, *_ in refusals] == [1] or not found
        return
    assert [json.loads(value) for value in found] == [json.loads(value) for value in expected]
    assert rows.tolist() == [0, *range(len(expected)), 0, 1]


MONGO = {
    "format": "debezium",
    "json": "after",
    "fields": {"src": "after.who", "dst": "after._id.$oid", "t": "source.ts_ms"},
}


def mongo(op: str, before: object, after: object, *, wrapped: bool = False) -> bytes:
    texts = {"before": before, "after": after}
    change: dict[str, Any] = {
        key: None if value is None else json.dumps(value) for key, value in texts.items()
    }
    change |= {"op": op, "source": {"ts_ms": T * 1000}}
    return json.dumps({"schema": {}, "payload": change} if wrapped else change).encode()


def row(who: str, oid: str) -> dict[str, Any]:
    return {"who": who, "_id": {"$oid": oid}, "note": 'a "quoted" é\n'}


@pytest.mark.parametrize("wrapped", [False, True])
def test_rows_of_mongodb_are_texts(wrapped: bool) -> None:
    values = [
        mongo("c", None, row("a", "1"), wrapped=wrapped),
        mongo("u", row("a", "1"), row("a", "2"), wrapped=wrapped),
        mongo("d", row("a", "2"), None, wrapped=wrapped),
        json.dumps({"after": "{", "before": None, "op": "c", "source": {"ts_ms": 1}}).encode(),
    ]
    batch = read(MONGO, *values, ids="string")
    assert events(batch, "offset", "op", "src", "dst") == [
        (100, 1, "a", "1"), (102, -1, "a", "1"), (102, 1, "a", "2"), (104, -1, "a", "2"),
    ]  # fmt: skip
    ((_, _, reason, sentence),) = refused(batch)
    assert (reason, sentence) == ("wrong_type", "after is the string '{', expected an object")


def test_an_array_may_lie_in_a_text() -> None:
    topic = {
        "json": "payload",
        "many": "payload.l",
        "fields": {"src": "id", "dst": "payload.l.d", "t": "payload.t"},
    }
    inner = json.dumps({"t": T, "l": [{"d": 5}, {"d": "ü"}]})
    batch = read(topic, json.dumps({"id": "x", "payload": inner}).encode(), ids="string")
    assert events(batch, "src", "dst") == [("x", "5"), ("x", "ü")]


@settings(max_examples=150, deadline=None)
@given(JSON_VALUES, st.text(max_size=6), st.booleans(), st.booleans())
def test_texts_are_spliced_as_by_the_reference(inner: Any, tail: str, plain: bool, escaped: bool) -> None:
    text = json.dumps(inner, ensure_ascii=escaped) + (tail if plain else "")
    raw = json.dumps({"b": 1, "a": {"x": text}, "c": [2]}, ensure_ascii=escaped).encode(
        "utf-8", "surrogatepass"
    )
    (spliced,) = _inlined(pa.array([raw], pa.large_binary()), ("a", "x")).to_pylist()
    reference = with_inner(raw, ("a", "x"))
    try:
        expected = json.loads(reference or raw)
    except ValueError:
        assert spliced == raw
        return
    assert json.loads(spliced) == expected


@pytest.fixture
def registry() -> Iterator[Registry]:
    with serving() as running:
        yield running


def test_lists_of_columns_are_events() -> None:
    topic = {"format": "arrow"} | ORDER | {"time_unit": "s"}
    kind = pa.struct([("items", pa.list_(pa.struct([("sku", pa.int64())])))])
    rows = [{"items": [{"sku": 1}, {"sku": None}]}, None, {"items": []}, {"items": [{"sku": 4}]}]
    table = {"user": [1, 2, 3, 4], "at": [T] * 4, "order": pa.array(rows, kind)}
    nothing = {"user": [1], "at": [T], "order": pa.array([None], kind)}
    batch = read(
        topic, ipc(table), ipc(nothing), ipc({"user": [1], "at": [T], "order": [{"items": 5}]}), ipc(table)
    )
    # Without dst, a row of columns is a node event.
    assert events(batch, "offset", "row", "src", "dst") == [
        (100, 0, 1, 1),
        (100, 2, 4, 4),
        (106, 0, 1, 1),
        (106, 2, 4, 4),
    ]
    assert [(offset, row, reason) for offset, row, reason, _ in refused(batch)] == [
        (100, 1, "missing_field"), (104, None, "wrong_type"), (106, 1, "missing_field"),
    ]  # fmt: skip
    assert batch.tombstones == 1
    large = read(topic, ipc(table), max_message_rows=2)
    assert [reason for _, _, reason, _ in refused(large)] == ["too_large"]


def test_arrays_of_avro_are_events(registry: Registry) -> None:
    item = {"type": "record", "name": "Item", "fields": [{"name": "sku", "type": ["null", "long"]}]}
    items = {"name": "items", "type": {"type": "array", "items": item}}
    schema = {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "user", "type": "long"},
            {"name": "at", "type": "long"},
            {"name": "order", "type": {"type": "record", "name": "O", "fields": [items]}},
        ],
    }  # fmt: skip
    number = registry.add(schema)

    def written(user: int, *skus: int | None) -> bytes:
        content = BytesIO()
        row = {"user": user, "at": T, "order": {"items": [{"sku": sku} for sku in skus]}}
        schemaless_writer(content, parse_schema(schema), row)
        return confluent(number, content.getvalue())

    topic = {"format": "avro"} | ORDER | {"time_unit": "s"}
    batch = read(topic, written(1, 10, None, 12), written(2), written(3, 7), registry={"url": registry.url})
    assert events(batch, "offset", "row", "src", "dst") == [(100, 0, 1, 10), (100, 2, 1, 12), (104, 0, 3, 7)]
    assert [(offset, row, reason) for offset, row, reason, _ in refused(batch)] == [(100, 1, "missing_field")]
    assert batch.tombstones == 1


@pytest.mark.parametrize(
    ("topic", "words"),
    [
        ({"many": "l"}, "Name fields inside of it, such as l.src"),
        (
            {"many": "l", "fields": {"src": "a", "dst": "b", "t": "c"}},
            "Write paths from the begin of the message, such as l.a",
        ),
        ({"many": "l..x", "fields": {"src": "a", "dst": "b", "t": "c"}}, "empty key"),
    ],
)
def test_a_wrong_array_is_named(topic: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Topic(name="orders", **topic)
    assert words in str(caught.value)


def test_formats_that_cannot_have_arrays_say_so() -> None:
    fields = {"src": "after.l.a", "dst": "after.b", "t": "t"}
    with pytest.raises(Failure, match="format debezium cannot have many"):
        decoder(topic={"format": "debezium", "many": "after.l", "fields": fields})


TEXT_FIELDS = {"src": "user", "dst": "payload.to", "t": "at", "weight": "payload.amount", "event_id": "id"}
TEXTS = ['{"to": 2, "amount": "12.5"}', '{"to": 3}', '{"amount": 1}', "no", None, '{"to": 4, "at": [1]}']
OF_TEXTS = [(100, 1, 2, 12.5, "e0"), (102, 2, 3, 1.0, "e1"), (110, 6, 4, 1.0, "e5")]
REFUSED_TEXTS = [
    (104, "missing_field", "dst (payload.to) is missing"),
    (106, "wrong_type", "payload is no text of a JSON object: not JSON"),
    (108, "missing_field", "dst (payload.to) is missing"),
]


def assert_texts(batch: MicroBatch) -> None:
    assert events(batch, "offset", "src", "dst", "weight", "event_id") == OF_TEXTS
    for (offset, _, reason, sentence), (place, cause, words) in zip(
        refused(batch), REFUSED_TEXTS, strict=True
    ):
        assert (offset, reason) == (place, cause)
        assert words in sentence


def test_texts_of_arrow_columns_that_are_json_are_read_as_parts_of_their_rows() -> None:
    topic = {"format": "arrow", "json": "payload", "fields": TEXT_FIELDS, "time_unit": "s"}
    rows = [
        {"user": [i + 1], "at": [T], "id": [f"e{i}"], "payload": pa.array([text], pa.string())}
        for i, text in enumerate(TEXTS)
    ]
    assert_texts(read(topic, *map(ipc, rows)))
    (reason,) = refused(read(topic, ipc(rows[0] | {"payload": [5]})))
    assert reason[2:] == ("wrong_type", "column payload is int64, expected texts (topic key json)")


def test_texts_of_avro_that_are_json_are_read_as_parts_of_their_rows(registry: Registry) -> None:
    kinds = {"user": "long", "at": "long", "id": "string", "payload": ["null", "string"]}
    schema = {
        "type": "record",
        "name": "E",
        "fields": [{"name": name, "type": kind} for name, kind in kinds.items()],
    }
    number, messages = registry.add(schema), []
    for i, text in enumerate(TEXTS):
        content = BytesIO()
        schemaless_writer(
            content, parse_schema(schema), {"user": i + 1, "at": T, "id": f"e{i}", "payload": text}
        )
        messages.append(confluent(number, content.getvalue()))
    topic = {"format": "avro", "json": "payload", "fields": TEXT_FIELDS, "time_unit": "s"}
    assert_texts(read(topic, *messages, registry={"url": registry.url}))


def test_texts_inside_of_listed_columns_are_json() -> None:
    kind = pa.list_(pa.struct([("sku", pa.int64()), ("more", pa.string())]))
    items = [[{"sku": 5, "more": '{"price": 2.5}'}, {"sku": 6, "more": '{"price": "x"}'}], []]
    table = {"user": [1, 2], "at": [T, T], "items": pa.array(items, kind)}
    fields = {"src": "user", "dst": "items.sku", "t": "at", "weight": "items.more.price"}
    topic = {"format": "arrow", "many": "items", "json": "items.more", "fields": fields, "time_unit": "s"}
    batch = read(topic, ipc(table))
    assert events(batch, "row", "src", "dst", "weight") == [(0, 1, 5, 2.5)]
    ((offset, row, reason, sentence),) = refused(batch)
    assert (offset, row, reason) == (100, 1, "wrong_type")
    assert "weight (items.more.price)" in sentence


def test_changes_of_mongodb_in_avro_have_their_rows_as_texts(registry: Registry) -> None:
    text = ["null", {"type": "string", "connect.name": "io.debezium.data.Json"}]
    source = {"type": "record", "name": "Source", "fields": [{"name": "ts_ms", "type": "long"}]}
    kinds = {"before": text, "after": text, "op": "string", "source": source}
    schema = {
        "type": "record",
        "name": "Envelope",
        "fields": [{"name": name, "type": kind} for name, kind in kinds.items()],
    }
    number = registry.add(schema)

    def change(op: str, before: str | None, after: str | None) -> bytes:
        content = BytesIO()
        row = {"before": before, "after": after, "op": op, "source": {"ts_ms": T * 1_000}}
        schemaless_writer(content, parse_schema(schema), row)
        return confluent(number, content.getvalue())

    row = '{{"_id": {{"$oid": "a"}}, "user": 1, "friend": {}}}'.format
    fields = {"src": "after.user", "dst": "after.friend", "t": "source.ts_ms", "event_id": "after._id.\\$oid"}
    topic = {"format": "debezium-avro", "json": "after", "fields": fields}
    changes = [
        change("c", None, row(2)),
        change("u", row(2), row(3)),
        change("d", row(3), None),
        change("c", None, "x"),
    ]
    batch = read(topic, *changes, registry={"url": registry.url})
    assert events(batch, "offset", "op", "src", "dst", "event_id") == [
        (100, 1, 1, 2, "a"), (102, -1, 1, 2, "a"), (102, 1, 1, 3, "a"), (104, -1, 1, 3, "a"),
    ]  # fmt: skip
    assert [(offset, reason) for offset, _, reason, _ in refused(batch)] == [(106, "wrong_type")]


def test_bytes_of_columns_are_decimals_of_the_scale_that_the_topic_names(registry: Registry) -> None:
    table = {
        "src": [1, 2],
        "dst": [3, 4],
        "t": [T, T],
        "weight": pa.array([b"\x04\xe2", b"\xff"], pa.binary()),
    }
    topic = {"format": "arrow", "scale": {"weight": 2}, "time_unit": "s"}
    assert events(read(topic, ipc(table)), "weight") == [(12.5,), (pytest.approx(-0.01),)]
    named = {"fields": {"src": "src", "dst": "dst", "t": "t", "weight": "weight"}}
    assert events(read(topic | named, ipc(table)), "weight") == [(12.5,), (pytest.approx(-0.01),)]
    kinds = {"src": "long", "dst": "long", "t": "long", "weight": "bytes"}
    schema = {
        "type": "record",
        "name": "E",
        "fields": [{"name": name, "type": kind} for name, kind in kinds.items()],
    }
    content = BytesIO()
    schemaless_writer(content, parse_schema(schema), {"src": 1, "dst": 2, "t": T, "weight": b"\x04\xe2"})
    message = confluent(registry.add(schema), content.getvalue())
    for more in ({}, named):
        batch = read(topic | more | {"format": "avro"}, message, registry={"url": registry.url})
        assert events(batch, "weight") == [(12.5,)]
