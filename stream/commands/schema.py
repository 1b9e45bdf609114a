"""``freshet-stream schema``: the messages of a producer, described in each format's way."""

import json as json_text
from pathlib import Path
from typing import Annotated, Literal

import pyarrow as pa
import typer

from freshet_graph.schemas.events import IdKind, event_schema
from freshet_graph.schemas.wire import ARROW_COLUMNS
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.service.output import Debug, Json, finish, print_json


def _known(name: str) -> str:
    """The name of a format, if it exists."""
    if name != DEFAULT:
        from freshet_graph.stream.decode.formats.interface import FORMATS

        try:
            FORMATS.find(name)
        except Failure as error:
            raise typer.BadParameter(str(error)) from error
    return name


DEFAULT = "json"
Format = Annotated[
    str,
    typer.Option(
        "--format",
        callback=_known,
        help="Format of messages: json, arrow, avro, protobuf, debezium, debezium-avro, or one of another package.",
    ),
]


def schema(
    format_: Format = DEFAULT,
    of: Annotated[
        Literal["events", "labels", "embeddings", "scores", "arrival-scores", "dead-letters"],
        typer.Option(
            "--of",
            help="Content of the messages: events of a producer; labels of a label topic, or what Freshet writes (json or avro).",
        ),
    ] = "events",
    ids: Annotated[
        Literal["int", "string"] | None,
        typer.Option(
            "--ids",
            help="The graph's kind of ids (config key ids). Default: either, or int in formats that need one.",
        ),
    ] = None,
    arrow_file: Annotated[
        Path | None,
        typer.Option(
            "--arrow",
            metavar="FILE",
            help="Also write the Arrow schema to a file, as an IPC stream that any Arrow library opens.",
        ),
    ] = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Print the schema of messages in the format's way: JSON Schema, Avro, Protobuf, or a list of columns.

    Arrow's types are named as Arrow's own documentation does (int64, utf8 …). A message is one IPC stream with
    record batches; src, dst and t suffice. Other integer widths and timestamps are accepted, too.

    Example: freshet-stream schema --format arrow --ids string --arrow events.arrows
    """

    def body() -> None:
        from freshet_graph.schemas.written import avro_schema, json_schema
        from freshet_graph.stream.decode.formats.interface import FORMATS

        if of != "events":
            described = {"json": json_schema(of, ids), "avro": avro_schema(of, ids or "int")}
            if format_ not in described or arrow_file is not None:
                raise Failure(
                    f"messages with {of} have schemas in two formats. Give --format json or --format avro"
                )
            text = described[format_]
            print_json(text) if json else typer.echo(json_text.dumps(text, indent=2))
            return
        if arrow_file is not None:
            with (
                pa.OSFile(str(arrow_file), "wb") as file,
                pa.ipc.new_stream(file, _wire_schema(ids or "int")),
            ):
                pass  # a stream with its schema and its end
        printed = FORMATS.find(format_).schema(ids)
        if isinstance(printed, str):
            print_json({"schema": printed}) if json else typer.echo(printed, nl=False)
            return
        print_json(printed) if json else typer.echo(json_text.dumps(printed, indent=2))

    finish(body, debug=debug)


def _wire_schema(ids: IdKind) -> pa.Schema:
    """The columns of a message, nullable if a message may have nulls."""
    return pa.schema([f.with_nullable(ARROW_COLUMNS[f.name].nullable) for f in event_schema(ids)])
