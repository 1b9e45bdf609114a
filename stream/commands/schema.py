"""``freshet-stream schema``: the JSON Schema of events, for producers."""

import json as json_text

import typer

from schemas.wire import JsonEvent
from stream.service.output import Json, print_json


def schema(json: Json = False) -> None:
    """Print the JSON Schema of the events that a producer writes, one message an event.

    Example: freshet-stream schema > event.schema.json
    """
    text = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Freshet event",
        **JsonEvent.json_schema(),
    }
    print_json(text) if json else typer.echo(json_text.dumps(text, indent=2))
