"""A task that a package adds is learned by its own loss and told by its own figures, offline as well."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from offline_protocol import SHARES, config_for, write_events
from structlog.testing import capture_logs
from torch import Tensor

from freshet_graph.trainer.evaluation.evaluate import evaluate
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.tasks.interface import TASKS, Reduction
from freshet_graph.trainer.tasks.link_prediction import LinkPrediction
from freshet_graph.trainer.tasks.node_regression import NodeErrors, NodeRegression


class Tenfold(LinkPrediction):
    name = "tenfold"

    def loss(self, answers: Tensor, truth: Tensor, reduction: Reduction = "sum") -> Tensor:
        return super().loss(answers, truth, reduction) * 0 + (10 if reduction == "mean" else 10 * len(truth))


class Sure(LinkPrediction):
    """Links, judged by how sure a model is of events, and picked by it."""

    name = "sure"
    selection_metric = ("sureness", 1)

    def join(self, parts: Any) -> Any:
        return _Sureness(super().join(parts))


class _Sureness:
    cautions: Sequence[Any] = ()

    def __init__(self, links: Any) -> None:
        self._links = links

    def figures(self) -> Any:
        return {("sureness", "all", "model"): float(abs(self._links.positive).mean())}


class Counted(NodeRegression):
    name = "counted"

    def join(self, parts: Any) -> Any:
        return _Counts(super().join(parts))


class _Counts:
    cautions: Sequence[Any] = ()

    def __init__(self, errors: NodeErrors) -> None:
        self._errors = errors

    def figures(self) -> Any:
        return {**self._errors.figures(), ("nodes", "all", "model"): float(self._errors.count)}


def evaluated(task: type[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **more: Any) -> Any:
    TASKS.all()
    monkeypatch.setitem(TASKS.registered, task.name, task)
    data = write_events(tmp_path / "events.parquet")
    with capture_logs() as logs:
        found = evaluate(config_for(task=task.name, **more), data, Ranks(), shares=SHARES, seeds=2)
    return found, [line["loss"] for line in logs if line["event"] == "epoch"]


def test_its_loss_is_what_evaluate_follows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, losses = evaluated(Tenfold, tmp_path, monkeypatch)
    assert losses == [pytest.approx(10)] * 2
    assert "ap" in found


def test_its_figures_are_in_the_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshots = {"model": "sage-linear", "model_params": {"hidden": 4}, "strategy": "whole"}
    found, _ = evaluated(Counted, tmp_path, monkeypatch, **snapshots)
    assert found["nodes"] > 0
    assert found["nodes_spread"] == 0
    assert found["mse"] > 0


def test_a_task_about_links_is_judged_by_its_own_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, losses = evaluated(Sure, tmp_path, monkeypatch)
    assert len(losses) == 2
    assert found["sureness"] > 0
    assert found["runs"][0]["validation_sureness"] > 0
    assert "ap" not in found
    assert found["no_negative"]["test"] >= 0, "its negatives are those of the split"
