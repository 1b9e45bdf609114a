"""Where messages name their schemas: Confluent's header, records' headers, Apicurio's and AWS Glue's; and schemas in files."""

import base64
import json
import zlib
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from decoding import decoder, poll, reasons
from fastavro import parse_schema, schemaless_writer
from google.protobuf import descriptor_pb2
from pydantic import ValidationError
from registry_server import Registry, confluent, serialized, serving

from freshet_graph.schemas.config import SchemaRegistry
from freshet_graph.stream.decode import confluent as headers
from freshet_graph.stream.decode.formats.interface import UnavailableError
from freshet_graph.stream.decode.formats.schema_registry import RegistryClient
from freshet_graph.stream.service.failure import Failure

GUID = UUID("89791762-2336-4186-9674-299b90a802e2")
AVRO = {
    "type": "record",
    "name": "Edge",
    "fields": [{"name": n, "type": "long"} for n in ("src", "dst", "t")],
}
PROTOBUF = """syntax = "proto3"; package shop; message Other { message Inner { int32 x = 1; } }
message Edge { int64 src = 1; int64 dst = 2; int64 t = 3; }"""
T_S = 1_704_110_400


@pytest.fixture
def registry() -> Iterator[Registry]:
    with serving() as running:
        yield running


def avro(src: int) -> bytes:
    sink = BytesIO()
    schemaless_writer(sink, parse_schema(AVRO), {"src": src, "dst": 2, "t": T_S})
    return sink.getvalue()


def protobuf(src: int) -> bytes:
    return bytes([0x08, src, 0x10, 2, 0x18, 0x80, 0xE4, 0xC9, 0xAC, 0x06])


def json_text(src: int) -> bytes:
    return json.dumps({"src": src, "dst": 2, "t": T_S}).encode()


def apicurio(number: int, value: bytes) -> bytes:
    return b"\0" + number.to_bytes(8, "big") + value


def glue(value: bytes, guid: UUID = GUID, *, packed: bool = False) -> bytes:
    return bytes([3, 5 if packed else 0]) + guid.bytes + (zlib.compress(value) if packed else value)


NAMED = b"\x06\x0a\x04Edge"
"""The name of a message type as Apicurio writes it."""

VALUES: dict[str, tuple[Callable[[int], bytes], dict[str, bytes]]] = {
    "avro": (avro, {}),
    # Edge is the second message of the file, and the first of the sorted names.
    "protobuf": (protobuf, {"confluent": b"\x02\x02", "record": b"", "apicurio": NAMED, "glue": b"\0"}),
    "json": (json_text, {}),
}


def add(registry: Registry, name: str) -> int:
    if name == "avro":
        return registry.add(AVRO)
    if name == "protobuf":
        return registry.add(PROTOBUF, schemaType="PROTOBUF")
    return registry.add({"type": "object"}, schemaType="JSON")


def files(folder: Path) -> dict[str, dict[str, str]]:
    """The schemas of formats in files, by the UUID."""
    (folder / "edge.avsc").write_text(json.dumps(AVRO))
    file = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(serialized(PROTOBUF, [])))
    (folder / "edge.desc").write_bytes(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())
    named = {"avro": "edge.avsc", "protobuf": "edge.desc"}
    return {name: {str(GUID).upper(): str(folder / file)} for name, file in named.items()} | {"json": {}}


@pytest.mark.parametrize("header", ["confluent", "record", "apicurio", "glue"])
@pytest.mark.parametrize("name", VALUES)
def test_each_format_is_read_behind_each_header(
    name: str, header: str, registry: Registry, tmp_path: Path
) -> None:
    value_of, prefixes = VALUES[name]
    number = add(registry, name)
    registry.guids[str(GUID)] = number
    framed = {
        "confluent": lambda value: confluent(number, value),
        "record": lambda value: value,
        "apicurio": lambda value: apicurio(number, value),
        "glue": glue,
    }[header]
    section = {"header": header} | (
        {"files": files(tmp_path)[name]} if header == "glue" else {"url": registry.url}
    )
    values = [framed(prefixes.get(header, b"") + value_of(src)) for src in (1, 3)]
    indexes = b"\x02\x02" if name == "protobuf" else b""
    columns: dict[str, list[Any]] = {}
    if header == "record":
        in_value = confluent(number, indexes + value_of(5))
        values, columns = (
            [*values, in_value],
            {"__value_schema_id": [b"\1" + GUID.bytes + indexes] * 2 + [None]},
        )
    if header == "glue":
        values.append(glue(prefixes.get(header, b"") + value_of(5), packed=True))
    given = decoder(topic={"format": name, "time_unit": "s"}, registry=section)
    batch = given.decode(poll([*values, b"\xff"], **{k: [*cells, None] for k, cells in columns.items()}))
    assert batch.events["src"].to_pylist() == [1, 3, *([5] if len(values) == 3 else [])]
    assert reasons(batch) == [f"not_{name}"]
    if name != "json":
        assert batch.rejects["sentence"].to_pylist() == [headers.HEADLESS[header]]
        path = f"guids/{GUID}" if header == "record" else f"ids/{number}"
        query = "?format=serialized" if name == "protobuf" else ""
        assert (f"/schemas/{path}{query}" in registry.asked) == (header != "glue")


