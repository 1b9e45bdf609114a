"""Protobuf messages, behind the header that names their schema in a registry, or bare, by a descriptor set."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import pyarrow as pa
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from pydantic import Field, model_validator
from typing_extensions import override

from freshet_graph.schemas.config import Kafka, Topic
from freshet_graph.schemas.errors import one_line
from freshet_graph.schemas.events import IdKind, event_schema
from freshet_graph.schemas.section import Section
from freshet_graph.stream.arrays.kinds import Int64
from freshet_graph.stream.decode.arrow import views
from freshet_graph.stream.decode.confluent import HEADER_BYTES, HEADLESS, schema_ids
from freshet_graph.stream.decode.formats.interface import FORMATS
from freshet_graph.stream.decode.formats.plain import refuses_columns
from freshet_graph.stream.decode.formats.protobuf_schema import (
    NOT_PROTOBUF,
    ProtobufSchema,
    Selector,
    WantedFields,
)
from freshet_graph.stream.decode.formats.registered import (
    UNKNOWN_SCHEMA,
    ColumnMessages,
    Columns,
    RegisteredSchemas,
)
from freshet_graph.stream.decode.formats.schema_registry import RegistryClient
from freshet_graph.stream.decode.reading import Limits, Read, RefusedError, refused_alike
from freshet_graph.stream.decode.times import TimeUnit
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.service.heartbeat import beat

BYTES_AT_ONCE = 4 << 20
"""Most bytes of messages turned into Python objects together; an object can take twenty times its message."""
MOST_INDEXES = 64
"""Deepest message type; a longer list of indexes is none."""

_FIELDS = {
    "op": "optional sint32",
    "src": "optional {}",
    "dst": "optional {}",
    "t": "optional int64",
    "weight": "optional float",
    "features": "repeated float",
    "feature_offset": "optional int32",
    "label": "optional int32",
    "event_id": "optional string",
}
"""The fields of Freshet's own message, numbered from 1; ids are int64 or string."""


class ProtobufOptions(Section):
    """Messages without a header: what they are."""

    descriptor: str | None = Field(
        None,
        description="A descriptor set of protoc, for messages without a header: "
        "protoc --include_imports --descriptor_set_out=shop.desc shop.proto. Null: messages name a schema of the registry.",
    )
    message: str | None = Field(
        None, description="With descriptor: the full name of their message type, such as shop.Payment."
    )

    @model_validator(mode="after")
    def _both(self) -> Self:
        if (self.descriptor is None) != (self.message is None):
            raise ValueError("descriptor and message belong together. Give both or neither")
        return self


