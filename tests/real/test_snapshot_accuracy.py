"""The benchmark of snapshot models: its streams have the known baselines, it resumes, and it takes up every model."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from real_data import real_file

from schemas.trainer_config import TrainerConfig
from trainer.evaluation.evaluate import evaluate
from trainer.evaluation.split import parse_shares
from trainer.ranks import Ranks

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
    config = TrainerConfig.model_validate(keys | stream.config)
    file, shares = written(name, tmp_path), parse_shares(stream.split)
    result = evaluate(config, file, Ranks(), shares=shares, seeds=1)
    assert result is not None
    for baseline, expected in BASELINES[name].items():
        assert result[f"{baseline}_mse"] == pytest.approx(expected, rel=0.01), baseline
    assert result["random_mse"] == pytest.approx(result["age_persistence_mse"], rel=1e-4)


@pytest.mark.slow
def test_the_table_is_printed_again_without_running_a_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real_file(STREAMS["england_covid"].source)
    out = tmp_path / "results.parquet"
    script = str(ROOT / "benchmarks" / "snapshot_accuracy.py")
    given = [
        script,
        "--nodes",
        "--data",
        "england_covid",
        "--models",
        "tgcn",
        "--seeds",
        "0",
        "--epochs",
        "2",
    ]
    given += ["--params", "{hidden: 8}", "--out", str(out)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    first = subprocess.run(
        [sys.executable, *given], capture_output=True, text=True, timeout=550, check=True, env=environment
    )
    rows = {
        line.split(" | ")[0].strip("| `"): line for line in first.stdout.splitlines() if line.startswith("|")
    }
    assert float(rows["tgcn"].split(" | ")[1]) < 68
    assert rows["persistence"].split(" | ")[1] == "67.8824"
    assert "number=2 of=2" in first.stdout + first.stderr
    results = out.read_bytes()
    monkeypatch.setattr(sys, "argv", given)
    snapshot_accuracy.main()
    again = capsys.readouterr().out
    assert [line for line in again.splitlines() if line.startswith("|")] == list(rows.values())
    assert out.read_bytes() == results  # with the seconds that each cell took


def test_figures_are_means_over_seeds_with_their_standard_deviation() -> None:
    rows = [{"mse": 1.0}, {"mse": 3.0}, {"mse": None}]
    assert snapshot_accuracy.shown(rows, "mse") == "2.0000 ± 1.4142"
    assert snapshot_accuracy.shown(rows, "mse", spread=False) == "2.0000"
    assert snapshot_accuracy.shown(rows, "ap") == "–"


def test_every_registered_snapshot_model_has_cells_that_can_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_file("collegemsg.parquet")
    asked = []
    monkeypatch.setattr(
        snapshot_accuracy, "run_matrix", lambda matrix, out: asked.extend(snapshot_accuracy.cells(matrix))
    )
    monkeypatch.setattr(sys, "argv", ["", "--data", "collegemsg", "--out", str(tmp_path / "none.parquet")])
    snapshot_accuracy.main()
    names = {f"{name}{suffix}" for name in snapshot_accuracy.snapshot_models() for suffix in ("", "-bare")}
    assert {"sage-linear", "tgcn-bare"} < names
    assert {cell.model for cell in asked} == names | {"tgn-history"}
    assert len(asked) == 3 * len(names) + 3
