"""Topics that exist already: their paths, words and ids, as JSON and as Arrow, and what a wrong mapping is told."""

import json
from typing import Any

import pyarrow as pa
import pytest
from decoding import decode, ipc
from pydantic import ValidationError
from typer.testing import CliRunner

from freshet_graph.schemas.config import Topic
from freshet_graph.schemas.events import event_schema
from freshet_graph.schemas.fields import path_keys
from freshet_graph.stream.cli import app
from freshet_graph.stream.decode.encode import encode_arrow

PAYMENT = {
    "id": "p-1",
    "card": {"id": 17, "country": "FR", "id.old": 3},
    "merchant": {"id": "m/9", "location": {"lat": 48.85, "lon": 2.35}},
    "amount": 12.5,
    "created_at": "2024-01-01T12:00:00.25Z",
    "op": "ignored unless it is named",
}
FIELDS = {
    "src": "card.id",
    "dst": "merchant.id",
    "t": "created_at",
    "weight": "amount",
    "features": ["merchant.location.lat", "merchant.location.lon"],
    "event_id": "id",
}
TOPIC = {"fields": FIELDS, "time_unit": "rfc3339", "id_prefix": {"src": "card:", "dst": "merchant:"}}


def test_a_nested_topic_is_read_as_it_is():
    batch = decode(json.dumps(PAYMENT).encode(), topic=TOPIC, ids="string", features={"edge": 2})
    assert batch.rejects.to_pylist() == []
    assert batch.events.drop_columns(["offset"]).to_pylist() == [
        {
            "op": 1,
            "src": "card:17",
            "dst": "merchant:m/9",
            "t": 1_704_110_400_250_000,
            "weight": 12.5,
            "features": pytest.approx([48.85, 2.35]),
            "feature_offset": None,
            "label": None,
            "event_id": "p-1",
        }
    ]


def test_an_arrow_topic_with_other_columns_gives_the_same_events():
    row = PAYMENT | {"card": {"id": 17, "country": "FR"}}
    table = pa.Table.from_pylist([row, row | {"merchant": None}, row])
    times = pa.array([1_704_110_400_250] * 3, pa.timestamp("ms"))
    table = table.set_column(table.schema.get_field_index("created_at"), "created_at", times)
    message = ipc(table)
    topic = TOPIC | {"format": "arrow", "time_unit": None}
    batch = decode(message, message, topic=topic, ids="string", features={"edge": 2})
    expected = decode(json.dumps(PAYMENT).encode(), topic=TOPIC, ids="string", features={"edge": 2})
    wanted = expected.events.drop_columns(["offset"]).to_pylist() * 4
    # Where there is no merchant there is no dst: a node event, and its features are missing as well.
    assert batch.events["row"].to_pylist() == [0, 2, 0, 2]
    assert batch.events.drop_columns(["offset", "row"]).to_pylist() == wanted
    assert batch.rejects.select(["offset", "row", "reason"]).to_pylist() == [
        {"offset": 100, "row": 1, "reason": "missing_field"},
        {"offset": 102, "row": 1, "reason": "missing_field"},
    ]


def written(format_: str, rows: list[dict[str, Any]]) -> list[bytes]:
    """Rows as messages: one each, or all in one."""
    return (
        [json.dumps(row).encode() for row in rows] if format_ == "json" else [ipc(pa.Table.from_pylist(rows))]
    )


@pytest.mark.parametrize("format_", ["json", "arrow"])
def test_words_of_change_capture_are_inserts_and_deletes(format_):
    rows = [{"a": 1, "b": 2, "at": 10**9, "kind": word} for word in ("c", "u", "d", "truncate", None)]
    topic = {
        "format": format_,
        "time_unit": "s",
        "fields": {"src": "a", "dst": "b", "t": "at", "op": "kind"},
        "ops": {"c": "insert", "u": "insert", "d": "delete"},
    }
    batch = decode(*written(format_, rows), topic=topic)
    assert batch.events["op"].to_pylist() == [1, 1, -1, 1]
    assert batch.rejects["reason"].to_pylist() == ["unknown_op"]


