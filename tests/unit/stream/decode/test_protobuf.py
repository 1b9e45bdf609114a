"""Protobuf topics: messages by schemas of a registry or a descriptor set, and what a message may not cost."""

import base64
import json
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import registry_server
from decoding import decode, decoder, poll, reasons
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.json_format import ParseDict
from google.protobuf.message_factory import GetMessageClass
from registry_server import Registry, confluent, serving
from typer.testing import CliRunner

from freshet_graph.stream.cli import app
from freshet_graph.stream.decode.formats import protobuf_schema
from freshet_graph.stream.microbatch import MicroBatch
from freshet_graph.stream.service.failure import Failure

PAYMENT = """syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
import "shop/card.proto";
message Ignored { int32 x = 1; }
message Shop {
  enum Kind { UNKNOWN = 0; PAID = 1; REFUNDED = 2; }
  message Payment {
    string id = 1;
    Card card = 2;
    oneof whom { string merchant = 3; uint64 account = 4; }
    google.protobuf.Timestamp at = 5;
    google.protobuf.DoubleValue amount = 6;
    Kind kind = 7;
    map<string, double> marks = 8;
    map<string, Card> cards = 9;
    repeated float features = 10;
    optional sint32 label = 11;
    repeated Item items = 12;
    fixed64 total = 13;
    bytes blob = 14;
  }
  message Item { string sku = 1; float price = 2; }
}
"""
CARD = 'syntax = "proto3";\npackage shop;\nmessage Card { int64 id = 1; repeated string tags = 2; }\n'
EDGE = 'syntax = "proto3";\nmessage Edge { int64 src = 1; int64 dst = 2; int64 t = 3; }\n'
AT = 1_704_110_400
FIELDS = {"src": "card.id", "dst": "merchant", "t": "at"}


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    monkeypatch.setitem(registry_server.FILES, "shop/card.proto", CARD)
    with serving() as running:
        yield running


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return described(tmp_path_factory.mktemp("shop"), {"shop/card.proto": CARD, "shop/shop.proto": PAYMENT})


def described(folder: Path, files: dict[str, str]) -> Path:
    """The descriptor set of files, as protoc makes it for people."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{folder}", "--include_imports"]
    subprocess.run([*command, f"--descriptor_set_out={folder}/all.desc", [*files][-1]], check=True)
    return folder / "all.desc"


def written(descriptors: Path, kind: str, content: dict[str, Any]) -> bytes:
    """A message by the library's own writer, from the JSON form of Protobuf."""
    pool = DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(descriptors.read_bytes()).file:
        pool.Add(file)
    message = ParseDict(content, GetMessageClass(pool.FindMessageTypeByName(kind))())
    return bytes(message.SerializeToString())


def payment(shop: Path, **content: Any) -> bytes:
    whole = {"card": {"id": 17}, "merchant": "m9", "at": "2024-01-01T12:00:00.25Z", "kind": "PAID"}
    return written(shop, "shop.Shop.Payment", whole | content)


def register(registry: Registry) -> int:
    registry.add(CARD, "card", schemaType="PROTOBUF")
    references = [{"name": "shop/card.proto", "subject": "card", "version": 1}]
    return registry.add(PAYMENT, "shop", schemaType="PROTOBUF", references=references)


def read(registry: Registry, *values: bytes | None, topic: dict[str, Any], **more: Any) -> MicroBatch:
    given = {"ids": "string", "registry": {"url": registry.url}} | more
    return decode(*values, topic={"format": "protobuf"} | topic, **given)


NESTED = b"\x04\x02\x00"
"""Confluent's indexes of the first type inside of the second: 2, 1, 0 in zigzag."""


