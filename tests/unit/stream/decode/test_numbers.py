"""Numbers as they come: texts of numbers, ids of the other kind, and operations that are no words."""

import json
import math
from collections.abc import Iterator
from decimal import Decimal
from io import BytesIO
from typing import Any

import pyarrow as pa
import pytest
from decoding import decode, decoder, ipc, poll, reasons
from fastavro import parse_schema, schemaless_writer
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from registry_server import Registry, confluent, serving

from freshet_graph.schemas.config import Topic
from freshet_graph.stream.decode.columns import decimals
from freshet_graph.stream.decode.validate import Faults

T = 1_100_000_000


def test_texts_of_numbers_in_json_are_numbers_where_numbers_are_needed() -> None:
    good = b'{"src":"1","dst":"-2","t":"1100000000.5","weight":"0.25","label":"7","features":["1","2e0"]}'
    bad = [
        b'{"src":"1a","dst":2,"t":1}',
        b'{"src":1,"dst":2,"t":1,"weight":"high"}',
        b'{"src":1,"dst":"05","t":1}',
    ]
    batch = decode(good, *bad, features={"edge": 2})
    (event,) = batch.events.drop_columns(["offset"]).to_pylist()
    assert (event["src"], event["dst"], event["t"]) == (1, -2, T * 10**6 + 500_000)
    assert (event["weight"], event["label"], event["features"]) == (0.25, 7, [1.0, 2.0])
    assert batch.rejects["sentence"].to_pylist() == [
        "src is the string '1a', but ids are int64 (config key ids)",
        "weight is the string 'high', expected a number",
        "dst is the string '05', but ids are int64 (config key ids)",
    ]


def test_ids_of_the_other_kind_are_converted_and_counted() -> None:
    values = [b'{"src":1,"dst":"b","t":1100000000}', b'{"src":"a","dst":"b","t":1100000000}']
    batch = decode(*values, b'{"src":"a","dst":"\\u0062","t":1100000000}', ids="string")
    assert batch.events["src"].to_pylist() == ["1", "a", "a"]
    assert batch.converted == 1
    batch = decode(b'{"src":"1","dst":2,"t":1100000000}', b'{"src":1,"dst":2,"t":1100000000}')
    assert (batch.events["src"].to_pylist(), batch.converted) == ([1, 1], 1)
    table = {"src": ["1", "2"], "dst": [3, 4], "t": [T * 10**6] * 2}
    batch = decode(ipc(table), topic={"format": "arrow"})
    assert (batch.events["src"].to_pylist(), batch.converted) == ([1, 2], 2)


@pytest.mark.parametrize("format_", ["json", "arrow"])
def test_booleans_numbers_and_null_are_words_of_op(format_: str) -> None:
    topic = {
        "format": format_,
        "time_unit": "s",
        "fields": {"src": "a", "dst": "b", "t": "t", "op": "gone"},
        "ops": {True: "delete", False: "insert", None: "delete"},
    }
    rows = [b'{"a":1,"b":2,"t":1100000000,"gone":%b}' % word for word in (b"true", b"false", b"null", b"2")]
    if format_ == "arrow":
        table = {"a": [1] * 3, "b": [2] * 3, "t": [T] * 3, "gone": [True, False, None]}
        rows = [ipc(table), ipc(table | {"gone": [2, 2, 2]})]
    batch = decode(*rows, topic=topic)
    assert batch.events["op"].to_pylist() == [-1, 1, -1]
    assert set(reasons(batch)) == {"unknown_op" if format_ == "arrow" else "wrong_type"}
    if format_ == "json":
        assert decode(b'{"a":1,"b":2,"t":1100000000}', topic=topic).events["op"].to_pylist() == [1]


@pytest.fixture
def registry() -> Iterator[Registry]:
    with serving() as running:
        yield running