@pytest.mark.parametrize("format_", ["json", "arrow"])
def test_a_topic_of_nodes_may_send_pieces_of_their_features(format_):
    rows = [{"user": 7, "at": 10**9, "from": 2, "new": [0.5, 1.5]}]
    fields = {"node": "user", "t": "at", "offset": "from", "values": "new"}
    topic = {"format": format_, "time_unit": "s", "fields": fields, "id_prefix": {"node": "user:"}}
    (event,) = decode(
        *written(format_, rows), topic=topic, ids="string", features={"node": 4}
    ).events.to_pylist()
    assert (event["op"], event["src"], event["dst"]) == (0, "user:7", None)
    assert (event["feature_offset"], event["features"]) == (2, [0.5, 1.5])


def test_what_is_wrong_in_a_mapped_message_is_told_with_its_path():
    def change(**more: Any) -> bytes:
        return json.dumps(PAYMENT | more).encode()

    values = [
        change(card={"country": "FR"}),
        change(card=None),
        change(card="17"),
        change(merchant={"id": "", "location": None}),
        change(merchant={"id": "x", "location": {"lat": 1}}),
        change(amount="twelve"),
        change(merchant={"id": "x" * 250, "location": None}),
    ]
    rejects = decode(*values, topic=TOPIC, ids="string", features={"edge": 2}).rejects
    assert rejects.select(["reason", "sentence"]).to_pylist() == [
        {"reason": "missing_field", "sentence": "src (card.id) is missing"},
        {"reason": "missing_field", "sentence": "src (card.id) is missing"},
        {"reason": "wrong_type", "sentence": "card is the string '17', expected an object"},
        {"reason": "bad_id", "sentence": "dst (merchant.id) is an empty string"},
        {
            "reason": "missing_field",
            "sentence": "features (merchant.location.lon) is missing, but others of features are given",
        },
        {"reason": "wrong_type", "sentence": "weight (amount) is the string 'twelve', expected a number"},
        {"reason": "id_too_long", "sentence": "dst (merchant.id) has more than 256 bytes of UTF-8"},
    ]


@pytest.mark.parametrize(
    ("path", "keys"),
    [
        ("a", ("a",)),
        ("a.b", ("a", "b")),
        (r"a\.b.c", ("a.b", "c")),
        (r"a\\.b", ("a\\", "b")),
        ("é. ", ("é", " ")),
    ],
)
def test_a_path_is_keys_joined_by_dots(path, keys):
    assert path_keys(path) == keys


@pytest.mark.parametrize(
    ("topic", "words"),
    [
        ({"fields": {"src": "a", "dst": "b"}}, ["fields.t", "required"]),
        ({"fields": {"src": "a", "t": "c"}}, ["src and dst belong together"]),
        ({"fields": {"t": "c"}}, ["name src and dst"]),
        ({"fields": {"node": "a", "t": "c", "values": "d"}}, ["offset and values belong together"]),
        ({"fields": {"src": "a", "dst": "b", "node": "a", "t": "c"}}, ["both at a. Give each a path"]),
        ({"fields": {"src": "a", "dst": "b", "t": "c", "offset": "d", "values": "e"}}, ["Name node as well"]),
        ({"fields": {"src": "a..b", "dst": "b", "t": "c"}}, ["fields.src", "empty key"]),
        ({"fields": {"src": "a\\b", "dst": "b", "t": "c"}}, ["fields.src", "backslash"]),
        ({"fields": {"src": ".".join("a" * 17), "dst": "b", "t": "c"}}, ["fields.src", "at most 16"]),
        ({"fields": {"src": "a", "dst": "a.b", "t": "c"}}, ["dst lies at a.b, inside of a, where src is"]),
        (
            {"fields": {"src": "a", "dst": "b", "t": "c", "features": ["d", "d"]}},
            ["features names a path twice"],
        ),
        ({"fields": {"src": "a", "dst": "b", "t": "c", "wieght": "d"}}, ["fields.wieght"]),
        ({"ops": {"d": "remove"}}, ["ops.d", "'insert' or 'delete'"]),
        ({"fields": {"src": "a", "dst": "b", "t": "c"}, "ops": {"d": "delete"}}, ["fields names no op"]),
        ({"id_prefix": {"src": "x" * 65}}, ["id_prefix.src"]),
    ],
)
def test_a_wrong_mapping_names_the_key(topic, words):
    with pytest.raises(ValidationError) as caught:
        Topic(name="payments", **topic)
    text = "; ".join(
        f"{'.'.join(str(place) for place in error['loc'])}: {error['msg']}" for error in caught.value.errors()
    )
    assert all(word in text for word in words), text