@pytest.mark.parametrize("serializes", [True, False])
def test_a_payments_topic_is_read_as_it_is(registry: Registry, shop: Path, serializes: bool) -> None:
    registry.serializes = serializes
    number = register(registry)
    messages = [
        payment(shop, id="p1", amount=12.5, marks={"risk": 0.5}, cards={"old": {"id": 3}}, label=-4),
        payment(shop, id="p2", kind="REFUNDED", marks={"risk": 1}, cards={"old": {"id": 4}}),
        payment(shop, id="", marks={"risk": 2}, cards={"old": {}}, label=0),
        payment(shop, marks={}, cards={}),
    ]
    topic = {
        "fields": FIELDS
        | {
            "op": "kind",
            "weight": "amount",
            "features": ["marks.risk", "cards.old.id"],
            "label": "label",
            "event_id": "id",
        },
        "ops": {"PAID": "insert", "REFUNDED": "delete"},
        "id_prefix": {"src": "card:"},
    }
    batch = read(
        registry,
        *[confluent(number, NESTED + one) for one in messages],
        topic=topic,
        features={"edge": 2},
    )
    assert batch.rejects.to_pylist() == []
    first, second, third, fourth = batch.events.to_pylist()
    assert first == {
        "op": 1,
        "src": "card:17",
        "dst": "m9",
        "t": AT * 10**6 + 250_000,
        "weight": 12.5,
        "features": [0.5, 3.0],
        "feature_offset": None,
        "label": -4,
        "event_id": "p1",
        "offset": 100,
    }
    assert (second["op"], second["weight"], second["label"]) == (-1, 1.0, None)
    assert (third["event_id"], third["label"], third["features"]) == (None, 0, [2.0, 0.0])
    assert fourth["features"] is None


def test_elements_of_a_repeated_field_are_events(registry: Registry, shop: Path) -> None:
    number = register(registry)
    items = [{"sku": f"s{i}", "price": i} for i in range(3)]
    rows = [payment(shop, items=items), payment(shop), payment(shop, items=[{"price": 1}, {"sku": "s9"}])]
    topic = {
        "many": "items",
        "fields": {"src": "card.id", "dst": "items.sku", "t": "at", "weight": "items.price"},
    }
    batch = read(registry, *[confluent(number, NESTED + row) for row in rows], topic=topic)
    assert batch.events["dst"].to_pylist() == ["s0", "s1", "s2", "s9"]
    assert batch.events["row"].to_pylist() == [0, 1, 2, 1]
    assert batch.tombstones == 1, "an empty list is no event"
    assert [(r["offset"], r["row"], r["sentence"]) for r in batch.rejects.to_pylist()] == [
        (104, 0, "dst (items.sku) is an empty string")
    ]
    few = read(registry, confluent(number, NESTED + rows[0]), topic=topic, max_message_rows=2)
    assert reasons(few) == ["too_large"]


def test_a_text_that_is_json_and_decimals_in_bytes_are_read(registry: Registry, shop: Path) -> None:
    number = register(registry)
    blob = base64.b64encode((1234).to_bytes(2, "big")).decode()
    row = payment(shop, merchant='{"to": {"id": "m7"}}', blob=blob)
    fields = {"src": "card.id", "dst": "merchant.to.id", "t": "at", "weight": "blob"}
    topic = {"fields": fields, "json": "merchant", "scale": {"blob": 2}}
    batch = read(registry, confluent(number, NESTED + row), topic=topic)
    assert batch.rejects.to_pylist() == []
    assert batch.events.select(["dst", "weight"]).to_pylist() == [
        {"dst": "m7", "weight": pytest.approx(12.34)}
    ]


def test_a_wrong_value_refuses_its_message_alone(registry: Registry, shop: Path) -> None:
    number = register(registry)
    good = payment(shop)
    texts = {"field merchant": b"\x1a\x01\xff"}
    wrong = {
        "not_protobuf": good[:-1] + b"\xff",
        "wrong_type": payment(shop) + b"\x38\x07",
        "time": payment(shop, at="9999-12-31T00:00:00Z"),
        "beyond": good + b"\x2a\x0a\x08" + b"\xff" * 8 + b"\x7f",
        "utf8": good + texts["field merchant"],
    }
    for part in (good[:1], good[:5], good[: len(good) - 3]):
        batch = read(registry, confluent(number, NESTED + part), topic={"fields": FIELDS})
        assert reasons(batch) in (["not_protobuf"], ["missing_field"], ["time_out_of_bounds"]), part
    topic = {"fields": FIELDS | {"op": "kind"}, "ops": {"PAID": "insert"}}
    values = [good, *wrong.values(), good]
    batch = read(registry, *[confluent(number, NESTED + value) for value in values], topic=topic)
    assert batch.events["offset"].to_pylist() == [100, 112]
    assert [(r["reason"], r["sentence"].split(":")[0]) for r in batch.rejects.to_pylist()] == [
        ("not_protobuf", "is no value of its Protobuf message shop.Shop.Payment"),
        ("wrong_type", "field kind is 7, which enum shop.Shop.Kind has no name for"),
        ("time_out_of_bounds", batch.rejects["sentence"][2].as_py().split(":")[0]),
        ("not_protobuf", "is no value of its Protobuf message shop.Shop.Payment"),
        ("not_protobuf", "is no value of its Protobuf message shop.Shop.Payment"),
    ]


