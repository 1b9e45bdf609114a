"""Checks of a configuration before anything is read: names, parameters, and parts that go together."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from freshet_graph.schemas.errors import FreshetError
from freshet_graph.schemas.store import LaneHeader
from freshet_graph.schemas.trainer_config import Budget, TrainerConfig
from freshet_graph.stream.partition.interface import create_for_lane
from freshet_graph.stream.partition.offline import training_params
from freshet_graph.stream.service.config_file import load_config, validated
from freshet_graph.stream.service.failure import Failure
from freshet_graph.trainer.models.interface import MODELS
from freshet_graph.trainer.session.checkpoint import with_strategy
from freshet_graph.trainer.session.session import new_model
from freshet_graph.trainer.strategies.cost_model import AUTO, CANDIDATES
from freshet_graph.trainer.strategies.interface import STRATEGIES, require_together
from freshet_graph.trainer.tasks.interface import TASKS
from freshet_graph.trainer.trackers.interface import TRACKERS

Configured = TrainerConfig | str | Path | Mapping[str, Any]
"""A configuration as programs give it: itself, its file, or its keys."""


def as_config(
    given: Configured, check: Callable[[TrainerConfig], object] = lambda config: None
) -> TrainerConfig:
    """Read a configuration's file, or take its keys, as ``freshet-trainer`` does; environment variables override both.

    Args:
        given: As a program gives it.
        check: Raises a FreshetError for errors beyond types in what was read.

    Raises:
        Failure: It cannot be read, a key is unknown or wrong, or it is no configuration.
    """
    if isinstance(given, TrainerConfig):
        return given
    if isinstance(given, str | Path):
        return load_config(TrainerConfig, given, check)
    if isinstance(given, Mapping):
        config = validated(TrainerConfig, dict(given), "configuration")
        check(config)
        return config
    raise Failure(
        f"a configuration is a TrainerConfig, the path of its file or a dict of its keys, found {type(given).__name__}"
    )


def candidates(config: TrainerConfig, ranks: int, lane: LaneHeader | None = None) -> list[str]:
    """Strategies that ``auto`` may choose for so many ranks, at least one; ``lane`` is None while it is unknown.

    Raises:
        Failure: There is none; the sentence is that about the last one for models of this kind.
    """
    if config.strategy_params:
        raise Failure(
            f"key strategy_params: strategy {AUTO} has no parameters. Leave the key out, or name a strategy"
        )
    kind, able, refused = MODELS.find(config.model).kind, [], []
    for name in CANDIDATES:
        if STRATEGIES.find(name).trains != kind:
            continue
        try:
            require_trainable(with_strategy(config, name), ranks, lane)
            able.append(name)
        except Failure as error:
            refused.append(error)
    if not able:
        raise refused[-1]
    return (
        able[:1] if kind == "event" else able
    )  # on one rank pac is sequential, on several there is pac alone


def require_trainable(config: TrainerConfig, ranks: int = 1, lane: LaneHeader | None = None) -> None:
    """Check model, task and strategy for so many ranks, their parameters, and the keys that not all of them take.

    Args:
        config: To be checked.
        ranks: How many train.
        lane: The lane; None while it is unknown.

    Raises:
        Failure: One is unknown or wrong, or they do not go together.
    """
    if config.tracker is not None:
        with _key("tracker"):
            TRACKERS.find(config.tracker)
        TRACKERS.options(config.tracker, config.tracker_params)
    with _key("model"):
        MODELS.find(config.model)
    if config.strategy == AUTO:
        candidates(config, ranks, lane)
        return
    with _key("strategy"):
        STRATEGIES.find(config.strategy)
    with _key("task"):
        task = TASKS.find(config.task)
    TASKS.options(config.task, config.task_params)
    STRATEGIES.options(config.strategy, config.strategy_params)
    with torch.random.fork_rng([]):
        model = new_model(config, task, None, 0)
    require_together(config.strategy, model, task, config.optimisation, lane, ranks)
    if config.optimisation.batch_size == "auto" and not STRATEGIES.find(config.strategy).resizes:
        raise Failure(
            f"key optimisation.batch_size: strategy {config.strategy} does not change the size of its steps. Give a "
            "number instead of auto"
        )
    _require_own_keys(config)
    if config.exports.scores and task.subject != "pairs":
        raise Failure(
            f"key exports.scores is about pairs, but task {config.task} asks about nodes. Leave it out"
        )
    if model.kind != "event" and config.compile:
        raise Failure(
            f"key compile is about event models, but {config.model} is a snapshot model. Leave the key out"
        )
    if model.kind != "event" and config.budget != Budget():
        raise Failure(
            f"key budget bounds what event models remember, but {config.model} is a snapshot model, whose window is "
            "its bound. Leave the key out"
        )


def _require_own_keys(config: TrainerConfig) -> None:
    given = {"horizon": config.horizon is not None, "smoothing": config.smoothing.kind != "none"}
    for key in (name for name, is_given in given.items() if is_given):
        able = [
            name for name, strategy in STRATEGIES.all().items() if key in getattr(strategy, "own_keys", ())
        ]
        if config.strategy not in able:
            raise Failure(
                f"key {key} means nothing under strategy {config.strategy}. Choose strategy {' or '.join(sorted(able))}, or "
                "leave the key out"
            )


def require_evaluable(config: TrainerConfig, ranks: int) -> None:
    """As ``require_trainable``, and check the partitioner that ``lane`` names to ``evaluate``.

    Raises:
        Failure: As ``require_trainable``, or the partitioner or a parameter of it is unknown or wrong.
    """
    require_trainable(config, ranks)
    parts = config.parts or ranks
    if config.lane == AUTO:
        if config.lane_params:
            raise Failure(
                f"key lane_params: lane {AUTO} has no parameters. Leave the key out, or name an algorithm"
            )
        return
    with _key("lane"):
        params = training_params(config.lane, config.lane_params, 0, 0)
        create_for_lane(config.lane, params, parts=parts, seed=config.seed, window=config.window)


@contextmanager
def _key(name: str) -> Iterator[None]:
    """Name a key in the errors of the block."""
    try:
        yield
    except FreshetError as error:
        raise Failure(f"key {name}: {error}") from error
