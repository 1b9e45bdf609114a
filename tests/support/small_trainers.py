"""The daemon's trainer on a small lane, stepped by hand."""

from pathlib import Path

import pytest

from freshet_graph.schemas.trainer_config import Optimisation, TrainerConfig
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.trainer.continual.daemon import Trainer
from freshet_graph.trainer.continual.journal import ScoreFile
from freshet_graph.trainer.metrics import TrainerMetrics
from freshet_graph.trainer.ranks import Ranks


def config_for(folder: Path, **more: object) -> TrainerConfig:
    values = {
        "store": str(folder / "store"),
        "lane": "hash",
        "model": "sage-linear",
        "strategy": "vertex",
        "model_params": {"hidden": 8, "signature": 8},
        "window": 2,
        "checkpoint": str(folder / "checkpoints"),
        "checkpoint_every": 1,
        "optimisation": Optimisation(epochs=2, batch_size=32, learning_rate=0.01),
        **more,
    }
    return TrainerConfig.model_validate(values)


EVENT_MODEL = {
    "model": "tgn-history",
    "strategy": "sequential",
    "model_params": {"memory": 8, "time_width": 8},
    "optimisation": Optimisation(epochs=2, batch_size=32, learning_rate=0.01),
}

KINDS = pytest.mark.parametrize("kind", [{}, EVENT_MODEL], ids=["snapshot-model", "event-model"])


def trainer_for(config: TrainerConfig, ranks: Ranks | None = None) -> Trainer:
    lane = LaneReader(config.store, config.lane)
    metrics = TrainerMetrics(config, 0)
    metrics.graph(lane.header.graph)
    return Trainer(config, lane, ranks or Ranks(), metrics)


def run(config: TrainerConfig, snapshots: int | None = None) -> Trainer:
    trainer = trainer_for(config)
    for manifest in trainer.lane.manifests[trainer.sequence + 1 : snapshots]:
        trainer.step(manifest)
    return trainer


def lines(config: TrainerConfig) -> list[dict]:
    """Score lines without what depends on the clock."""
    clock = ("seconds", "train_seconds", "wait_s", "wall_time")
    return [
        {key: value for key, value in line.items() if key not in clock}
        for line in ScoreFile(config.checkpoint).lines()
    ]
