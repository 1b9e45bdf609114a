"""``freshet-trainer config``: print a commented example, or check a file."""

from schemas.trainer_config import TrainerConfig
from stream.service.config_command import config_command
from stream.service.failure import Failure

EXAMPLE = {
    "store": "./store",
    "lane": "sep",
    "model": "tgn-history",
    "strategy": "sequential",
    "checkpoint": "./checkpoints",
    "metrics": {"port": 9109},
}


def _require_workable(config: TrainerConfig) -> None:
    from stream.partition.interface import PartitionError
    from trainer.workable import require_evaluable, require_workable  # loading torch takes seconds

    if config.store is not None:
        return require_workable(config)
    try:  # without a store only evaluate can use it, whose lane is a partitioner
        return require_evaluable(config, 1)
    except PartitionError as error:
        raise Failure(f"key lane: {error}") from error


config = config_command("trainer", TrainerConfig, EXAMPLE, _require_workable)