def test_decimals_of_arrow_are_numbers() -> None:
    def column(*texts: str | None, kind: pa.DataType) -> pa.Array:
        return pa.array([None if text is None else Decimal(text) for text in texts], kind)

    table = {
        "src": column("5", "-6", kind=pa.decimal128(10, 0)),
        "dst": column("7.00", "7.50", kind=pa.decimal128(10, 2)),
        "t": column("1100000000.25", "1", kind=pa.decimal256(50, 6)),
        "weight": column("-0.1", None, kind=pa.decimal128(5, 2)),
        "features": pa.array([[Decimal("1.5")], [Decimal("2")]], pa.list_(pa.decimal128(5, 1))),
    }
    batch = decode(ipc(table), topic={"format": "arrow", "time_unit": "s"}, features={"edge": 1})
    (event,) = batch.events.to_pylist()
    assert (event["src"], event["dst"], event["t"]) == (5, 7, T * 10**6 + 250_000)
    assert (event["weight"], event["features"]) == (pytest.approx(-0.1), [1.5])
    assert batch.rejects["sentence"].to_pylist() == [
        "dst is the string '7.50', but ids are int64 (config key ids)"
    ]


DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 2}


def read_avro(registry: Registry, types: dict[str, Any], *rows: dict[str, Any], **more: Any) -> Any:
    fields = [{"name": name, "type": kind} for name, kind in types.items()]
    schema = {"type": "record", "name": "Edge", "fields": fields}
    number, plain = registry.add(schema), parse_schema(schema)
    values = []
    for row in rows:
        written = BytesIO()
        schemaless_writer(written, plain, row)
        values.append(confluent(number, written.getvalue()))
    topic = {"format": "avro", "time_unit": "ms", **more}
    return decode(*values, topic=topic, registry={"url": registry.url}, features={"edge": 2})


