"""Avro messages behind Confluent's header: a zero byte, the id of the schema, and the value."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from io import BytesIO
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from fastavro import parse_schema, schemaless_reader, schemaless_writer

from freshet_graph.schemas.config import Kafka, SchemaRegistry, Topic
from freshet_graph.schemas.events import IdKind, event_schema
from freshet_graph.schemas.fields import PathKeys
from freshet_graph.schemas.section import Section
from freshet_graph.stream.arrays.kinds import UInt8
from freshet_graph.stream.decode.confluent import HEADER_BYTES, HEADLESS, schema_ids
from freshet_graph.stream.decode.formats.avro_schema import AvroSchema
from freshet_graph.stream.decode.formats.interface import FORMATS
from freshet_graph.stream.decode.formats.plain import refuses_columns
from freshet_graph.stream.decode.formats.registered import (
    UNKNOWN_SCHEMA,
    ColumnMessages,
    Columns,
    RegisteredSchemas,
)
from freshet_graph.stream.decode.formats.schema_registry import RegistryClient
from freshet_graph.stream.decode.reading import Limits, Read, RefusedError, refused_alike
from freshet_graph.stream.decode.times import TimeUnit
from freshet_graph.stream.kernels import read_only

NOT_AVRO = "not_avro"
"""Reason of a message without the header, or that is no value of its schema."""

BYTES_AT_ONCE = 64 << 20
"""Most bytes of messages read together, but for the last one: they are in memory a few times, and Arrow's texts end at 2 GiB."""


class AvroReader:
    """Reads the fields at ``paths`` into columns, by the schemas of a registry.

    With ``many``, paths lead through the elements of the array there. With ``inside`` a message is the value of the field of this
    name in a record of no other field, which has the same bytes: so a message need not be a record.
    """

    def __init__(
        self,
        registry: SchemaRegistry,
        paths: Iterable[PathKeys],
        *,
        many: PathKeys | None = None,
        inside: str | None = None,
    ) -> None:
        self.client, self._header = RegistryClient(registry), registry.header
        self._paths = tuple(paths)
        self._many, self._inside = many, inside
        self._schemas = RegisteredSchemas(self._fetched)

    def prepare(self, values: pa.LargeBinaryArray) -> str | None:
        """Fetch the schemas of messages; see ``MessageFormat.prepare``.

        Raises:
            UnavailableError: The registry does not answer.
        """
        return self._schemas.prepare(schema_ids(values))

    def _fetched(self, number: int) -> AvroSchema:
        *others, schema = self.client.schema(number)
        if self._inside is not None:
            fields = [{"name": self._inside, "type": schema}]
            schema = {"type": "record", "name": "__inside", "fields": fields}
        return AvroSchema([*others, schema], self._paths, self._many)

    def read(self, values: pa.LargeBinaryArray) -> tuple[list[Columns], list[pa.Table]]:
        """The wanted columns of messages, by schema, and refusals."""
        numbers = schema_ids(values)
        read: list[Columns] = []
        refused = []
        headless = np.flatnonzero(numbers < 0)
        if len(headless):
            refused.append(refused_alike(headless, NOT_AVRO, HEADLESS[self._header]))
        _, ends_buffer, data_buffer = values.buffers()
        ends = read_only(ends_buffer, np.int64)[values.offset : values.offset + len(values) + 1]
        data: UInt8 = read_only(data_buffer or b"", np.uint8)
        for number in np.unique(numbers[numbers >= 0]).tolist():
            which = np.flatnonzero(numbers == number)
            try:
                schema = self._schemas.schema(number)
            except RefusedError as error:
                refused.append(refused_alike(which, error.reason, str(error)))
                continue
            piece = np.cumsum(ends[which + 1] - ends[which]) // BYTES_AT_ONCE
            for part in np.split(which, np.flatnonzero(np.diff(piece)) + 1):
                batch, bad, sentences = schema.read(data, ends[part] + HEADER_BYTES, ends[part + 1])
                if len(bad):
                    refused.append(refused_alike(part[bad], NOT_AVRO, sentences))
                if batch.num_rows:
                    read.append((np.delete(part, bad), batch))
        return read, refused