def test_numbers_without_a_sign_are_read_up_to_int64(registry: Registry, shop: Path) -> None:
    number = register(registry)
    values = [payment(shop, merchant=None, account=n, total=7) for n in (5, 2**63, 2**64 - 1)]
    topic = {"fields": {"src": "total", "dst": "account", "t": "at"}}
    for ids, first in (("int", 5), ("string", "5")):
        batch = read(registry, *[confluent(number, NESTED + one) for one in values], topic=topic, ids=ids)
        assert batch.events["dst"].to_pylist() == [first]
        assert reasons(batch) == ["bad_id"] * 2
        assert "dst (account)" in batch.rejects["sentence"][0].as_py()


def test_fields_that_cannot_be_read_are_named(registry: Registry, shop: Path) -> None:
    number = register(registry)
    for dst, words in {
        "card": "field card is a message. Name a field inside of it",
        "marks": "field marks is a map. Name a key inside of it",
        "merchant.id": "field merchant is no message",
        "items": "field items is a message",
        "card.tags": "field card.tags is repeated, expected numbers",
        "shop": "column shop is missing; found card, at",
        "card.name": "column card.name is missing; card has id",
    }.items():
        fields = (
            {"src": "card.id", "dst": dst, "t": "at"}
            if dst != "card"
            else FIELDS | {"src": "label", "dst": dst}
        )
        batch = read(registry, confluent(number, NESTED + payment(shop)), topic={"fields": fields})
        assert words in batch.rejects["sentence"][0].as_py()


def test_headers_that_name_no_message_are_refused(registry: Registry, shop: Path) -> None:
    number, good = register(registry), payment(shop)
    edge = registry.add(EDGE, "edge", schemaType="PROTOBUF")
    avro = registry.add({"type": "record", "name": "E", "fields": []})
    behind = {
        b"\x04\x02": "not_protobuf",
        b"\x04\x02\x08" + good: "unknown_schema",
        b"\x03": "not_protobuf",
        b"\xff\xff\xff\xff\xff\xff": "not_protobuf",
        b"": "not_protobuf",
        b"\x02\x01" + good: "unknown_schema",
    }
    values = [confluent(number, one) for one in behind] + [good, confluent(99, good), confluent(avro, good)]
    batch = read(registry, *values, confluent(edge, b"\0\x08\x01\x10\x02"), topic={"fields": FIELDS})
    expected = [*behind.values(), "not_protobuf", "unknown_schema", "unknown_schema", "missing_field"]
    assert reasons(batch) == expected
    sentences = batch.rejects["sentence"].to_pylist()
    assert "has no schema 99" in sentences[-3]
    assert "is AVRO, expected PROTOBUF (config key kafka.topics.format)" in sentences[-2]
    other = decode(confluent(edge, b"\0"), topic={"format": "avro"}, registry={"url": registry.url})
    assert "is PROTOBUF, expected AVRO" in other.rejects["sentence"][0].as_py()


def test_schemas_of_a_topic_may_change(registry: Registry) -> None:
    old = registry.add(EDGE, "edge", schemaType="PROTOBUF")
    new = registry.add(
        EDGE.replace("int64 src = 1", "sint64 src = 1; double weight = 9"), "edge", schemaType="PROTOBUF"
    )
    t = b"\x18" + b"\x80\xc0\xb4\xa6\xd4\xbf\x8d\x03"
    values = [
        confluent(old, b"\0\x08\x02\x10\x05" + t),
        confluent(new, b"\0\x08\x04\x10\x05" + t + b"\x49" + b"\0" * 6 + b"\xe0\x3f"),
        confluent(old, b"\0\x10\x05" + t),
    ]
    batch = read(registry, *values, topic={}, ids="int", time_bounds=[0, None])
    assert batch.rejects.to_pylist() == []
    assert batch.events["src"].to_pylist() == [2, 2, 0], "zero is not written in proto3"
    topic = {"fields": {"src": "src", "dst": "dst", "t": "t", "weight": "weight"}}
    batch = read(registry, *values, topic=topic, ids="int", time_bounds=[0, None])
    assert batch.events["weight"].to_pylist() == [1.0, 0.5, 1.0], "the old schema has no weight"


