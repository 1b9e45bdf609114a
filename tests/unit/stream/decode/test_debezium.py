"""Debezium's change events: rows that come, change and go, as edges, in JSON and in Avro."""

import base64
import json
from collections.abc import Callable, Iterator
from functools import partial
from io import BytesIO
from typing import Any

import pytest
from decoding import decode
from fastavro import parse_schema, schemaless_writer
from registry_server import Registry, confluent, serving

from freshet_graph.stream.microbatch import MicroBatch
from freshet_graph.stream.service.failure import Failure

T_MS = 1_082_040_961_000
FOLLOWS = {
    "type": "record",
    "name": "Value",
    "fields": [
        {"name": "who", "type": "long"},
        {"name": "whom", "type": ["null", "long"], "default": None},
        {"name": "note", "type": ["null", "string"], "default": None},
    ],
}
SOURCE = {
    "type": "record",
    "name": "Source",
    "fields": [{"name": "ts_ms", "type": "long"}, {"name": "db", "type": "string"}],
}
FIELDS = {"src": "after.who", "dst": "after.whom", "t": "source.ts_ms"}
Read = Callable[..., MicroBatch]


def envelope(before: list[Any], after: list[Any]) -> dict[str, Any]:
    """The schema of changes whose two rows have these types."""
    fields = [
        {"name": "before", "type": before, "default": None},
        {"name": "after", "type": after, "default": None},
        {"name": "source", "type": SOURCE},
        {"name": "op", "type": "string"},
        {"name": "ts_ms", "type": ["null", "long"], "default": None},
    ]
    return {"type": "record", "name": "Envelope", "fields": fields}


def change(op: str, before: Any = None, after: Any = None, ts_ms: int = T_MS) -> dict[str, Any]:
    return {
        "before": before,
        "after": after,
        "source": {"ts_ms": ts_ms, "db": "d"},
        "op": op,
        "ts_ms": ts_ms + 5,
    }


def row(who: float, whom: int | None, note: str | None = None) -> dict[str, Any]:
    return {"who": who, "whom": whom, "note": note}


def as_json(*changes: Any, **more: Any) -> MicroBatch:
    values = [None if each is None else json.dumps(each).encode() for each in changes]
    return decode(*values, topic={"format": "debezium", "fields": FIELDS, **more})


def with_schema(*changes: Any, **more: Any) -> MicroBatch:
    return as_json(
        *({"schema": {"type": "struct"}, "payload": each} if each else each for each in changes), **more
    )


def as_avro(registry: Registry, schema: dict[str, Any], *changes: Any, **more: Any) -> MicroBatch:
    parsed, values = parse_schema(schema), []
    number = registry.add(schema)
    for each in changes:
        written = BytesIO()
        if each is not None:
            schemaless_writer(written, parsed, each)
        values.append(None if each is None else confluent(number, written.getvalue()))
    topic = {"format": "debezium-avro", "fields": FIELDS, **more}
    return decode(*values, topic=topic, registry={"url": registry.url})


@pytest.fixture(scope="module")
def registry() -> Iterator[Registry]:
    with serving() as running:
        yield running


@pytest.fixture(params=["json", "schema", "avro"])
def read(request: pytest.FixtureRequest, registry: Registry) -> Read:
    usual = partial(as_avro, registry, envelope(["null", FOLLOWS], ["null", "Value"]))
    return {"json": as_json, "schema": with_schema, "avro": usual}[request.param]


