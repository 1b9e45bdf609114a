"""``freshet-trainer config``: print a commented example, or check a file."""

from pathlib import Path
from typing import Annotated

import typer

from schemas.trainer_config import TrainerConfig
from stream.service.config_command import config_command
from stream.service.failure import Failure
from stream.service.output import Debug, Json

EXAMPLE = {
    "store": "./store",
    "lane": "distdy",
    "model": "sage-linear",
    "strategy": "vertex",
    "window": 4,
    "checkpoint": "./checkpoints",
    "metrics": {"port": 9109},
}


def config(
    file: Annotated[
        Path | None, typer.Option("--config", help="A file to check; prints it with all defaults filled in.")
    ] = None,
    example: Annotated[bool, typer.Option("--example", help="Print a commented example.")] = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Print a commented example configuration, or check a file and print the configuration in force (secrets hidden).

    Example: freshet-trainer config --example > trainer.yaml
    """
    config_command(
        TrainerConfig,
        EXAMPLE,
        title="Freshet trainer service",
        file=file,
        example_wanted=example,
        as_json=json,
        debug=debug,
        check=_require_workable,
    )


def _require_workable(config: TrainerConfig) -> None:
    from stream.partition.interface import PartitionError
    from trainer.workable import require_evaluable, require_workable  # loading torch takes seconds

    if config.store is not None:
        return require_workable(config)
    try:  # without a store only evaluate can use it, whose lane is a partitioner
        return require_evaluable(config, 1)
    except PartitionError as error:
        raise Failure(f"key lane: {error}") from error