def test_proto2_has_defaults_groups_and_presence(registry: Registry) -> None:
    text = """syntax = "proto2"; message Edge { required int32 src = 1; optional group End = 2 { optional int64 id = 3; }
    optional int64 t = 4 [default = 1704110400]; enum Op { insert = 1; delete = 2; } optional Op op = 5 [default = delete];
    extensions 100 to 200; }"""
    number = registry.add(text, schemaType="PROTOBUF")
    fields = {"src": "src", "dst": "end.id", "t": "t", "op": "op"}
    topic = {"fields": fields, "time_unit": "s"}
    values = [b"\0\x08\x01\x13\x18\x07\x14", b"\0\x08\x01\x13\x18\x07\x14\x28\x01", b"\0\x08\x01"]
    batch = read(registry, *[confluent(number, one) for one in values], topic=topic, ids="int")
    assert batch.events.select(["op", "dst", "t"]).to_pylist() == [
        {"op": op, "dst": 7, "t": AT * 10**6} for op in (-1, 1)
    ]
    assert batch.rejects["sentence"].to_pylist()[0].startswith("dst (end.id) is missing")


def test_messages_of_editions_may_be_delimited(registry: Registry) -> None:
    text = """edition = "2023"; message Edge { int64 src = 1; int64 t = 3; End end = 2 [features.message_encoding = DELIMITED];
    float weight = 4 [features.field_presence = IMPLICIT]; } message End { int64 id = 3; }"""
    number = registry.add(text, schemaType="PROTOBUF")
    fields = {"src": "src", "dst": "end.id", "t": "t", "weight": "weight"}
    values = [b"\0\x08\x01\x13\x18\x07\x14\x18\x05", b"\0\x13\x18\x07\x14\x18\x05"]
    topic = {"fields": fields, "time_unit": "s"}
    batch = read(
        registry, *[confluent(number, one) for one in values], topic=topic, ids="int", time_bounds=[0, None]
    )
    assert batch.events.select(["src", "dst", "weight"]).to_pylist() == [{"src": 1, "dst": 7, "weight": 0.0}]
    assert reasons(batch) == ["missing_field"], "in an edition fields have presence"


def test_decimals_of_connect_are_read(registry: Registry) -> None:
    text = 'syntax = "proto3"; import "confluent/type/decimal.proto";\nmessage E { confluent.type.Decimal amount = 4; }'
    decimal = """syntax = "proto3"; package confluent.type;
    message Decimal { bytes value = 1; uint32 precision = 2; int32 scale = 3; }"""
    registry_server.FILES["confluent/type/decimal.proto"] = decimal
    whole = text.replace("{", "{ int64 src = 1; int64 dst = 2; int64 t = 3;", 1)
    file = registry_server.serialized(whole, ["confluent/type/decimal.proto"])
    del registry_server.FILES["confluent/type/decimal.proto"]
    number = registry.add(file, schemaType="PROTOBUF")
    message = b"\0\x08\x01\x10\x02\x18\x05" + b"\x22\x06\x0a\x02\xfb\x2e\x18\x02"
    fields = {"src": "src", "dst": "dst", "t": "t", "weight": "amount"}
    topic = {"fields": fields, "time_unit": "s"}
    batch = read(registry, confluent(number, message), topic=topic, ids="int", time_bounds=[0, None])
    assert batch.events["weight"].to_pylist() == [pytest.approx(-12.34)]