class AvroMessages(ColumnMessages):
    """Base of formats whose messages are Avro by a schema registry."""

    inner_json: ClassVar[bool] = True
    reasons: ClassVar[dict[str, str]] = {
        NOT_AVRO: "no Confluent header, or no value of the schema that it names",
        UNKNOWN_SCHEMA: "the schema registry has no such schema, or it cannot be read",
    }
    _reader: AvroReader

    @classmethod
    def refuses(cls, topic: Topic, kafka: Kafka) -> str | None:
        """See ``MessageFormat.refuses``."""
        if kafka.schema_registry is None or not kafka.schema_registry.has_schemas:
            return f"the schemas of format {topic.format} are in a registry. Give its address in kafka.schema_registry.url"
        return super().refuses(topic, kafka) or refuses_columns(topic)

    def prepare(self, values: pa.LargeBinaryArray) -> str | None:
        """See ``MessageFormat.prepare``."""
        return self._reader.prepare(values)

    def encode(self, events: pa.RecordBatch) -> Iterator[tuple[bytes, int | None]]:
        """See ``MessageFormat.encode``; the schema is registered under the subject ``<topic>-value``."""
        described = self.schema(self.ids)
        number = self._reader.client.register(f"{self.topic.name}-value", described)
        schema = parse_schema(described)
        for row, event in enumerate(events.select(event_schema(self.ids).names).to_pylist()):
            value = BytesIO()
            value.write(b"\0" + number.to_bytes(4, "big"))
            schemaless_writer(value, schema, self._record(event))
            yield value.getvalue(), row

    def _record(self, event: dict[str, Any]) -> dict[str, Any]:
        """The record of an event."""
        return event


@FORMATS.register
class AvroFormat(AvroMessages):
    """One Avro record per message; its fields are read like the columns of an Arrow message."""

    name: ClassVar[str] = "avro"
    about: ClassVar[str] = "one Avro record per message, by Confluent's schema registry"
    default_unit: ClassVar[TimeUnit] = "us"
    lists: ClassVar[bool] = True

    def __init__(self, topic: Topic, kafka: Kafka, ids: IdKind, options: Section) -> None:
        super().__init__(topic, kafka, ids, options)
        assert kafka.schema_registry is not None  # refuses
        names = tuple((name,) for name in event_schema(ids).names)
        paths = self.mapping.columns if self.mapping.mapped else names
        self._reader = AvroReader(kafka.schema_registry, paths, many=self.mapping.many)

    def read(self, values: pa.LargeBinaryArray, at_once: Limits | None) -> Read:
        """See ``MessageFormat.read``."""
        return self._events(*self._reader.read(values), len(values))

    def samples(self, values: pa.LargeBinaryArray) -> Iterator[dict[str, Any]]:
        """See ``MessageFormat.samples``."""
        schema = cache(self._reader.client.schema)
        for number, value in zip(schema_ids(values).tolist(), values.to_pylist(), strict=True):
            with suppress(Exception):  # it is shown as a refusal
                named: dict[str, Any] = {}
                *_, parsed = [parse_schema(one, named) for one in schema(number)]
                content = schemaless_reader(BytesIO(value[HEADER_BYTES:]), parsed, None)
                yield from [content] if isinstance(content, dict) else []

    @classmethod
    def schema(cls, ids: IdKind | None) -> dict[str, Any]:
        """The Avro schema that Freshet itself writes; without a kind, ids are longs."""
        return event_record(ids or "int", "Event")


def event_record(ids: IdKind, name: str) -> dict[str, Any]:
    """The Avro schema of one canonical event."""
    an_id = "long" if ids == "int" else "string"

    def optional(kind: Any) -> list[Any]:
        return ["null", kind]

    types: dict[str, Any] = {
        "op": "int",
        "src": an_id,
        "dst": optional(an_id),
        "t": {"type": "long", "logicalType": "timestamp-micros"},
        "weight": "float",
        "features": optional({"type": "array", "items": "float"}),
        "feature_offset": optional("int"),
        "label": optional("int"),
        "event_id": optional("string"),
    }
    fields = [
        {"name": key, "type": kind, **({"default": None} if isinstance(kind, list) else {})}
        for key, kind in types.items()
    ]
    return {"type": "record", "name": name, "namespace": "freshet", "fields": fields}
