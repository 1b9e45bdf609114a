"""Avro messages behind Confluent's header: a zero byte, the id of the schema, and the value."""

import logging
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from io import BytesIO
from threading import Lock
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from fastavro import parse_schema, schemaless_writer

from freshet_graph.schemas.config import Kafka, SchemaRegistry, Topic
from freshet_graph.schemas.events import IdKind, event_schema
from freshet_graph.schemas.fields import PathKeys
from freshet_graph.schemas.section import Section
from freshet_graph.stream.arrays.kinds import Int64, UInt8
from freshet_graph.stream.decode.arrow import event_rows
from freshet_graph.stream.decode.confluent import HEADER_BYTES, schema_ids
from freshet_graph.stream.decode.formats.avro_schema import UNKNOWN_SCHEMA, AvroSchema
from freshet_graph.stream.decode.formats.interface import FORMATS, MessageFormat
from freshet_graph.stream.decode.formats.plain import refuses_columns
from freshet_graph.stream.decode.formats.schema_registry import RegistryClient, UnknownSchemaError
from freshet_graph.stream.decode.mapping import Mapping
from freshet_graph.stream.decode.reading import (
    Limits,
    Read,
    RefusedError,
    in_order,
    refused_alike,
    unanswered,
)
from freshet_graph.stream.decode.times import TimeUnit
from freshet_graph.stream.kernels import read_only
from freshet_graph.stream.service.heartbeat import beat

NOT_AVRO = "not_avro"
"""Reason of a message without the header, or that is no value of its schema."""

BYTES_AT_ONCE = 64 << 20
"""Most bytes of messages read together, but for the last one: they are in memory a few times, and Arrow's texts end at 2 GiB."""
KEPT_SCHEMAS = 1024
"""Most schemas in memory besides those of the poll in hand; the least recently used goes first."""
UNKNOWN_AT_ONCE = 64
"""Ids without a schema that one poll may ask for; random ones must not become a request each."""
UNKNOWN_S = 60.0
"""How long an unknown id stays unknown before it is asked for again."""
PREPARE_S = 2.0
"""How long schemas are fetched before the job may commit, or stop."""

_REQUIRED = ("src", "dst", "t", "node")
_log = logging.getLogger(__name__)

Columns = tuple[Int64, pa.RecordBatch]
"""Indices of messages, and the wanted fields of each."""


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
        self.client = RegistryClient(registry)
        self._paths = tuple(paths)
        self._many, self._inside = many, inside
        # On a cluster several threads prepare and read polls of one topic. Only ``prepare`` forgets, and nothing that it has
        # just seen, so ``read`` finds what was fetched for its poll.
        self._preparing = Lock()
        self._schemas: OrderedDict[int, AvroSchema | RefusedError] = OrderedDict()
        self._unknown: dict[int, tuple[float, str]] = {}  # when they were asked for, and what was said
        self._requested: set[int] = set()  # the unknown ids that the poll in hand has asked for

    def prepare(self, values: pa.LargeBinaryArray) -> str | None:
        """Fetch the schemas of messages, those of the most messages first; see ``MessageFormat.prepare``.

        Raises:
            UnavailableError: The registry does not answer.
        """
        numbers = schema_ids(values)
        distinct, counts = np.unique(numbers[numbers >= 0], return_counts=True)
        wanted = distinct[np.argsort(-counts, kind="stable")].tolist()
        with self._preparing:
            return self._fetch(wanted)

    def _fetch(self, wanted: list[int]) -> str | None:
        began_s = time.monotonic()
        self._requested &= set(wanted)
        for number, (asked_s, _) in list(self._unknown.items()):
            if began_s - asked_s >= UNKNOWN_S and number not in self._requested:
                del self._unknown[number]
        for number in wanted:
            if number in self._schemas:
                self._schemas.move_to_end(number)
        missing = [n for n in wanted if n not in self._schemas and n not in self._unknown]
        for fetched, number in enumerate(missing):
            if len(self._requested) >= UNKNOWN_AT_ONCE:
                break
            if fetched and time.monotonic() - began_s >= PREPARE_S:
                num_known = len(wanted) - len(missing) + fetched
                return f"{num_known:,} of the {len(wanted):,} schemas of its messages were fetched so far"
            beat()
            try:
                *others, schema = self.client.schema(number)
                if self._inside is not None:
                    fields = [{"name": self._inside, "type": schema}]
                    schema = {"type": "record", "name": "__inside", "fields": fields}
                self._schemas[number] = AvroSchema([*others, schema], self._paths, self._many)
            except UnknownSchemaError as error:
                self._unknown[number] = time.monotonic(), str(error)
                self._requested.add(number)
            except RefusedError as error:
                self._schemas[number] = error
        self._requested.clear()
        while len(self._schemas) > max(KEPT_SCHEMAS, len(wanted)):
            self._schemas.popitem(last=False)
        return None

    def read(self, values: pa.LargeBinaryArray) -> tuple[list[Columns], list[pa.Table]]:
        """The wanted columns of messages, by schema, and refusals."""
        numbers = schema_ids(values)
        read: list[Columns] = []
        refused = []
        headless = np.flatnonzero(numbers < 0)
        if len(headless):
            sentence = "does not begin with Confluent's header: a zero byte and four of a schema id"
            refused.append(refused_alike(headless, NOT_AVRO, sentence))
        _, ends_buffer, data_buffer = values.buffers()
        ends = read_only(ends_buffer, np.int64)[values.offset : values.offset + len(values) + 1]
        data: UInt8 = read_only(data_buffer or b"", np.uint8)
        for number in np.unique(numbers[numbers >= 0]).tolist():
            which = np.flatnonzero(numbers == number)
            try:
                schema = self._schema(number)
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

    def _schema(self, number: int) -> AvroSchema:
        schema = self._schemas.get(number)
        if schema is None:
            not_asked = (
                f"schema {number} was not asked for: {UNKNOWN_AT_ONCE} ids of this poll were unknown already"
            )
            _, sentence = self._unknown.get(number, (0.0, not_asked))
            raise RefusedError(UNKNOWN_SCHEMA, sentence)
        if isinstance(schema, RefusedError):
            raise RefusedError(schema.reason, str(schema))
        return schema