def test_types_that_no_path_names_need_not_be_there(registry: Registry) -> None:
    file = descriptor_pb2.FileDescriptorProto(
        name="x.proto", syntax="proto3", dependency=["google/type/money.proto"]
    )
    edge = file.message_type.add(name="Edge")
    for i, name in enumerate(("src", "dst", "t"), start=1):
        edge.field.add(name=name, number=i, type=3, label=1)
    edge.field.add(name="price", number=4, type_name="google.type.Money", label=1)
    number = registry.add(base64.b64encode(file.SerializeToString()).decode(), schemaType="PROTOBUF")
    message = confluent(number, b"\0\x08\x01\x10\x02\x18\x05\x22\x02\x08\x01")
    topic = {"time_unit": "s"}
    batch = read(registry, message, topic=topic, ids="int", time_bounds=[0, None])
    assert batch.events.num_rows == 1
    topic["fields"] = {"src": "src", "dst": "dst", "t": "t", "weight": "price.units"}
    batch = read(registry, message, topic=topic, ids="int")
    assert "its Protobuf schema cannot be read" in batch.rejects["sentence"][0].as_py()


def test_bare_messages_are_read_by_a_descriptor_set(shop: Path, tmp_path: Path) -> None:
    params = {"descriptor": str(shop), "message": "shop.Shop.Payment"}
    topic = {"format": "protobuf", "fields": FIELDS, "format_params": params}
    batch = decode(payment(shop), b"\xff", None, topic=topic, ids="string")
    assert batch.events["src"].to_pylist() == ["17"]
    assert reasons(batch) == ["not_protobuf"]
    (tmp_path / "no.desc").write_bytes(b"\xff\xff")
    for change, words in (
        ({"message": "Payment"}, "has no message 'Payment'"),
        ({"descriptor": "absent.desc"}, "format_params.descriptor: .*absent.desc"),
        ({"descriptor": str(tmp_path / "no.desc")}, "its Protobuf schema cannot be read"),
        ({"message": None}, "descriptor and message belong together"),
        ({"descriptor": None, "message": None}, "or format_params with descriptor and message"),
    ):
        with pytest.raises(Failure, match=words):
            decoder(topic=topic | {"format_params": params | change})


def test_a_schema_that_is_text_needs_the_compiler(
    registry: Registry, shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.serializes = False
    number = registry.add('syntax = "proto3"; message E { Missing m = 1; }', schemaType="PROTOBUF")
    batch = read(registry, confluent(number, b"\0"), topic={"fields": FIELDS})
    assert '"Missing" is not defined' in batch.rejects["sentence"][0].as_py()
    monkeypatch.setattr(protobuf_schema, "find_spec", lambda _: None)
    batch = read(registry, confluent(number, b"\0"), topic={"fields": FIELDS})
    assert "pip install 'freshet-graph[protobuf]'" in batch.rejects["sentence"][0].as_py()


def test_what_no_event_needs_costs_no_more_than_its_bytes(registry: Registry) -> None:
    wide = " ".join(f"int64 f{i} = {i};" for i in range(1, 500))
    text = EDGE + f"message Wide {{ {wide} }} message More {{ int64 src = 1; repeated Wide wide = 2; }}"
    number = registry.add(text, schemaType="PROTOBUF")
    given = decoder(topic={"format": "protobuf"}, registry={"url": registry.url})
    bomb = poll([confluent(number, b"\x02\x04" + b"\x12\x00" * 49_000)])
    given.decode(bomb)
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    given.decode(bomb)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 20 << 10, (
        "the library has none of them"
    )


@pytest.mark.parametrize("ids", ["int", "string"])
def test_the_printed_schema_is_that_of_written_messages(ids: str, registry: Registry, tmp_path: Path) -> None:
    printed = CliRunner().invoke(app, ["schema", "--format", "protobuf", "--ids", ids])
    assert printed.exit_code == 0, printed.output
    descriptors = described(tmp_path, {"event.proto": printed.stdout})
    src = 7 if ids == "int" else "n7"
    row = {"src": src, "dst": src, "t": str(AT * 10**6), "op": -1, "features": [0.5, 2.0], "eventId": "e"}
    params = {"descriptor": str(descriptors), "message": "freshet.Event"}
    topic = {"format": "protobuf", "format_params": params}
    batch = decode(written(descriptors, "freshet.Event", row), topic=topic, ids=ids, features={"edge": 2})
    assert batch.rejects.to_pylist() == []
    assert batch.events.select(["op", "src", "features", "event_id"]).to_pylist() == [
        {"op": -1, "src": src, "features": [0.5, 2.0], "event_id": "e"}
    ]
    as_json = CliRunner().invoke(app, ["schema", "--format", "protobuf", "--ids", ids, "--json"])
    assert json.loads(as_json.stdout) == {"schema": printed.stdout}
