"""``freshet-trainer run``: train continually on a lane."""

import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from schemas.trainer_config import TrainerConfig
from stream.service.config_file import load_config
from stream.service.failure import Failure
from stream.service.logs import configure_logs
from stream.service.output import Debug, Json, finish, print_json, print_table
from trainer.launch import failed_before, launch, launched, report_failure, report_result

_began = time.time()

Ranks = Annotated[
    int | None,
    typer.Option("--ranks", min=1, help="Processes to start on this machine; under torchrun: its own."),
]
ConfigFile = Annotated[
    Path, typer.Option("--config", help="The configuration; see freshet-trainer config --example.")
]


def run(
    file: ConfigFile,
    until_idle: Annotated[
        float | None,
        typer.Option(
            "--until-idle",
            min=0.1,
            metavar="SECONDS",
            help="End once no new snapshot came for so long; without it: at SIGTERM.",
        ),
    ] = None,
    ranks: Ranks = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Follow a lane: predict each new snapshot, train on it, checkpoint; until SIGTERM.

    Example: freshet-trainer run --config trainer.yaml --ranks 2 --until-idle 10 --json
    """

    def body() -> None:
        configure_logs(level="DEBUG" if debug else "INFO")
        config = load_config(TrainerConfig, file)
        if config.store is None:
            raise Failure(f"configuration {file}: key store is missing; run needs the folder of the store")
        result = in_ranks(ranks, lambda: _train(config, until_idle))
        if result is not None:
            print_json(result) if json else print_table(f"{config.model} on lane {config.lane}", result)

    finish(body, *_expected(), debug=debug)


def in_ranks(ranks: int | None, work: Callable[[], Mapping[str, Any] | None]) -> Mapping[str, Any] | None:
    """Do a command's work in this process, or in as many ranks as asked for.

    Args:
        ranks: How many to start; None or 1: this process is the only one. Under torchrun this process is a rank.
        work: Returns the result on rank 0 and None on others.

    Returns:
        The result where it is to be printed, else None.
    """
    if not launched():
        return launch(sys.argv[1:], ranks) if ranks is not None and ranks > 1 else work()
    if failed_before():
        return None
    try:
        result = work()
    except RuntimeError:
        raise  # a collective whose peer was killed fails so: worth another attempt
    except Exception as error:
        if not isinstance(error, (Failure, OSError, *_expected())):
            traceback.print_exc()  # a defect, and the sentence is little; trying again would not mend it
        if not report_failure(error):
            raise
        return None
    return None if result is None or report_result(result) else result


def _expected() -> tuple[type[Exception], ...]:
    from stream.partition.interface import PartitionError
    from stream.store.errors import StoreError

    return StoreError, PartitionError


def _train(config: TrainerConfig, until_idle_s: float | None) -> Mapping[str, Any] | None:
    from trainer.service import train

    return train(config, until_idle_s=until_idle_s, began=_began)
