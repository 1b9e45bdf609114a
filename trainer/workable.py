"""Whether a configuration can work, before anything is read: its names, its parameters, and what goes together."""

from schemas.trainer_config import Budget, TrainerConfig
from stream.partition.interface import create
from stream.service.failure import Failure
from trainer.models.interface import ModelShape, create_model
from trainer.strategies.interface import create_strategy


def require_workable(config: TrainerConfig) -> None:
    """Check model, strategy, their parameters, and the keys that not every strategy takes.

    Raises:
        Failure: One is unknown or wrong, or they do not go together.
    """
    strategy = create_strategy(config.strategy, config.strategy_params, config.model)
    create_model(config.model, ModelShape(0, config.window), config.model_params)
    if config.task == "node-classification" and config.strategy != "sequential":
        raise Failure(
            f"task node-classification needs strategy sequential and an event model, found {config.strategy}"
        )
    if config.optimisation.replay.ratio and not strategy.replays:
        raise Failure(
            f"key optimisation.replay: strategy {config.strategy} does not support replay (sequential does). "
            "Set optimisation.replay.ratio to 0"
        )
    if strategy.trains != "event" and config.budget != Budget():
        raise Failure(
            f"key budget bounds what event models remember, but {config.model} is a snapshot model, whose window is "
            "its bound. Leave the key out"
        )


def require_evaluable(config: TrainerConfig, ranks: int) -> None:
    """Check what ``require_workable`` does, and the partitioner that ``lane`` names to ``evaluate``.

    Args:
        config: The configuration.
        ranks: How many there will be.

    Raises:
        Failure: As ``require_workable``.
        PartitionError: The partitioner or a parameter is unknown or wrong.
    """
    require_workable(config)
    parts = config.parts or ranks
    create(config.lane, config.lane_params, parts=parts, seed=config.seed, window=config.window)
