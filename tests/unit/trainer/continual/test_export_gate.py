"""Exports are held back by the figure that the task is about, whichever way is better."""

from pathlib import Path

from exporting_trainers import config_for
from small_trainers import run
from trainer_streams import make_lane

from freshet_graph.schemas.trainer_config import Hold
from freshet_graph.trainer.continual.journal import ScoreFile
from freshet_graph.trainer.exports.exporter import ExportGate
from freshet_graph.trainer.scoring.metrics import Figures
from freshet_graph.trainer.tasks.node_regression import NodeRegression


def aps(model: float | None, recency: float | None = None) -> Figures:
    return {
        ("ap", "all", scorer): ap for scorer, ap in (("model", model), ("recency", recency)) if ap is not None
    }


def test_a_gate_holds_while_the_model_is_below_recency_and_after_a_drop() -> None:
    gate = ExportGate(Hold(below_recency=True, ap_drop=0.05, over=2))
    assert gate.check(aps(None), 10) == "no snapshot has a score yet"
    assert gate.check(aps(0.60, 0.70), 10) == "ap 0.6000 is worse than 0.7000, that of recency"
    assert gate.check(aps(None, 0.7), 0) == "ap 0.6000 is worse than 0.7000, that of recency"  # nothing new
    assert gate.check(aps(0.80, 0.70), 10) is None
    assert gate.check(aps(0.90, 0.70), 10) is None
    assert gate.check(aps(0.81, 0.70), 10) is None  # .04 below the mean .85
    assert (
        gate.check(aps(0.79, 0.70), 10)
        == "ap 0.7900 is worse than 0.8550, its mean before, by more than 0.05"
    )
    assert gate.check(aps(0.80, 0.70), 10) is not None  # what is held back does not lower the mean
    assert gate.check(aps(0.81, 0.70), 10) is None
    lines = [
        {"ap": 0.9, "scored": 10},
        {"ap": 0.9, "scored": 10},
        {"ap": 0.5, "held": "why", "scored": 10},
        {},
    ]
    restarted = ExportGate(Hold(ap_drop=0.05, over=2), lines=lines)
    assert restarted.check({}, 0) == "why"
    assert restarted.check(aps(0.84), 10) is not None
    assert ExportGate(Hold()).check(aps(0.1, 0.9), 10) is None


def test_a_gate_of_a_task_whose_figure_is_better_the_lower_it_is() -> None:
    def errors(model: float, baseline: float) -> Figures:
        return {("mse", "all", "model"): model, ("mse", "all", "age_persistence"): baseline}

    gate = ExportGate(
        Hold(below_recency=True, ap_drop=0.05, over=1),
        NodeRegression.selection_metric,
        NodeRegression.baseline,
    )
    assert gate.check(errors(0.3, 0.2), 10) == "mse 0.3000 is worse than 0.2000, that of age_persistence"
    assert gate.check(errors(0.2, 0.2), 10) is None
    assert (
        gate.check(errors(0.26, 0.3), 10)
        == "mse 0.2600 is worse than 0.2000, its mean before, by more than 0.05"
    )
    assert gate.check(errors(0.24, 0.3), 10) is None


def test_exports_of_node_regression_are_held_back_by_its_own_figures(tmp_path: Path) -> None:
    make_lane(tmp_path / "store")
    hold = {"ap_drop": 1e-6, "over": 1}
    config = config_for(tmp_path, task="node-regression", exports={"embeddings": True, "hold": hold})
    run(config)
    lines = ScoreFile(config.checkpoint).lines()
    let_out = [line["mse"] for line in lines if "mse" in line and "held" not in line]
    assert 0 < len(let_out) < len(lines)
    assert let_out == sorted(let_out, reverse=True), "an error that rose is held back"


def test_a_lucky_snapshot_of_one_event_holds_nothing_back() -> None:
    gate = ExportGate(Hold(ap_drop=0.05, over=3))
    for ap, scored in [(1.0, 1), (0.8, 200), (0.8, 200), (0.8, 200), (1.0, 1), (0.8, 200)]:
        assert gate.check(aps(ap), scored) is None
    assert gate.check(aps(0.7), 200) == "ap 0.7000 is worse than 0.8005, its mean before, by more than 0.05"
