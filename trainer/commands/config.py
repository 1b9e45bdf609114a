"""``freshet-trainer config``: print a commented example, or check a file."""

from schemas.trainer_config import TrainerConfig
from stream.service.config_command import config_command

EXAMPLE = {
    "store": "./store",
    "lane": "sep",
    "model": "tgn-history",
    "strategy": "sequential",
    "checkpoint": "./checkpoints",
    "metrics": {"port": 9109},
}


def _require_workable(config: TrainerConfig) -> None:
    from trainer.validation import require_evaluable, require_trainable  # loading torch takes seconds

    # Without a store only evaluate can use it, whose lane is a partitioner.
    require_trainable(config) if config.store is not None else require_evaluable(config, 1)


config = config_command("trainer", TrainerConfig, lambda: EXAMPLE, _require_workable)
