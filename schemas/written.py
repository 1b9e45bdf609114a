"""Messages of topics, described for others as JSON Schema, as Avro, and some in Arrow: those that Freshet writes, and labels."""

from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

from freshet_graph.schemas.events import IdKind

Written = Literal["embeddings", "scores", "arrival-scores", "dead-letters", "labels"]


@dataclass(frozen=True, slots=True)
class WrittenField:
    """A field of a message.

    Attributes:
        json: Its JSON Schema; None: that of an id.
        avro: Its Avro type; None: that of an id.
        nullable: Whether it may be null.
        about: What it is.
    """

    json: dict[str, Any] | None
    avro: Any
    about: str
    nullable: bool = False


def _number(about: str, *, nullable: bool = False) -> WrittenField:
    return WrittenField({"type": "number"}, "float", about, nullable)


def _whole(about: str, *, nullable: bool = False) -> WrittenField:
    return WrittenField({"type": "integer"}, "long", about, nullable)


def _text(about: str, *, nullable: bool = False) -> WrittenField:
    return WrittenField({"type": "string"}, "string", about, nullable)


def _id(about: str) -> WrittenField:
    return WrittenField(None, None, about)


def _json_object(fields: dict[str, WrittenField], an_id: str | list[str] = "string") -> dict[str, Any]:
    properties = {}
    for name, field in fields.items():
        described = {"type": an_id} if field.json is None else field.json
        if field.nullable:
            of = described["type"]
            described = {**described, "type": [*(of if isinstance(of, list) else [of]), "null"]}
        properties[name] = {**described, "description": field.about}
    return {"type": "object", "properties": properties, "required": list(properties)}


def _avro_record(name: str, fields: dict[str, WrittenField], an_id: str = "string") -> dict[str, Any]:
    described = []
    for key, field in fields.items():
        kind = an_id if field.avro is None else field.avro
        more = {"type": ["null", kind], "default": None} if field.nullable else {"type": kind}
        described.append({"name": key, "doc": field.about, **more})
    return {"type": "record", "name": name, "fields": described}


def _record(name: str, fields: dict[str, WrittenField], about: str) -> WrittenField:
    return WrittenField(_json_object(fields), _avro_record(name, fields), about)


def _seconds(about: str) -> WrittenField:
    return WrittenField({"type": "number"}, "double", about)


def _time(about: str) -> WrittenField:
    return WrittenField({"type": "number"}, {"type": "long", "logicalType": "timestamp-micros"}, about)


_TIME = _time("Event time: in JSON in seconds.")
_VERSION = _text("The model's name and the xxh64 of its weights.")
_EXPORT = {
    "tau": _whole("Number of the snapshot."),
    "export": _whole("Number of the export; with the key it identifies a message."),
    "exports": _text("Name of the exports: the trainer's, or its lane."),
}
_VECTOR = WrittenField(
    {"type": "array", "items": {"type": "number"}}, {"type": "array", "items": "float"}, "The embedding."
)
_RAW = WrittenField(
    {"type": "string", "contentEncoding": "base64"},
    "string",
    "First bytes of the message, base64; null: it had no value.",
    True,
)

_REASONS = {
    "pair_events": _whole("How often the pair met before."),
    "pair_age_s": _number("Seconds since it met; null: never.", nullable=True),
    "source_events": _whole("Events that the source was a source of."),
    "destination_events": _whole("Events that the destination was a destination of."),
    "recent_share": _number(
        "Share of the source's last 10 events that were with this destination; null: it had none.",
        nullable=True,
    ),
}

