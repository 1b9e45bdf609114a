"""Both services' ``config`` command."""

from collections.abc import Callable
from json import dumps
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from freshet_graph.schemas.config import Service
from freshet_graph.stream.service.config_file import load_config
from freshet_graph.stream.service.example import example
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.service.json_schema import json_schema
from freshet_graph.stream.service.output import Debug, Json, finish, print_json


def config_command(
    service: str,
    kind: type[Service],
    example_values: Callable[[], dict[str, Any]],
    check: Callable[[Any], None],
) -> Callable[..., None]:
    """The command that prints the commented example, the JSON Schema, or the configuration in force for a file (secrets hidden).

    Args:
        service: ``stream`` or ``trainer``.
        kind: Its configuration.
        example_values: Makes the values in the example.
        check: Raises a Failure for errors beyond types, such as unknown names of algorithms.
    """

    def config(
        file: Annotated[
            Path | None, typer.Option("--config", help="A file to check; it is printed with all defaults.")
        ] = None,
        wants_example: Annotated[bool, typer.Option("--example", help="Print a commented example.")] = False,
        wants_schema: Annotated[
            bool,
            typer.Option(
                "--schema", help="Print the JSON Schema, by which editors complete and check the file."
            ),
        ] = False,
        json: Json = False,
        debug: Debug = False,
    ) -> None:
        def body() -> None:
            if wants_example:
                text = example(kind, example_values(), title=f"Freshet {service} service")
                text = f"# yaml-language-server: $schema={service}.schema.json\n{text}"
                print_json({"example": text}) if json else print(text, end="")  # noqa: T201
                return
            if wants_schema:
                schema = json_schema(kind, f"Freshet {service} service")
                print_json(schema) if json else print(dumps(schema, indent=2, ensure_ascii=False))  # noqa: T201
                return
            if file is None:
                raise Failure(
                    "nothing to print. Give --example for a commented example, --schema for its JSON Schema, or --config FILE to "
                    "check a file"
                )
            in_force = load_config(kind, file, check).model_dump(mode="json")
            print_json(in_force) if json else print(yaml.safe_dump(in_force, sort_keys=False), end="")  # noqa: T201

        finish(body, debug=debug)

    config.__doc__ = (
        "Print a commented example configuration or its JSON Schema, or check a file and print it with all defaults (secrets "
        "hidden).\n\n"
        f"Example: freshet-{service} config --example > {service}.yaml"
    )
    return config
