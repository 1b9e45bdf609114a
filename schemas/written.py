"""Messages of the topics that Freshet writes, described for others: exports and dead letters, as JSON Schema and as Avro."""

from dataclasses import dataclass
from typing import Any, Literal

from freshet_graph.schemas.events import IdKind

Written = Literal["embeddings", "scores", "dead-letters"]


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


_TIME = WrittenField(
    {"type": "number"}, {"type": "long", "logicalType": "timestamp-micros"}, "Event time: in JSON in seconds."
)
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
    either = {"int": "integer", "string": "string", None: ["integer", "string"]}[ids]
    properties = {}
    for name, field in FIELDS[kind].items():
        described = {"type": either} if field.json is None else field.json
        if field.nullable:
            described = {**described, "type": [described["type"], "null"]}
        properties[name] = {**described, "description": field.about}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema", "title": kind, "type": "object",
        "properties": properties, "required": list(properties),
    }  # fmt: skip


def avro_schema(kind: Written, ids: IdKind) -> dict[str, Any]:
    """Avro schema of a message."""
    an_id = "long" if ids == "int" else "string"
    fields = []
    for name, field in FIELDS[kind].items():
        described = an_id if field.avro is None else field.avro
        more = {"type": ["null", described], "default": None} if field.nullable else {"type": described}
        fields.append({"name": name, "doc": field.about, **more})
    name = "".join(word.capitalize() for word in kind.removesuffix("s").split("-"))
    return {"type": "record", "name": name, "namespace": "freshet", "fields": fields}
