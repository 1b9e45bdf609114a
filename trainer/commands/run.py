"""``freshet-trainer run``: train continually on a lane."""

import time
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from freshet_graph.schemas.trainer_config import TrainerConfig
from freshet_graph.stream.service.config_file import load_config
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.service.logs import configure_logs
from freshet_graph.stream.service.output import (
    Debug,
    Json,
    LogFormat,
    LogLevel,
    finish,
    print_end,
    print_json,
)
from freshet_graph.trainer.commands.ranks import AsOfMoment, ConfigFile, RankNumbers, in_ranks


def run(
    file: ConfigFile,
    until_idle: Annotated[
        float | None,
        typer.Option(
            "--until-idle",
            min=0,
            metavar="SECONDS",
            help="End when no new snapshot has come for this long. Default: run until SIGTERM.",
        ),
    ] = None,
    as_of: AsOfMoment = None,
    ranks: RankNumbers = None,
    log_level: LogLevel = "info",
    log_format: LogFormat = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Follow a lane: predict each new snapshot, train on it, write checkpoints. Ends at SIGTERM, or at a moment of the past.

    Example: freshet-trainer run --config trainer.yaml --until-idle 10 --json
    """

    def body() -> None:
        from freshet_graph.trainer.validation import require_trainable

        configure_logs(level=log_level, form=log_format, debug=debug)

        def check(config: TrainerConfig) -> None:
            if config.store is None:
                raise Failure("key store is missing. Name the folder of the store")
            for number in {1} if ranks is None else {*ranks}:
                require_trainable(config, number)

        config = load_config(
            TrainerConfig, file, check
        )  # before ranks are started, and before there is a lane
        result = in_ranks(ranks, lambda: _train(config, until_idle, as_of))
        if result is not None:
            shown = {key: value for key, value in result.items() if key != "cautions"}
            print_json(result) if json else print_end(f"{config.model} on lane {config.lane}", shown)

    finish(body, debug=debug)


def _train(config: TrainerConfig, until_idle_s: float | None, as_of: str | None) -> Mapping[str, Any] | None:
    from freshet_graph.stream.store.as_of import AsOf
    from freshet_graph.trainer.service import train

    moment = None if as_of is None else AsOf.parse(as_of)
    return train(config, until_idle_s=until_idle_s, as_of=moment, began=time.time())
