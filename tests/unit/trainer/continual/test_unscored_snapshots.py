"""Snapshots are counted as unscored, or as worse than a baseline, by the figure that their task is about."""

import pytest

from freshet_graph.schemas.trainer_config import TrainerConfig
from freshet_graph.trainer.metrics import TrainerMetrics


@pytest.mark.parametrize(("main", "sign"), [("ap", 1), ("mse", -1)])
def test_a_snapshot_without_its_tasks_figure_is_unscored(main: str, sign: int) -> None:
    metrics = TrainerMetrics(TrainerConfig(), 0)
    metrics.graph("g")
    metrics.scored({(main, "all", "recency"): 0.5}, (main, sign))
    assert unscored(metrics) == 1
    metrics.scored({(main, "all", "model"): 0.5}, (main, sign))
    assert unscored(metrics) == 0


@pytest.mark.parametrize(("main", "sign", "worse"), [("ap", 1, 0.4), ("mse", -1, 0.6)])
def test_a_model_that_its_tasks_floor_beats_is_counted(main: str, sign: int, worse: float) -> None:
    metrics = TrainerMetrics(TrainerConfig(), 0)
    metrics.graph("g")
    for model, expected in ((worse, 1), (worse, 2), (0.5, 0), (worse, 1), (1 - worse, 0)):
        metrics.scored({(main, "all", "model"): model, (main, "all", "f"): 0.5}, (main, sign), "f")
        assert sample(metrics, "below_recency") == expected


def unscored(metrics: TrainerMetrics) -> float | None:
    return sample(metrics, "unscored")


def sample(metrics: TrainerMetrics, name: str) -> float | None:
    return metrics.registry.get_sample_value(f"freshet_trainer_{name}_snapshots", {"graph": "g"})