FIELDS: dict[Written, dict[str, WrittenField]] = {
    "embeddings": {
        "id": _id("The node's."),
        "t": _TIME,
        "model_version": _VERSION,
        "embedding": _VECTOR,
        **_EXPORT,
    },
    "scores": {
        "row": _whole("Row of the event in its snapshot."),
        "event_id": _text("The event's own id.", nullable=True),
        "src": _id("Id of the source."),
        "dst": _id("Id of the destination."),
        "t": _TIME,
        "model_version": _VERSION,
        "score": _number("Log-odds that this happens rather than its negative.", nullable=True),
        "negative_score": _number("Score of the same source with a random destination.", nullable=True),
        **_EXPORT,
    },
    "arrival-scores": {
        "event_id": _text("The event's own id.", nullable=True),
        "src": _id("Id of the source."),
        "dst": _id("Id of the destination."),
        "t": _TIME,
        "commit": _whole(
            "Commit of the log that the event came with; −1: it came before commits were recorded."
        ),
        "row": _whole("Its row there; with the commit it identifies a message."),
        "score": _number("Log-odds against a random destination.", nullable=True),
        "percentile": _number("Share of the newest scores that are not higher, in percent.", nullable=True),
        "label_probability": WrittenField(
            {"type": "number"},
            "double",
            "Task edge-classification: probability that the event's label is 1; null otherwise, and before it learned any.",
            nullable=True,
        ),
        "graph": _text("Name of the graph."),
        "model_version": _VERSION,
        "checkpoint": _whole("Number of the snapshot that the weights were saved after."),
        "memory": _text(
            "checkpoint: it continues from that of the checkpoint; log: it was made from the log's beginning."
        ),
        "learned_until": _time("Newest event time that the weights learned: in JSON in seconds."),
        "snapshot": _whole(
            "Snapshot models: number of the snapshot after which the embeddings are; null otherwise.",
            nullable=True,
        ),
        "scored_at": _time("Wall time of the score: in JSON in seconds."),
        "latency_s": _seconds("Seconds from the event time to the score."),
        "reasons": _record("Reasons", _REASONS, "What the past of the pair and its ends is."),
        "vector": WrittenField(
            {"type": "array", "items": {"type": "number"}},
            {"type": "array", "items": "float"},
            "Embeddings of both ends just before the event, source first; null: not wanted.",
            nullable=True,
        ),
    },
    "labels": {
        "event_id": _text("Id of the event that it is of; null: it is of a node.", nullable=True),
        "node": WrittenField(None, None, "Id of the node that it is of; null: it is of an event.", True),
        "label": WrittenField({"type": "integer"}, "int", "The label, int32."),
        "t": WrittenField(
            {"type": "number"},
            {"type": "long", "logicalType": "timestamp-micros"},
            "When it was decided: in JSON in seconds.",
        ),
        "source": _text("Who decided; the topic's key sources ranks them.", nullable=True),
    },
    "dead-letters": {
        "topic": _text("Where the message was."),
        "partition": _whole("Its partition."),
        "offset": _whole("Its offset."),
        "row": _whole("Row of a message with several; null: the whole message.", nullable=True),
        "reason": _text("Why it was refused, as one word."),
        "sentence": _text("Why it was refused, for people."),
        "raw": _RAW,
    },
}
"""Fields by the kind of topic, in their order."""


def json_schema(kind: Written, ids: IdKind | None) -> dict[str, Any]:
    """JSON Schema of a message; without a kind of ids, either is valid. Further fields are valid: later releases may add some."""
    either: str | list[str] = (
        ["integer", "string"] if ids is None else "integer" if ids == "int" else "string"
    )
    described = _json_object(FIELDS[kind], either)
    if kind == "labels":  # whose producers leave out what they do not have
        described["required"] = [name for name, field in FIELDS[kind].items() if not field.nullable]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": kind} | described


def avro_schema(kind: Written, ids: IdKind) -> dict[str, Any]:
    """Avro schema of a message."""
    name = "".join(word.capitalize() for word in kind.removesuffix("s").split("-"))
    return _avro_record(name, FIELDS[kind], "long" if ids == "int" else "string") | {"namespace": "freshet"}


_ARROW = {"float": pa.float32(), "double": pa.float64(), "long": pa.int64(), "string": pa.string()}


def arrow_schema(kind: Written, ids: IdKind) -> pa.Schema:
    """Columns of an Arrow message, in the types of the Avro schema."""
    return pa.schema([_arrow_field(field) for field in avro_schema(kind, ids)["fields"]])


def _arrow_field(field: dict[str, Any]) -> pa.Field:
    nullable = isinstance(field["type"], list)
    return pa.field(field["name"], _arrow_type(field["type"][1] if nullable else field["type"]), nullable)


def _arrow_type(avro: Any) -> pa.DataType:
    if isinstance(avro, str):
        return _ARROW[avro]
    if avro["type"] == "record":
        return pa.struct([_arrow_field(field) for field in avro["fields"]])
    if avro["type"] == "array":
        return pa.list_(_arrow_type(avro["items"]))
    return pa.timestamp("us", "UTC")
