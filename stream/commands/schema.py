"""``freshet-stream schema``: what a producer writes, as JSON Schema or as an Arrow schema."""

import json as json_text
from pathlib import Path
from typing import Annotated, Any, Literal

import pyarrow as pa
import typer

from schemas.events import IdKind, event_schema
from schemas.wire import ARROW_COLUMNS, JsonEvent
from stream.service.output import Debug, Json, finish, print_json


def schema(
    format_: Annotated[
        Literal["json", "arrow"],
        typer.Option("--format", help="json: JSON Schema of one message; arrow: columns of a record batch."),
    ] = "json",
    ids: Annotated[
        Literal["int", "string"] | None,
        typer.Option("--ids", help="The graph's kind of ids (config key ids); JSON without it: either."),
    ] = None,
    arrow_file: Annotated[
        Path | None,
        typer.Option(
            "--arrow",
            metavar="FILE",
            help="Also write the Arrow schema to a file, as an IPC stream without batches: any Arrow library opens it.",
        ),
    ] = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Print the schema of the events that a producer writes: JSON, one message an event, or Arrow.

    Arrow's types are named as Arrow's own documentation does (int64, utf8 …). A message is one IPC stream with
    record batches; src, dst and t suffice, other integer widths and timestamps are taken too.

    Example: freshet-stream schema --format arrow --ids string --arrow events.arrows
    """

    def body() -> None:
        if arrow_file is not None:
            with (
                pa.OSFile(str(arrow_file), "wb") as file,
                pa.ipc.new_stream(file, _wire_schema(ids or "int")),
            ):
                pass  # a stream with its schema and its end
        text = _json(ids) if format_ == "json" else _arrow(ids or "int")
        print_json(text) if json else typer.echo(json_text.dumps(text, indent=2))

    finish(body, debug=debug)


def _wire_schema(ids: IdKind) -> pa.Schema:
    """The columns of a message, nullable where a message may have nulls."""
    return pa.schema([f.with_nullable(ARROW_COLUMNS[f.name].nullable) for f in event_schema(ids)])


def _json(ids: IdKind | None) -> dict[str, Any]:
    text: dict[str, Any] = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Freshet event",
        **JsonEvent.json_schema(),
    }
    if ids is not None:
        wanted = "integer" if ids == "int" else "string"
        for model in text["$defs"].values():
            for name in ("src", "dst", "node"):
                if name in model["properties"]:
                    field = model["properties"][name]
                    (kind,) = [kind for kind in field.pop("anyOf") if kind["type"] == wanted]
                    field.update(kind)
    return text


def _arrow(ids: IdKind) -> dict[str, Any]:
    fields = [
        {
            "name": field.name,
            "type": _type(field.type),
            "nullable": ARROW_COLUMNS[field.name].nullable,
            "required": ARROW_COLUMNS[field.name].required,
            "description": ARROW_COLUMNS[field.name].description,
        }
        for field in event_schema(ids)
    ]
    return {"title": "Freshet events", "message": "Arrow IPC stream, uncompressed", "fields": fields}


def _type(kind: pa.DataType) -> str:
    if pa.types.is_list(kind):
        return f"list<{_type(kind.value_type)}>"
    return "utf8" if pa.types.is_string(kind) else str(kind)
