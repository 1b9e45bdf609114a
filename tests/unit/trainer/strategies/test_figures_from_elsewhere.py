"""A strategy that a package adds has figures of its own, which arrive in the score file, in the metrics and in ``evaluate``."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from offline_protocol import SHARES, config_for, write_events
from prometheus_client import generate_latest
from small_trainers import config_for as daemon_config
from small_trainers import run
from trainer_streams import make_lane, meetings

from freshet_graph.schemas.trainer_config import TrainerConfig
from freshet_graph.stream.service.failure import Failure
from freshet_graph.trainer.continual.journal import ScoreFile
from freshet_graph.trainer.evaluation.evaluate import evaluate
from freshet_graph.trainer.metrics import TrainerMetrics
from freshet_graph.trainer.strategies.figures import TrainingFigure, declared_by, means_of, merged, shown
from freshet_graph.trainer.strategies.interface import STRATEGIES, StepReport
from freshet_graph.trainer.strategies.snapshots.whole import WholeStrategy
from freshet_graph.trainer.tasks.interface import SnapshotExamples

LOOKS = TrainingFigure(
    name="looks", meaning="Passes by hand", kind="counter", labels=("rank", "hand"), merge="sum"
)
DOUBT = TrainingFigure(
    name="doubt_ratio", meaning="Doubt of a pass", kind="gauge", merge="mean", key="doubt.ratio"
)
PAUSE = TrainingFigure(
    name="pause_seconds",
    meaning="Pauses",
    kind="histogram",
    merge="sum",
    key="doubt.pauses_s",
    buckets=(1, 5),
)
SHARED = TrainingFigure(name="agreed", meaning="The same on all ranks", kind="gauge", shared=True)
DECLARED = (LOOKS, DOUBT, PAUSE, SHARED)


class Doubting(WholeStrategy):
    name = "doubting"
    figures = (*WholeStrategy.figures, LOOKS, DOUBT, PAUSE)

    def learn(self, example_sets: Sequence[SnapshotExamples], epoch: int) -> StepReport:
        report = super().learn(example_sets, epoch)
        own = {
            "looks": {"left": 1 + epoch},
            "doubt_ratio": np.float32(0.5 + epoch),
            "pause_seconds": [2.0, np.nan],
        }
        return replace(report, figures={**report.figures, **own})


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    STRATEGIES.all()
    monkeypatch.setitem(STRATEGIES.registered, Doubting.name, Doubting)


def test_they_are_in_the_score_file_and_in_the_metrics(tmp_path: Path) -> None:
    make_lane(tmp_path / "store", events=meetings(snapshots=3))
    config = daemon_config(tmp_path, strategy=Doubting.name)  # of two passes
    metrics = run(config).metrics
    *_, line = ScoreFile(config.checkpoint).lines()
    assert line["looks"] == {"left": 3}
    assert line["doubt"] == {"ratio": 1.0, "pauses_s": [2.0, 2.0]}
    assert line["transfer_bytes"]
    served = generate_latest(metrics.registry).decode()
    snapshots = line["sequence"] + 1
    for sample in (
        f'looks_total{{graph="meetings",hand="left",rank="0"}} {3 * snapshots}.0',
        'doubt_ratio{graph="meetings"} 1.0',
        f'pause_seconds_bucket{{graph="meetings",le="5.0"}} {2 * snapshots}.0',
    ):
        assert f"freshet_trainer_{sample}" in served


def test_they_are_in_the_result_of_evaluate(tmp_path: Path) -> None:
    config = config_for(model="sage-linear", model_params={"hidden": 4}, strategy=Doubting.name)
    found = evaluate(config, write_events(tmp_path / "events.parquet"), shares=SHARES, seeds=2)
    assert found is not None
    told = json.loads(json.dumps(found))["training"]
    assert told["doubt"] == {"ratio": 0.5, "pauses_s": 2.0}
    assert told["looks"]["left"] > 1
    assert told == means_of([run["training"] for run in found["runs"]])


def test_a_figure_under_the_name_of_another_is_refused_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Doubting, "figures", (replace(LOOKS, name="loss"),))
    with pytest.raises(Failure, match=r"^figure loss of strategy doubting: Duplicated .*\. Rename it$"):
        TrainerMetrics(TrainerConfig(strategy=Doubting.name), 0)
    monkeypatch.setattr(
        Doubting, "figures", (*WholeStrategy.figures, replace(LOOKS, key="steps"), DOUBT, PAUSE)
    )
    make_lane(tmp_path / "store", events=meetings(snapshots=2))
    with pytest.raises(Failure, match=r"^steps in .* Give the strategy's another key$"):
        run(daemon_config(tmp_path, strategy=Doubting.name))


def test_a_value_that_is_not_declared_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"^guess is reported, but no figure of the strategy$"):
        merged(DECLARED, [{"guess": 1}])
    for label in ("left", ("left", "0")):
        with pytest.raises(ValueError, match=r"^figure doubt_ratio has labels \(\), and is reported for"):
            merged(DECLARED, [{"doubt_ratio": {label: 1.0}}])
    with pytest.raises(ValueError, match="looks has labels"):
        merged(DECLARED, [{"looks": 1}])
    assert declared_by(object()) == ()


@pytest.mark.parametrize(
    ("merge", "left", "right"), [("sum", 3, 4), ("mean", 1.5, 4), ("most", 2, 4), ("last", 1, None)]
)
def test_passes_become_one_value_by_label(merge: Any, left: float, right: float | None) -> None:
    declared = [replace(LOOKS, merge=merge)]
    passes = [{}, {"looks": {"left": 2, "right": 4}}, {"looks": {"left": 1}}, {"looks": {}}]
    found = merged(declared, passes)["looks"]
    assert found == {("left",): left, **({} if right is None else {("right",): right})}
    assert shown(declared, {"looks": found})["looks"]["left"] == left
    assert merged(declared, [{}]) == {}
    assert shown(declared, merged(declared, [{"looks": {"left": np.nan}}])) == {}


def test_of_what_all_ranks_share_rank_0_exports_a_value_and_the_last_one_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Doubting, "figures", (replace(LOOKS, kind="gauge"), SHARED))
    for rank in (0, 1):
        metrics = TrainerMetrics(TrainerConfig(strategy=Doubting.name), rank)
        for looks in ({("left",): 1}, {("right",): 2}):
            metrics.figures({"looks": looks, "agreed": {(): 3.0}})
        served = generate_latest(metrics.registry).decode()
        assert ('trainer_agreed{graph=""} 3.0' in served) is (rank == 0)
        assert f'trainer_looks{{graph="",hand="right",rank="{rank}"}} 2.0' in served
        assert 'hand="left"' not in served
