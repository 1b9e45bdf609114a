"""``freshet-trainer score``: score events as they are committed, beside ``run``."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from freshet_graph.schemas.trainer_config import TrainerConfig
from freshet_graph.stream.optional import missing_extra
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
from freshet_graph.trainer.commands.ranks import ConfigFile

if TYPE_CHECKING:
    from freshet_graph.stream.kafka.scored_topic import ScoredTopic


def score(
    file: ConfigFile,
    until_idle: Annotated[
        float | None,
        typer.Option(
            "--until-idle",
            min=0,
            metavar="SECONDS",
            help="End when no new event has come for this long. Default: run until SIGTERM.",
        ),
    ] = None,
    log_level: LogLevel = "info",
    log_format: LogFormat = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Score each event as it is committed, with the newest checkpoint, and send the scores to scoring.topic.

    It never trains, and never writes the store. Killed and started again it resumes where the topic ends. With the key serve it
    also answers questions over HTTP.

    Example: freshet-trainer score --config trainer.yaml
    """

    def body() -> None:
        from freshet_graph.trainer.models.interface import MODELS
        from freshet_graph.trainer.validation import require_trainable

        topics = _topics()
        configure_logs(level=log_level, form=log_format, debug=debug)

        def check(config: TrainerConfig) -> None:
            if config.store is None:
                raise Failure("key store is missing. Name the folder of the store")
            if config.scoring.topic is None or config.scoring.kafka is None:
                raise Failure(
                    "keys scoring.topic and scoring.kafka are missing. Name the topic of the scores, and its brokers "
                    "(kafka: {bootstrap: host:port})"
                )
            require_trainable(config)
            if config.serve is not None and MODELS.find(config.model).kind != "event":
                raise Failure(
                    f"key serve: {config.model} is a snapshot model, and questions need an event model, such as tgn-history. "
                    "Choose one, or leave serve out"
                )

        config = load_config(TrainerConfig, file, check)
        result = _score(config, topics, until_idle)
        print_json(result) if json else print_end(f"{config.model} on {config.store}", result)

    finish(body, debug=debug)


def _topics() -> "type[ScoredTopic]":
    """What sends scores, which needs a client of Kafka."""
    try:
        from freshet_graph.stream.kafka.scored_topic import ScoredTopic
    except ModuleNotFoundError as error:
        raise missing_extra("freshet-trainer score", error, "stream,trainer") from error
    return ScoredTopic


def _score(config: TrainerConfig, topics: "type[ScoredTopic]", until_idle_s: float | None) -> dict[str, Any]:
    from freshet_graph.trainer.arrival.service import follow

    return follow(config, topics, until_idle_s=until_idle_s)