def test_prefixes_want_ids_that_are_text():
    with pytest.raises(
        ValidationError, match=r"id_prefix of topic edges makes ids text, but ids is int\. Set ids: string"
    ):
        decode(topic={"id_prefix": {"src": "card:"}}, ids="int")


@pytest.mark.parametrize("ids", ["int", "string"])
def test_the_printed_schemas_describe_what_is_accepted(ids, tmp_path):
    printed = CliRunner().invoke(app, ["schema", "--format", "arrow", "--ids", ids])
    fields = json.loads(printed.stdout)["fields"]
    assert [field["name"] for field in fields] == event_schema(ids).names
    types = {"utf8": pa.string(), "list<float>": pa.list_(pa.float32()), "float": pa.float32()}
    needed = [
        pa.field(field["name"], types.get(field["type"]) or pa.type_for_alias(field["type"]))
        for field in fields
        if field["required"]
    ]
    row = {"src": 1, "dst": 2, "t": 10**15} if ids == "int" else {"src": "a", "dst": "b", "t": 10**15}
    table = pa.Table.from_pylist([row], schema=pa.schema(needed))
    topic = {"format": "arrow", "time_unit": "us"}
    assert decode(ipc(table), topic=topic, ids=ids).events.num_rows == 1

    file = tmp_path / "events.arrows"
    assert CliRunner().invoke(app, ["schema", "--ids", ids, "--arrow", str(file)]).exit_code == 0
    wire = pa.ipc.open_stream(file.read_bytes()).schema
    whole = ipc(pa.Table.from_pylist([{"op": 1, "weight": 1.0, **row}], schema=wire))
    assert (wire.names, wire.types) == (event_schema(ids).names, event_schema(ids).types)
    assert decode(whole, topic=topic, ids=ids).events.num_rows == 1
    assert CliRunner().invoke(app, ["schema", "--arrow", str(tmp_path)]).exit_code == 1

    text = json.loads(CliRunner().invoke(app, ["schema", "--ids", ids]).stdout)
    edge = text["$defs"]["EdgeEvent"]
    assert edge["required"] == ["src", "dst", "t"]
    assert edge["properties"]["src"]["type"] == ("integer" if ids == "int" else "string")
    message = json.dumps({"src": row["src"], "dst": row["dst"], "t": 10**9}).encode()
    assert decode(message, ids=ids).events.num_rows == 1


def test_wrong_types_and_values_of_mapped_arrow_columns_are_told_with_their_paths():
    topic = {"format": "arrow", "fields": {"src": "card.id", "dst": "shop", "t": "at", "event_id": "uid"}}

    def refused(ids: str = "string", **columns: Any) -> list[str]:
        whole = {
            "card": pa.array([{"id": "a"}]),
            "shop": pa.array(["b"]),
            "at": pa.array([1_100_000_000_000_000]),
            "uid": pa.array(["e"]),
        }
        message = next(encode_arrow(pa.record_batch(whole | columns)))
        return decode(message, topic=topic, ids=ids).rejects["sentence"].to_pylist()

    assert refused() == []
    assert refused(card=pa.array([{"id": 1.5}])) == [
        "column src (card.id) is double, but ids are strings (config key ids)"
    ]
    assert refused(at=pa.array([True])) == [
        "column t (at) is bool, expected timestamps or numbers (time_unit us) or RFC 3339 strings"
    ]
    assert refused(uid=pa.array([""])) == ["event_id (uid) is an empty string"]
    assert refused(shop=pa.array([""])) == ["dst (shop) is an empty string"]
    assert refused(card=pa.array([{"id": None}], pa.struct([("id", pa.string())]))) == [
        "src (card.id) is missing"
    ]
    assert refused("int", card=pa.array([{"id": 1.5}]), shop=pa.array([2]))[0].startswith(
        "src (card.id) is 1.5, expected a whole number"
    )


def test_what_an_id_may_be_with_a_prefix_is_said():
    topic = {"id_prefix": {"src": "card:"}}
    rejects = decode(
        b'{"src": {}, "dst": {}, "t": 1100000000}',
        b'{"src": 7.5, "dst": "a", "t": 1100000000}',
        b'{"src": 1, "dst": {}, "t": 1100000000}',
        topic=topic,
        ids="string",
    ).rejects
    assert rejects["sentence"].to_pylist() == [
        "src is an object, expected a string or an integer",
        "src is 7.5, expected a string or an int64",
        "dst is an object, expected a string or an integer",
    ]
