"""Freshet's own formats: one JSON object per event, or Arrow record batches."""

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from freshet_graph.schemas.config import Kafka, Topic
from freshet_graph.schemas.events import IdKind, event_schema
from freshet_graph.schemas.fields import path_keys
from freshet_graph.schemas.section import Section
from freshet_graph.schemas.wire import ARROW_COLUMNS, JsonEvent
from freshet_graph.stream.decode.arrow import NOT_ARROW, read_arrow, views
from freshet_graph.stream.decode.confluent import without_header
from freshet_graph.stream.decode.encode import encode_arrow, encode_json
from freshet_graph.stream.decode.formats.interface import FORMATS, MessageFormat
from freshet_graph.stream.decode.json_lists import inlined, read_many
from freshet_graph.stream.decode.json_meanings import Meanings
from freshet_graph.stream.decode.json_messages import NOT_JSON, read_json
from freshet_graph.stream.decode.reading import Limits, Read, refusal_table, unanswered
from freshet_graph.stream.decode.times import TimeUnit


@FORMATS.register
class JsonFormat(MessageFormat):
    """One JSON object per message, read by the scanner of ``json_kernel``."""

    name: ClassVar[str] = "json"
    about: ClassVar[str] = "one event per message"
    default_unit: ClassVar[TimeUnit] = "s"
    lists: ClassVar[bool] = True
    inner_json: ClassVar[bool] = True
    reasons: ClassVar[dict[str, str]] = {NOT_JSON: "no JSON object, or one with the same key twice"}

    def __init__(self, topic: Topic, kafka: Kafka, ids: IdKind, options: Section) -> None:
        super().__init__(topic, kafka, ids, options)
        scales = {path_keys(path): scale for path, scale in (topic.scale or {}).items()}
        self._meanings = Meanings((), (), self.unit, scales)

    def read(self, values: pa.LargeBinaryArray, at_once: Limits | None) -> Read:
        """See ``MessageFormat.read``."""
        if self.topic.json_text is not None:
            values = inlined(values, [path_keys(self.topic.json_text)])
        if self.topic.scale is not None:
            values = self._meanings.read(without_header(values)[0], np.zeros(len(values), bool))
        if self.mapping.many is not None:
            return read_many(values, self.ids, self.unit, self.mapping, self.limits, at_once)
        return Read(*read_json(values, self.ids, self.unit, self.mapping), len(values))

    def encode(self, events: pa.RecordBatch) -> Iterator[tuple[bytes, int | None]]:
        """See ``MessageFormat.encode``."""
        return ((value, row) for row, value in enumerate(encode_json(events, time_unit=self.unit)))

    @classmethod
    def schema(cls, ids: IdKind | None) -> dict[str, Any]:
        """JSON Schema of one message."""
        text: dict[str, Any] = {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": "Freshet event",
            **JsonEvent.json_schema(),
        }
        if ids is not None:
            wanted = "integer" if ids == "int" else "string"
            for model in text["$defs"].values():
                for name in {"src", "dst", "node"} & model["properties"].keys():
                    field = model["properties"][name]
                    (kind,) = [kind for kind in field.pop("anyOf") if kind["type"] == wanted]
                    field.update(kind)
        return text


@FORMATS.register
class ArrowFormat(MessageFormat):
    """An Arrow IPC stream of record batches per message."""

    name: ClassVar[str] = "arrow"
    about: ClassVar[str] = "up to 4,096 events and 900 kB per message"
    default_unit: ClassVar[TimeUnit] = "us"
    many: ClassVar[bool] = True
    lists: ClassVar[bool] = True
    inner_json: ClassVar[bool] = True
    reasons: ClassVar[dict[str, str]] = {NOT_ARROW: "no uncompressed Arrow IPC stream of rows"}

    @classmethod
    def refuses(cls, topic: Topic, kafka: Kafka) -> str | None:
        """See ``MessageFormat.refuses``."""
        return refuses_columns(topic)

    def read(self, values: pa.LargeBinaryArray, at_once: Limits | None) -> Read:
        """See ``MessageFormat.read``."""
        rows, refusals, looked_at = read_arrow(
            views(values), self.ids, self.unit, self.limits, self.mapping, at_once=at_once
        )
        refused = [refusal_table(refusals)] if refusals else []
        return Read(rows, refused, looked_at, unanswered(rows, refused, looked_at))

    def encode(self, events: pa.RecordBatch) -> Iterator[tuple[bytes, int | None]]:
        """See ``MessageFormat.encode``."""
        return ((value, None) for value in encode_arrow(events))

    @classmethod
    def schema(cls, ids: IdKind | None) -> dict[str, Any]:
        """Columns of a record batch, types named as Arrow's documentation does; without a kind, ids are int64."""
        fields = [
            {
                "name": field.name,
                "type": _type(field.type),
                "nullable": ARROW_COLUMNS[field.name].nullable,
                "required": ARROW_COLUMNS[field.name].required,
                "description": ARROW_COLUMNS[field.name].description,
            }
            for field in event_schema(ids or "int")
        ]
        return {"title": "Freshet events", "message": "Arrow IPC stream, uncompressed", "fields": fields}


def refuses_columns(topic: Topic) -> str | None:
    """Why messages that are read as columns cannot have a topic's fields; None: they can."""
    if topic.many_keys == ():
        return "many is '.', which is of JSON. Name the column of lists"
    if topic.fields is not None:
        if topic.fields.node is not None and topic.fields.src is not None:
            return "a row of columns is a node event if dst is null. Name src and dst in fields, or node"
        if topic.fields.values is not None and topic.fields.features is not None:
            return (
                "a row of columns has one column of features, which is whole if offset is null. "
                "Name features in fields, or offset and values"
            )
    return None


def _type(kind: pa.DataType) -> str:
    if pa.types.is_list(kind):
        return f"list<{_type(kind.value_type)}>"
    return "utf8" if pa.types.is_string(kind) else str(kind)
