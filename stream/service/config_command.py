"""The body of both services' ``config`` command."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from schemas.config import Service
from stream.service.config_file import load_config
from stream.service.example import example
from stream.service.failure import Failure
from stream.service.output import finish, print_json


def config_command(
    kind: type[Service],
    example_values: dict[str, Any],
    *,
    title: str,
    file: Path | None,
    example_wanted: bool,
    as_json: bool,
    debug: bool,
    check: Callable[[Any], None] = lambda config: None,
) -> None:
    """Print the commented example, or the configuration in force for a file (secrets hidden).

    ``check`` raises a Failure for errors beyond types, such as unknown names of algorithms.
    """

    def body() -> None:
        if example_wanted:
            text = example(kind, example_values, title=title)
            print_json({"example": text}) if as_json else print(text, end="")  # noqa: T201
            return
        if file is None:
            raise Failure(
                "nothing to print. Give --example for a commented example, or --config FILE to check a file"
            )
        config = load_config(kind, file)
        check(config)
        in_force = config.model_dump(mode="json")
        print_json(in_force) if as_json else print(yaml.safe_dump(in_force, sort_keys=False), end="")  # noqa: T201

    finish(body, debug=debug)
