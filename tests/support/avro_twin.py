"""The plain reader of Avro: ``fastavro``, a message at a time, then Arrow columns of its objects."""

from collections.abc import Iterable
from io import BytesIO
from typing import Any

from fastavro import parse_schema, schemaless_reader

from freshet_graph.schemas.fields import PathKeys

NUMBERS = ("int", "long", "float", "double")


def wanted_part(schema: Any, paths: Iterable[PathKeys]) -> Any:
    """A reader's schema with the fields at some paths; a union of numbers is a double in it, unless all are whole.

    Args:
        schema: Parsed JSON of a record whose named types are written where they are used, once.
        paths: An empty one is the whole value.
    """
    paths = [*paths]
    if isinstance(schema, list):
        parts = [wanted_part(branch, paths) for branch in schema]
        others = [part for part in parts if part != "null"]
        if len(others) > 1 and {*others} & {"float", "double"}:
            return [*(part for part in parts if part == "null"), "double"]
        return parts
    kind = schema["type"] if isinstance(schema, dict) else schema
    if kind == "array":
        return {"type": "array", "items": wanted_part(schema["items"], paths)}
    if kind != "record":
        return (
            {key: schema[key] for key in ("type", "name", "symbols", "size", "values") if key in schema}
            if isinstance(schema, dict)
            else kind
        )
    fields, present = [], {field["name"] for field in schema["fields"]}
    for field in schema["fields"]:
        names = [field["name"], *(name for name in field.get("aliases", ()) if name not in present)]
        wanted = {keys[0] for keys in paths if keys}
        name = next((name for name in names if name in wanted), None)
        if name is not None:
            present.add(name)
            inside = [keys[1:] for keys in paths if keys[:1] == (name,)]
            fields.append(
                {"name": name, "aliases": [field["name"]], "type": wanted_part(field["type"], inside)}
            )
    return {"type": "record", "name": schema["name"], "fields": fields}


def plainly_read(value: bytes, writer: Any, reader: Any = None) -> Any:
    """A record, whole or the reader's part; None if the bytes are none, or are more."""
    stream = BytesIO(value)
    try:
        record = schemaless_reader(stream, parse_schema(writer), reader and parse_schema(reader))
    except Exception:  # noqa: BLE001  wrong bytes make fastavro raise anything
        return None
    return record if stream.tell() == len(value) else None


def without_logical(schema: Any) -> Any:
    """A schema without logical types, which ``fastavro`` would make objects of."""
    if isinstance(schema, list):
        return [without_logical(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: without_logical(part) if key in ("type", "items", "values") else part
        for key, part in schema.items()
        if key != "logicalType"
    } | (
        {"fields": [field | {"type": without_logical(field["type"])} for field in schema["fields"]]}
        if "fields" in schema
        else {}
    )