class AvroMessages(MessageFormat):
    """Base of formats whose messages are Avro by a schema registry."""

    inner_json: ClassVar[bool] = True
    reasons: ClassVar[dict[str, str]] = {
        NOT_AVRO: "no Confluent header, or no value of the schema that it names",
        UNKNOWN_SCHEMA: "the schema registry has no such schema, or it cannot be read",
    }
    _reader: AvroReader

    def __init__(self, topic: Topic, kafka: Kafka, ids: IdKind, options: Section) -> None:
        super().__init__(topic, kafka, ids, options)
        self._named_absent: set[str] = set()

    @classmethod
    def refuses(cls, topic: Topic, kafka: Kafka) -> str | None:
        """See ``MessageFormat.refuses``."""
        if kafka.schema_registry is None:
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

    def _present(self, mapping: Mapping, schema: pa.Schema) -> Mapping:
        """The mapping without what the writer's schema lacks, as an older one may: null, if an event can be without it."""
        paths = [
            (target, keys)
            for target, keys in mapping.paths
            if target[0] in _REQUIRED or mapping.in_text(keys) or _has(schema, keys, mapping.many)
        ]
        names = {name for (name, _), _ in paths}
        # Of listed features either all are there, or the first that is missing is named.
        features = [path for path in mapping.paths if path[0][0] == "features"] if "features" in names else []
        paths = [*(path for path in paths if path[0][0] != "features"), *features]
        if self.topic.fields is not None:
            for name in sorted(mapping.names - names - self._named_absent):
                self._named_absent.add(name)
                _log.warning(
                    "topic %s: some messages have no %s by their schema. It is null in them",
                    self.topic.name,
                    mapping.shown(name),
                )
        return replace(mapping, paths=tuple(paths), feature_parts=mapping.feature_parts if features else 0)


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
        read, refused = self._reader.read(values)
        rows = []
        for messages, batch in read:
            try:
                mapping = self._present(self.mapping, batch.schema) if self.mapping.mapped else self.mapping
                rows.append(event_rows(batch, messages, self.ids, self.unit, mapping))
            except RefusedError as error:  # a fault of their schema
                refused.append(refused_alike(messages, error.reason, str(error)))
        many = self.mapping.many is not None
        empty = unanswered(rows, refused, len(values)) if many else np.empty(0, np.int64)
        return Read(in_order(rows), refused, len(values), empty)

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


def _has(schema: pa.Schema, keys: PathKeys, many: PathKeys | None) -> bool:
    """Whether columns have a path, which may lead through the elements of ``many``."""
    kind: pa.DataType = pa.struct(schema)
    for depth, key in enumerate(keys):
        place = kind.get_field_index(key) if pa.types.is_struct(kind) else -1
        if place < 0:
            return False
        kind = kind.field(place).type
        if keys[: depth + 1] == many and pa.types.is_list(kind):
            kind = kind.value_type
    return True