def test_decimals_of_avro_are_numbers_at_any_scale(registry: Registry) -> None:
    fixed = {"type": "fixed", "name": "F", "size": 12, "logicalType": "decimal", "precision": 20, "scale": 7}
    variable = {
        "type": "record",
        "name": "VariableScaleDecimal",
        "fields": [{"name": "scale", "type": "int"}, {"name": "value", "type": "bytes"}],
        "connect.name": "io.debezium.data.VariableScaleDecimal",
    }
    types = {
        "src": {"type": "bytes", "logicalType": "decimal", "precision": 9},
        "dst": "long",
        "t": DECIMAL,
        "weight": ["null", fixed],
        "amount": ["null", variable],
        "risk": ["null", DECIMAL | {"scale": 9}],
    }
    rows = [
        {
            "src": Decimal(5),
            "dst": 7,
            "t": Decimal("1100000000000.25"),
            "weight": Decimal("-1.5"),
            "amount": {"scale": scale, "value": value},
            "risk": Decimal("0.000000001"),
        }
        for scale, value in ((2, b"\xff\x38"), (-1, b"\x02"), (0, b""), (99, b"\x01"), (0, b"\x01" * 17))
    ]
    fields = {"src": "src", "dst": "dst", "t": "t", "weight": "weight", "features": ["amount", "risk"]}
    batch = read_avro(registry, types, *rows, {**rows[0], "amount": None, "risk": None}, fields=fields)
    assert batch.events["weight"].to_pylist() == [-1.5] * 3
    assert set(batch.events["t"].to_pylist()) == {T * 10**6 + 250}
    assert batch.events["features"].to_pylist() == [
        [-2.0, pytest.approx(1e-9)],
        [20.0, pytest.approx(1e-9)],
        None,
    ]
    assert batch.rejects["sentence"].to_pylist() == [
        "features (amount) is a decimal of 0 bytes, expected 1 to 16",
        "features (amount) is a decimal of scale 99",
        "features (amount) is a decimal of 17 bytes, expected 1 to 16",
    ]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ({"type": "int", "connect.name": "io.debezium.time.Date"}, T // 86_400),
        ({"type": "int", "logicalType": "date"}, T // 86_400),
        ({"type": "long", "connect.name": "io.debezium.time.Timestamp"}, T * 1000),
        ({"type": "long", "connect.name": "io.debezium.time.MicroTimestamp"}, T * 10**6),
        ({"type": "long", "connect.name": "io.debezium.time.NanoTimestamp"}, T * 10**9),
    ],
)
def test_times_have_the_unit_that_their_schema_names(registry: Registry, kind: Any, value: Any) -> None:
    types = {"src": "long", "dst": "long", "t": ["null", kind], "label": "int"}
    fields = {"src": "src", "dst": "dst", "t": "t", "label": "label"}
    batch = read_avro(
        registry, types, {"src": 1, "dst": 2, "t": value, "label": 3}, fields=fields, time_unit="s"
    )
    day = T // 86_400 * 86_400 * 10**6
    assert batch.events["t"].to_pylist() == [day if "int" in str(kind["type"]) else T * 10**6]


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(-(2**127), 2**127 - 1) | st.none(), min_size=1),
    st.integers(-3, 20),
    st.integers(0, 3),
)
def test_decimals_are_what_python_reads(numbers: list[int | None], scale: int, longer: int) -> None:
    content = [
        None
        if number is None
        else number.to_bytes(min(16, (number.bit_length() + 8) // 8 + longer), "big", signed=True)
        for number in numbers
    ]
    faults = Faults.none(len(numbers))
    texts = decimals("x", pa.array([b"", *content], pa.binary())[1:], scale, faults).to_pylist()
    assert faults.accepted.all()
    read = [None if text is None else Decimal(text) for text in texts]
    assert read == [None if n is None else Decimal(f"{n}E{-scale}") for n in numbers]


MADE = {
    "time_unit": "s",
    "fields": {
        "src": "a",
        "dst": "b",
        "t": "t",
        "features": [{"log": "amount"}, {"hash": "currency", "width": 4}, "amount", "$headers.x"],
    },
}


def one_hot(text: str, width: int) -> list[float]:
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return [float(place == value % width) for place in range(width)]


@pytest.mark.parametrize("format_", ["json", "arrow"])
def test_features_are_logarithms_and_categories(format_: str) -> None:
    table = {
        "a": [1] * 5,
        "b": [2] * 5,
        "t": [T] * 5,
        "amount": ["99", "-0.5", None, "1", "1"],
        "currency": ["EUR", "\u00a3\n", None, None, "true"],
    }
    rows = [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]
    values = [json.dumps(row).encode() for row in rows]
    if format_ == "arrow":
        values = [ipc(pa.Table.from_pylist([row], schema=pa.table(table).schema)) for row in rows]
    made = decoder(topic={"format": format_} | MADE, features={"edge": 7})
    batch = made.decode(poll(values, x=[b"7", b"8", None, b"9", b"9"]))
    assert batch.events["features"].to_pylist() == [
        pytest.approx([math.log(100), *one_hot("EUR", 4), 99, 7]),
        pytest.approx([-math.log(1.5), *one_hot("\u00a3\n", 4), -0.5, 8]),
        None,
        pytest.approx([math.log(2), *one_hot("true", 4), 1, 9]),
    ]
    assert batch.rejects["sentence"].to_pylist() == [
        "features (currency) is missing, but others of features are given"
    ]


def test_numbers_and_booleans_are_categories() -> None:
    topic = {"fields": {"src": "a", "dst": "b", "t": "t", "features": [{"hash": "k", "width": 8}]}}
    shapes = [b"5", b'"5"', b"true", b'"true"', b"[5]", b"-0"]
    values = [b'{"a":1,"b":2,"t":1100000000,"k":%b}' % shape for shape in shapes]
    batch = decode(*values, topic=topic, features={"edge": 8})
    words = ("5", "5", "true", "true", "0")
    assert batch.events["features"].to_pylist() == [one_hot(word, 8) for word in words]
    assert batch.rejects["sentence"].to_pylist() == ["features (k) is an array, expected a number"]


def test_a_wrong_made_feature_is_named() -> None:
    for made, words in (
        ({"hash": "k"}, "width"),
        ({"hash": "k", "width": 1}, "width"),
        ({"square": "k"}, "square"),
    ):
        with pytest.raises(ValidationError, match=words):
            Topic(name="t", fields={"src": "a", "dst": "b", "t": "t", "features": [made]})
