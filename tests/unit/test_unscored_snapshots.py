"""A snapshot counts as unscored when the figure that its task is about is missing."""

import pytest

from schemas.trainer_config import TrainerConfig
from trainer.metrics import TrainerMetrics


@pytest.mark.parametrize("main", ["ap", "mse"])
def test_a_snapshot_without_its_tasks_figure_is_unscored(main: str) -> None:
    metrics = TrainerMetrics(TrainerConfig(), 0)
    metrics.graph("g")
    metrics.scored({(main, "all", "recency"): 0.5}, main)
    assert unscored(metrics) == 1
    metrics.scored({(main, "all", "model"): 0.5}, main)
    assert unscored(metrics) == 0


def unscored(metrics: TrainerMetrics) -> float | None:
    return metrics.registry.get_sample_value("freshet_trainer_unscored_snapshots", {"graph": "g"})