def test_keys_name_their_schemas_like_values(registry: Registry) -> None:
    number = registry.add('"long"')
    registry.guids[str(GUID)] = number
    fields = {"src": "$key", "dst": "to", "t": "$timestamp"}
    topic = {"fields": fields, "key_format": "avro"}
    for header, keys, columns in (
        ("record", [b"\x0a", confluent(number, b"\x0a")], {"__key_schema_id": [b"\1" + GUID.bytes, None]}),
        ("apicurio", [apicurio(number, b"\x0a"), confluent(number, b"\x0a")], {}),
    ):
        given = decoder(topic=topic, registry={"url": registry.url, "header": header})
        raw = poll([b'{"to":1}'] * 2, key=keys, timestamp=[T_S * 1000] * 2, **columns)
        assert given.decode(raw).events["src"].to_pylist() == [5, 5]
        assert given.config.kafka.record_columns(given.config.kafka.topics[0]) == {"$key", "$timestamp"} | (
            {"$headers.__value_schema_id", "$headers.__key_schema_id"} if header == "record" else set()
        )


def test_what_is_packed_costs_a_bounded_multiple(tmp_path: Path) -> None:
    section = {"header": "glue", "files": {}}
    given = decoder(registry=section)
    text = json_text(1)
    values = [
        glue(text, packed=True),
        glue(text[:-1] + b"," + b" " * 90_000 + b'"x":1}', packed=True),
        glue(text, packed=True)[:-3],
        glue(text, packed=True) + b"more",
        glue(text[:-1] + b" " * 300_000 + b"}", packed=True),
        bytes([3, 7]) + GUID.bytes + text,
        bytes([3, 0]),
        glue(text),
    ]
    batch = given.decode(poll(values))
    assert batch.events["offset"].to_pylist() == [100, 114]
    assert reasons(batch) == ["not_json"] * 6


def test_random_guids_do_not_fill_the_memory(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(headers, "_GUIDS", 16)
    number = registry.add(AVRO)
    registry.guids[str(GUID)] = number
    given = decoder(
        topic={"format": "avro", "time_unit": "s"}, registry={"url": registry.url, "header": "record"}
    )
    for first in range(0, 100, 10):
        ids = [b"\1" + UUID(int=first + i).bytes for i in range(10)] + [b"\1" + GUID.bytes]
        batch = given.decode(poll([avro(1)] * 11, __value_schema_id=ids))
        assert batch.events.num_rows == 1
        assert set(reasons(batch)) == {"unknown_schema"}
    assert len(headers.GUIDS._numbers) <= 16
    again = given.decode(poll([avro(1)], __value_schema_id=[b"\1" + GUID.bytes]))
    assert again.events.num_rows == 1


def test_schemas_are_read_from_files(registry: Registry, tmp_path: Path) -> None:
    (tmp_path / "edge.avsc").write_text(json.dumps(AVRO))
    named = {17: str(tmp_path / "edge.avsc"), 18: str(tmp_path / "absent.avsc")}
    section = {"files": named}
    topic = {"format": "avro", "time_unit": "s"}
    given = decoder(topic=topic, registry=section)
    batch = given.decode(poll([confluent(17, avro(4)), confluent(19, avro(4))]))
    assert batch.events["src"].to_pylist() == [4]
    assert batch.rejects["sentence"].to_pylist() == [
        "schema 19 is not in kafka.schema_registry.files. Name its file there"
    ]
    with pytest.raises(UnavailableError, match=r"kafka\.schema_registry\.files\[18\]: .*absent\.avsc"):
        given.decode(poll([confluent(18, avro(4))]))
    both = decoder(topic=topic, registry=section | {"url": registry.url})
    number = registry.add(AVRO)
    assert both.decode(poll([confluent(number, avro(4)), confluent(17, avro(5))])).events.num_rows == 2
    with pytest.raises(Failure, match="has no url, so no schema can be registered"):
        RegistryClient(SchemaRegistry(files=named)).register("s", AVRO)


def test_headers_and_sources_of_schemas_belong_together() -> None:
    with pytest.raises(ValidationError, match=r"AWS Glue's registry is not asked\. Leave out url"):
        SchemaRegistry(url="http://r:1", header="glue")
    assert not SchemaRegistry(header="glue").has_schemas
    for name in ("avro", "protobuf"):
        with pytest.raises(Failure, match=r"Give its address in kafka\.schema_registry\.url"):
            decoder(topic={"format": name}, registry={"header": "glue"})


def test_any_number_of_json_messages_is_read_without_their_header() -> None:
    for count in range(1, 6):
        values = pa.array([confluent(1, b"abc"), b"ab", None, b"\0"][:count] * count, pa.large_binary())
        bare, framed = headers.without_header(values)
        assert bare.to_pylist() == [
            b"abc" if is_framed else value
            for value, is_framed in zip(values.to_pylist(), framed, strict=True)
        ]
        assert framed.sum() == count
