"""The matrix of snapshot models: its streams have the known baselines, and it takes up every model."""

import sys
from pathlib import Path

import pytest
import yaml
from real_data import real_file

from freshet_graph.schemas.matrix import Matrix
from freshet_graph.schemas.trainer_config import TrainerConfig
from freshet_graph.trainer.evaluation.evaluate import evaluate
from freshet_graph.trainer.evaluation.matrix import cells
from freshet_graph.trainer.evaluation.split import parse_shares
from freshet_graph.trainer.ranks import Ranks

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import snapshot_accuracy  # noqa: E402  of the folder above
from node_streams import STREAMS, written  # noqa: E402

pytestmark = pytest.mark.real

BASELINES = {
    "slashdot": {"zero": 0.488, "persistence": 0.0171, "age_persistence": 0.0081},
    "england_covid": {"zero": 242, "persistence": 67.9},
    "twitter_tennis": {"zero": 0.494, "persistence": 0.255},
    "chickenpox": {"zero": 1.016, "persistence": 3.00},
}
"""Mean squared errors of the test, computed from the sources by plain NumPy."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name == "england_covid" else pytest.mark.slow) for name in BASELINES],
)
def test_floors_of_the_node_streams_are_those_that_are_known(name: str, tmp_path: Path) -> None:
    stream = STREAMS[name]
    real_file(stream.source)
    keys = {
        "lane": "hash", "task": "node-regression", "model": "tgcn", "strategy": "whole", "window": 1,
        "model_params": {"hidden": 2, "layers": 1, "signature": 0}, "optimisation": {"epochs": 1},
    }  # fmt: skip
    (file, own_keys), shares = written(name, tmp_path), parse_shares(stream.split)
    config = TrainerConfig.model_validate(keys | own_keys)
    result = evaluate(config, file, Ranks(), shares=shares, seeds=1)
    assert result is not None
    for baseline, expected in BASELINES[name].items():
        assert result[f"{baseline}_mse"] == pytest.approx(expected, rel=0.01), baseline
    assert result["random_mse"] == pytest.approx(result["age_persistence_mse"], rel=1e-4)


def test_every_registered_snapshot_model_has_cells_that_can_work(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real_file("collegemsg.parquet")
    monkeypatch.setattr(sys, "argv", ["", "collegemsg"])
    snapshot_accuracy.main()
    matrix = Matrix.model_validate(yaml.safe_load(capsys.readouterr().out))
    names = {f"{name}{suffix}" for name in snapshot_accuracy.snapshot_models() for suffix in ("", "-bare")}
    assert {"sage-linear", "tgcn-bare"} < names
    found = cells(matrix)
    assert {cell.model for cell in found} == names | {"tgn-history"}
    assert len(found) == 3 * len(names) + 3
