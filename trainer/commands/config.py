"""``freshet-trainer config``: print a commented example, or check a file."""

from freshet_graph.schemas.trainer_config import TrainerConfig
from freshet_graph.stream.service.config_command import config_command

EXAMPLE = {
    "store": "./store",
    "lane": "sep",
    "model": "tgn-history",
    "strategy": "sequential",
    "checkpoint": "./checkpoints",
    "metrics": {"port": 9109},
}


def _require_workable(config: TrainerConfig) -> None:
    from freshet_graph.trainer.validation import (  # loading torch takes seconds
        require_evaluable,
        require_trainable,
    )

    # Without a store only evaluate can use it, whose lane is a partitioner.
    require_trainable(config) if config.store is not None else require_evaluable(config, 1)


config = config_command("trainer", TrainerConfig, lambda: EXAMPLE, _require_workable)