def edges(batch: MicroBatch) -> list[tuple[int, ...]]:
    """(message, row in it, op, src, dst)."""
    columns = ("offset", "row", "op", "src", "dst")
    return [
        ((each["offset"] - 100) // 2, *(each[name] for name in columns[1:]))
        for each in batch.events.to_pylist()
    ]


def test_rows_that_come_and_go_are_inserts_and_deletes(read: Read) -> None:
    batch = read(
        change("r", None, row(1, 2)),
        change("c", None, row(1, 3)),
        change("d", row(1, 2), None),
        None,
        change("c", None, row(4, 5, note="d")),
        change("u", None, row(4, 5, note="u")),
    )
    assert edges(batch) == [
        (0, 1, 1, 1, 2),
        (1, 1, 1, 1, 3),
        (2, 0, -1, 1, 2),
        (4, 1, 1, 4, 5),
        (5, 1, 1, 4, 5),
    ]
    assert set(batch.events["t"].to_pylist()) == {T_MS * 1000}
    assert (batch.tombstones, batch.rejects.num_rows) == (1, 0)


def test_an_update_to_another_pair_deletes_the_former_one_at_its_own_time(read: Read) -> None:
    batch = read(
        change("u", row(1, 2), row(1, 3)),
        change("u", row(1, 3, "old"), row(1, 3, "new")),
        change("u", row(7, None), row(7, 8)),
    )
    assert edges(batch) == [(0, 0, -1, 1, 2), (0, 1, 1, 1, 3), (1, 1, 1, 1, 3), (2, 1, 1, 7, 8)]
    assert batch.rejects.num_rows == 0


def test_the_former_pair_is_deleted_at_the_time_of_the_update_and_not_of_its_row() -> None:
    fields = {"src": "after.who", "dst": "after.whom", "t": "after.changed"}
    old, new = row(1, 2) | {"changed": 1_082_040_961_000}, row(1, 3) | {"changed": 1_082_040_962_000}
    batch = as_json(change("u", old, new), fields=fields)
    assert edges(batch) == [(0, 0, -1, 1, 2), (0, 1, 1, 1, 3)]
    assert batch.events["t"].to_pylist() == [1_082_040_962_000_000] * 2


def test_both_events_of_a_move_have_the_id_of_the_update() -> None:
    """With the former row's id, the deletion would be a repeat of the event that came with it."""
    old, new = row(1, 2) | {"version": 7}, row(1, 3) | {"version": 8}
    batch = as_json(change("u", old, new), fields=FIELDS | {"event_id": "after.version"})
    assert batch.events["event_id"].to_pylist() == ["8", "8"]


def test_events_of_a_message_are_refused_together_with_the_whole_message() -> None:
    fields = FIELDS | {"weight": "after.amount"}
    moved = change("u", row(1, 2) | {"amount": 1}, row(1, 3) | {"amount": 1e39})
    batch = as_json(moved, change("c", None, row(4, 5)), fields=fields)
    assert edges(batch) == [(1, 1, 1, 4, 5)]
    (reject,) = batch.rejects.to_pylist()
    assert (reject["row"], reject["reason"], reject["raw"]) == (
        None,
        "not_finite",
        json.dumps(moved).encode(),
    )


@pytest.mark.parametrize(
    "word",
    [
        "__debezium_unavailable_value",
        "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ==",
        "5f5f646562657a69756d5f756e617661696c61626c655f76616c7565",
    ],
)
@pytest.mark.parametrize("prefix", [None, {"dst": "user:"}])
def test_the_placeholder_of_an_unchanged_column_is_no_id(word: str, prefix: dict[str, str] | None) -> None:
    topic = {"format": "debezium", "fields": FIELDS | {"event_id": "after.note"}, "id_prefix": prefix}

    def told(*changes: dict[str, Any]) -> MicroBatch:
        return decode(*(json.dumps(each).encode() for each in changes), topic=topic, ids="string")

    named = {"who": "a", "whom": word, "note": "n"}
    batch = told(
        change("u", None, named),
        change("c", None, {"who": "a", "whom": "b", "note": word}),
        change("d", named, None),
        change("u", named, {"who": "a", "whom": "b", "note": "n"}),
    )
    assert [(offset, row) for offset, row, *_ in edges(batch)] == [(3, 1)], "where from is not known"
    assert batch.rejects["reason"].to_pylist() == ["bad_id"] * 3
    first, second, _ = batch.rejects["sentence"].to_pylist()
    assert first == (
        "dst (after.whom) is Debezium's placeholder of a value that the database did not send. "
        "Set REPLICA IDENTITY FULL for the table"
    )
    assert second.startswith("event_id (after.note) is Debezium's placeholder")


@pytest.mark.parametrize(
    ("op", "value"),
    [("bytes", b"\xff"), ("bytes", b"c"), ({"type": "array", "items": "int"}, [1]), ("boolean", True)],
)
def test_an_op_that_is_no_text_is_named(registry: Registry, op: Any, value: Any) -> None:
    schema = envelope(["null", FOLLOWS], ["null", "Value"])
    schema["fields"][3] = {"name": "op", "type": op}
    (reject,) = as_avro(registry, schema, change(value, None, row(1, 2))).rejects.to_pylist()
    assert reject["reason"] == "wrong_type"
    assert reject["sentence"].startswith("field op is ")


def test_rows_whose_schema_is_wrong_are_refused_and_not_those_beside_them(registry: Registry) -> None:
    schema = envelope(["null"], ["null", FOLLOWS])
    schema["fields"][0] = {"name": "before", "type": "null"}
    batch = as_avro(registry, schema, change("c", None, row(1, 2)), change("d"), change("u", None, row(1, 3)))
    assert edges(batch) == [(0, 1, 1, 1, 2), (2, 1, 1, 1, 3)]
    assert batch.rejects["sentence"].to_pylist() == ["column before is null, expected a struct"]


def test_an_envelope_behind_confluents_header_is_read(registry: Registry) -> None:
    value = confluent(7, json.dumps(change("u", row(1, 2), row(1, 3))).encode())
    batch = decode(value, topic={"format": "debezium", "fields": FIELDS})
    assert edges(batch) == [(0, 0, -1, 1, 2), (0, 1, 1, 1, 3)]


def test_a_former_row_whose_id_is_no_id_is_not_deleted(registry: Registry) -> None:
    """Its place in the column of ids holds a 0, which is another node."""
    with_doubles = {**FOLLOWS, "fields": [{"name": "who", "type": "double"}, *FOLLOWS["fields"][1:]]}
    update = change("u", row(1.5, 2), row(1.0, 3))
    batch = as_avro(registry, envelope(["null", with_doubles], ["null", "Value"]), update)
    assert edges(batch) == [(0, 1, 1, 1, 3)]
    assert batch.rejects.num_rows == 0


def test_a_table_whose_schema_has_no_former_rows_has_inserts_of_updates(registry: Registry) -> None:
    batch = as_avro(registry, envelope(["null"], ["null", FOLLOWS]), change("u", None, row(1, 2)))
    assert edges(batch) == [(0, 1, 1, 1, 2)]
    assert batch.rejects.num_rows == 0


def test_what_is_no_change_of_a_row_is_refused(read: Read) -> None:
    batch = read(
        change("t"),
        change("d", None, None),
        change("c", None, None),
        change("d", row(3, None), None),
        change("c", None, row(1, 2), ts_ms=-(10**14)),
        change("c", None, row(1, 2)),
    )
    assert edges(batch) == [(5, 1, 1, 1, 2)]
    reasons = batch.rejects["reason"].to_pylist()
    assert reasons == ["unknown_op", *["missing_field"] * 3, "time_out_of_bounds"]
    sentences = batch.rejects["sentence"].to_pylist()
    assert "who) is missing" in sentences[1]
    assert "after" in sentences[2]
    assert "whom) is missing" in sentences[3]


def test_escapes_and_columns_named_as_the_envelope_are_told_apart() -> None:
    escaped = json.dumps(change("d", row(1, 2))).replace('"d"', '"\\u0064"').encode()
    moved = json.dumps(change("u", row(1, 2), row(2, 2))).replace('"u"', '"\\u0075"').encode()
    fields = {"format": "debezium", "fields": FIELDS}
    assert edges(decode(escaped, moved, topic=fields)) == [
        (0, 0, -1, 1, 2),
        (1, 0, -1, 1, 2),
        (1, 1, 1, 2, 2),
    ]
    outbox = change("c", None, row(1, 2) | {"payload": "x", "op": "d", "before": {"who": 9}})
    assert edges(as_json(outbox)) == [(0, 1, 1, 1, 2)]


def test_a_table_of_nodes_sets_features_and_its_deletions_are_refused() -> None:
    topic = {"fields": {"node": "after.who", "features": ["after.x", "after.y"], "t": "ts_ms"}}
    rows = [change("c", None, {"who": 1, "x": 0.5, "y": 2}), change("d", {"who": 1, "x": 0.5, "y": 2})]
    values = [json.dumps(each).encode() for each in rows]
    batch = decode(*values, topic={"format": "debezium", **topic}, features={"node": 2})
    assert batch.events.select(["op", "src", "features"]).to_pylist() == [
        {"op": 0, "src": 1, "features": [0.5, 2.0]}
    ]
    (reject,) = batch.rejects.to_pylist()
    assert (reject["reason"], reject["sentence"]) == ("unknown_op", "op is d, which is known for edges only")


@pytest.mark.parametrize(
    ("topic", "words"),
    [
        ({"ops": {"x": "insert"}, "fields": None}, "Leave out ops"),
        ({"fields": FIELDS | {"op": "op"}}, "Leave out ops"),
        ({"fields": FIELDS | {"src": "who"}}, "Write after.who"),
        ({"fields": FIELDS | {"dst": "before.whom"}}, "under after"),
    ],
)
def test_a_mapping_that_an_envelope_cannot_have_is_refused(topic: dict[str, Any], words: str) -> None:
    with pytest.raises(Failure, match="topic edges: ") as caught:
        as_json(**topic)
    assert words in str(caught.value)


CONNECT = "org.apache.kafka.connect.data."


def in_schema(after: dict[str, Any], kinds: dict[str, dict[str, Any]], op: str = "c", **more: Any) -> bytes:
    """A change with its schema around it; ``kinds`` are the columns' types."""
    fields = [{"field": name, "type": "bytes", **kind} for name, kind in kinds.items()]
    rows = [{"field": name, "type": "struct", "fields": fields} for name in ("before", "after")]
    payload = {"before": None, "after": after, "source": {"ts_ms": T_MS}, "op": op, **more}
    return json.dumps({"schema": {"type": "struct", "fields": rows}, "payload": payload}).encode()


def in_base64(number: int, size: int = 3) -> str:
    return base64.b64encode(number.to_bytes(size, "big", signed=True)).decode()


def decimal_kind(scale: int) -> dict[str, Any]:
    return {
        "name": f"{CONNECT}Decimal",
        "parameters": {"scale": str(scale), "connect.decimal.precision": "10"},
    }


PAID = {"src": "after.who", "dst": "after.whom", "t": "source.ts_ms", "weight": "after.amount"}


def test_decimals_as_bytes_have_the_scale_of_their_schema() -> None:
    kinds = {"who": decimal_kind(0), "amount": decimal_kind(2)}
    variable = {"amount": {"type": "struct", "name": "io.debezium.data.VariableScaleDecimal"}}
    row_ = {"who": in_base64(5), "whom": 6, "amount": in_base64(-1250)}
    values = [
        in_schema(row_, kinds),
        in_schema(row_ | {"who": 5, "amount": {"scale": 1, "value": in_base64(15)}}, variable),
        in_schema(row_ | {"amount": "!"}, kinds),
        in_schema(row_ | {"amount": None}, kinds),
        in_schema(row_ | {"who": 5}, {}),
        in_schema({"who": in_base64(7), "whom": 8}, kinds, "u", before={"who": in_base64(5), "whom": 6}),
    ]
    batch = decode(*values, topic={"format": "debezium", "fields": PAID})
    columns = (batch.events[name].to_pylist() for name in ("offset", "op", "src", "dst", "weight"))
    assert list(zip(*columns, strict=True)) == [
        (100, 1, 5, 6, -12.5), (102, 1, 5, 6, 1.5), (106, 1, 5, 6, 1.0), (110, -1, 5, 6, 1.0), (110, 1, 7, 8, 1.0),
    ]  # fmt: skip
    assert batch.rejects["sentence"].to_pylist() == [
        "weight (payload.after.amount) is the string '!', expected a number",
        f"weight (payload.after.amount) is the string {in_base64(-1250)!r}, expected a number",
    ]


def test_decimals_without_a_schema_have_a_scale_in_the_configuration() -> None:
    rows = {"who": 5, "whom": 6, "amount": in_base64(199)}
    values = [json.dumps(change("c", None, rows)).encode(), json.dumps(change("d", rows)).encode()]
    texts = json.dumps(change("c", None, rows | {"amount": "1.25"})).encode()
    topic = {"format": "debezium", "fields": PAID, "scale": {"after.amount": 2}}
    batch = decode(*values, texts, topic=topic)
    assert batch.events["weight"].to_pylist() == [pytest.approx(1.99), pytest.approx(1.99), 1.25]
    assert batch.events["op"].to_pylist() == [1, -1, 1]
    plain = {"fields": {"src": "a", "dst": "b", "t": "t", "weight": "w.x"}, "scale": {"w.x": 1}}
    message = json.dumps({"a": 1, "b": 2, "t": 1_100_000_000, "w": {"x": in_base64(-15)}}).encode()
    assert decode(message, topic=plain).events["weight"].to_pylist() == [-1.5]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("io.debezium.time.Date", T_MS // 86_400_000),
        (f"{CONNECT}Date", T_MS // 86_400_000),
        ("io.debezium.time.Timestamp", T_MS),
        (f"{CONNECT}Timestamp", T_MS),
        ("io.debezium.time.MicroTimestamp", T_MS * 1000),
        ("io.debezium.time.NanoTimestamp", T_MS * 10**6),
    ],
)
@pytest.mark.parametrize("unit", [None, "s", "us"])
def test_times_have_the_unit_that_their_schema_names(name: str, value: int, unit: str | None) -> None:
    fields = {"src": "after.who", "dst": "after.whom", "t": "after.at"}
    message = in_schema({"who": 1, "whom": 2, "at": value}, {"at": {"type": "int64", "name": name}})
    batch = decode(message, topic={"format": "debezium", "fields": fields, "time_unit": unit})
    expected = T_MS // 86_400_000 * 86_400_000 if name.endswith("Date") else T_MS
    assert batch.events["t"].to_pylist() == [expected * 1000]


def test_hostile_schemas_around_a_change_do_no_harm() -> None:
    good = json.loads(in_schema({"who": 1, "whom": 2, "amount": 3}, {}))
    schemas: list[Any] = [None, 5, [], {"fields": 5}, {"fields": [5]}, {"fields": [{"field": "after"}]}]
    deep: Any = {}
    for _ in range(30):
        deep = {"fields": [{"field": "after", **deep}]}
    kinds = [
        {"name": f"{CONNECT}Decimal", "parameters": p}
        for p in (None, {}, {"scale": "9" * 9}, {"scale": "x"}, {"scale": "²"})
    ]
    schemas += [deep, *(json.loads(in_schema({}, {"amount": kind}))["schema"] for kind in kinds)]
    values = [json.dumps(good | {"schema": schema}).encode() for schema in schemas]
    batch = decode(*values, topic={"format": "debezium", "fields": PAID})
    assert batch.events["weight"].to_pylist() == [3.0] * len(schemas)