@FORMATS.register
class ProtobufFormat(ColumnMessages):
    """One Protobuf message per record; its fields are read like the columns of an Arrow message."""

    name: ClassVar[str] = "protobuf"
    about: ClassVar[str] = "one Protobuf message per record, by a schema registry or a descriptor set"
    Options: ClassVar[type[Section]] = ProtobufOptions
    default_unit: ClassVar[TimeUnit] = "us"
    lists: ClassVar[bool] = True
    inner_json: ClassVar[bool] = True
    reasons: ClassVar[dict[str, str]] = {
        NOT_PROTOBUF: "no header, or no value of the message type that it names",
        UNKNOWN_SCHEMA: "the schema registry has no such schema, or it cannot be read",
    }

    def __init__(self, topic: Topic, kafka: Kafka, ids: IdKind, options: ProtobufOptions) -> None:
        super().__init__(topic, kafka, ids, options)
        names = tuple((name,) for name in event_schema(ids).names)
        paths = self.mapping.columns if self.mapping.mapped else names
        # Without presence an empty text is written like an absent one. As an id it would be that of all these events.
        texts = frozenset(keys for (name, _), keys in self.mapping.paths if name in ("event_id", "op"))
        self._fields = WantedFields.of(paths, self.mapping.many, texts, self.limits.rows)
        self._header, self._client = "confluent", None
        if kafka.schema_registry is not None and kafka.schema_registry.has_schemas:
            self._header, self._client = kafka.schema_registry.header, RegistryClient(kafka.schema_registry)
        self._schemas = RegisteredSchemas(self._fetched)
        self._bare: ProtobufSchema | None = None
        if options.descriptor is not None:
            try:
                content = Path(options.descriptor).read_bytes()
                self._bare = ProtobufSchema([(options.descriptor, content)], self._fields)
                self._bare.reader(options.message or "")
            except (OSError, RefusedError) as error:
                raise Failure(f"topic {topic.label}: format_params.descriptor: {one_line(error)}") from error
        elif self._client is None:
            raise Failure(
                f"topic {topic.label}: the schemas of format protobuf are in a registry. Give its address in "
                "kafka.schema_registry.url, or format_params with descriptor and message if messages have no header"
            )

    @classmethod
    @override
    def refuses(cls, topic: Topic, kafka: Kafka) -> str | None:
        return refuses_columns(topic)

    def _fetched(self, number: int) -> ProtobufSchema:
        assert self._client is not None, "the constructor requires it"
        return ProtobufSchema(self._client.protobuf(number), self._fields)

    @override
    def prepare(self, values: pa.LargeBinaryArray) -> str | None:
        return None if self._bare is not None else self._schemas.prepare(schema_ids(values))

    @override
    def read(self, values: pa.LargeBinaryArray, at_once: Limits | None) -> Read:
        payloads = views(values)
        numbers = np.zeros(len(values), np.int64) if self._bare is not None else schema_ids(values)
        read: list[Columns] = []
        refused = []
        headless = np.flatnonzero(numbers < 0)
        if len(headless):
            refused.append(refused_alike(headless, NOT_PROTOBUF, HEADLESS[self._header]))
        for number in np.unique(numbers[numbers >= 0]).tolist():
            which = np.flatnonzero(numbers == number)
            by_type = (
                {self.options.message: which.tolist()}
                if self._bare is not None
                else self._split(which, payloads)
            )
            for selector, messages in by_type.items():
                try:
                    if selector is None:
                        raise RefusedError(NOT_PROTOBUF, "names no message type behind its header")
                    reader = (self._bare or self._schemas.schema(number)).reader(selector)
                except RefusedError as error:
                    refused.append(refused_alike(np.array(messages, np.int64), error.reason, str(error)))
                    continue
                for part in _pieces(np.array(messages, np.int64), payloads):
                    batch, places, bad = reader.read([payloads[i] for i in part.tolist()])
                    refused += [refused_alike(part[[i]], reason, sentence) for i, reason, sentence in bad]
                    if places:
                        read.append((part[places], batch))
        return self._events(read, refused, len(values))

    def _split(self, which: Int64, payloads: list[memoryview]) -> dict[Selector | None, list[int]]:
        """Messages by their type, of which ``payloads`` then have the value only; None: they name none.

        A zero byte stands for the first type, whatever the header.
        """
        by_type: dict[Selector | None, list[int]] = {}
        select = {"glue": _glue_index, "apicurio": _apicurio_name}.get(self._header, _confluent_indexes)
        first: Selector = 0 if select is _glue_index else (0,)
        for i in which.tolist():
            behind = payloads[i][HEADER_BYTES:]
            try:
                selector, size = select(behind) if behind[0] else (first, 1)
            except (IndexError, ValueError):
                by_type.setdefault(None, []).append(i)
                continue
            payloads[i] = behind[size:]
            by_type.setdefault(selector, []).append(i)
        return by_type

    @override
    def samples(self, values: pa.LargeBinaryArray) -> Iterator[dict[str, Any]]:
        while self.prepare(values) is not None:
            beat()
        payloads = views(values)
        for i, number in enumerate(schema_ids(values).tolist()):
            with suppress(RefusedError, DecodeError):
                schema = self._bare or self._schemas.schema(number)
                types = {self.options.message: [i]} if self._bare else self._split(np.array([i]), payloads)
                yield from (schema.sample(name, payloads[i]) for name in types if name is not None)

    @override
    def encode(self, events: pa.RecordBatch) -> Iterator[tuple[bytes, int | None]]:
        head = b""
        if self._bare is None:
            assert self._client is not None, "the constructor requires it"
            number = self._client.register(f"{self.topic.name}-value", str(self.schema(self.ids)), "PROTOBUF")
            head = b"\0" + number.to_bytes(4, "big") + b"\0"
        event_class = GetMessageClass(_event_pool(self.ids).FindMessageTypeByName("freshet.Event"))
        for row, event in enumerate(events.select(event_schema(self.ids).names).to_pylist()):
            given = {name: value for name, value in event.items() if value is not None}
            yield head + event_class(**given).SerializeToString(), row

    @classmethod
    @override
    def schema(cls, ids: IdKind | None) -> str:
        fields = [f"  {line};" for line in _lines("string" if ids == "string" else "int64")]
        return "\n".join(
            ['syntax = "proto3";', "", "package freshet;", "", "message Event {", *fields, "}", ""]
        )


def _lines(an_id: str) -> list[str]:
    return [f"{kind.format(an_id)} {name} = {i}" for i, (name, kind) in enumerate(_FIELDS.items(), start=1)]


def _event_pool(ids: IdKind) -> DescriptorPool:
    """Freshet's own message, with presence as proto3's optional has it."""
    file = descriptor_pb2.FileDescriptorProto(name="freshet.proto", package="freshet", syntax="proto2")
    event = file.message_type.add(name="Event")
    scalars = descriptor_pb2.FieldDescriptorProto
    for line in _lines("int64" if ids == "int" else "string"):
        label, kind, name, _, number = line.split()
        event.field.add(
            name=name,
            number=int(number),
            type=getattr(scalars, f"TYPE_{kind.upper()}"),
            label=getattr(scalars, f"LABEL_{label.upper()}"),
        ).options.packed = label == "repeated"
    pool = DescriptorPool()
    pool.Add(file)
    return pool


def _pieces(which: Int64, payloads: list[memoryview]) -> Iterator[Int64]:
    """Messages in pieces of up to ``BYTES_AT_ONCE``."""
    ends = np.cumsum([len(payloads[i]) for i in which.tolist()])
    first = 0
    while first < len(which):
        before = ends[first - 1] if first else 0
        last = max(first + 1, int(np.searchsorted(ends, before + BYTES_AT_ONCE, side="right")))
        yield which[first:last]
        first = last


def _varint(content: memoryview, place: int) -> tuple[int, int]:
    """A number of at most five bytes, and where it ends.

    Raises:
        IndexError: It is cut.
        ValueError: It is longer.
    """
    number = 0
    for shift in range(0, 35, 7):
        byte = content[place]
        place += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, place
    raise ValueError("a number of more than five bytes")


def _confluent_indexes(content: memoryview) -> tuple[Selector, int]:
    """Zigzag numbers: how many, then the index at each level of nesting."""
    count, place = _varint(content, 0)
    if count % 2 or count > 2 * MOST_INDEXES:
        raise ValueError("no number of indexes")
    indexes = []
    for _ in range(count // 2):
        index, place = _varint(content, place)
        indexes.append((index >> 1) ^ -(index & 1))
    return tuple(indexes), place


def _glue_index(content: memoryview) -> tuple[Selector, int]:
    """The place of the message among the full names of all in the file, sorted."""
    return _varint(content, 0)


def _apicurio_name(content: memoryview) -> tuple[Selector, int]:
    """A message with a name in its first field, behind its length."""
    size, place = _varint(content, 0)
    length, name_at = _varint(content, place + 1)
    if content[place] != 0x0A or name_at + length != place + size or place + size > len(content):
        raise ValueError("no name of a message")
    return bytes(content[name_at : name_at + length]).decode(), place + size
