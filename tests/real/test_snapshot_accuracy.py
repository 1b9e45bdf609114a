"""The benchmark of snapshot models: its streams have the known floors, it resumes, and it takes up every model."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from real_data import real_file
from trainer_command import trainer

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import snapshot_accuracy  # noqa: E402  of the folder above
from node_streams import STREAMS, written  # noqa: E402

pytestmark = pytest.mark.real

FLOORS = {
    "slashdot": {"zero": 0.488, "persistence": 0.0171, "age_persistence": 0.0081},
    "england_covid": {"zero": 242, "persistence": 67.9},
    "twitter_tennis": {"zero": 0.494, "persistence": 0.255},
    "chickenpox": {"zero": 1.016, "persistence": 3.00},
}
"""Mean squared errors of the test, computed from the sources by plain NumPy."""


def accuracy(out: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        str(ROOT / "benchmarks" / "snapshot_accuracy.py"),
        *arguments,
        "--out",
        str(out),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, timeout=550, check=True, env=environment)


@pytest.mark.parametrize("name", FLOORS)
def test_floors_of_the_node_streams_are_those_that_are_known(name: str, tmp_path: Path) -> None:
    stream = STREAMS[name]
    real_file(stream.source)
    result = trainer(
        tmp_path, "evaluate", "--data", str(written(name, tmp_path)), "--split", stream.split, lane="hash",
        task="node-regression", model="tgcn", strategy="whole", window=1, optimisation={"epochs": 1},
        model_params={"hidden": 2, "layers": 1, "signature": 0}, **stream.config,
    )  # fmt: skip
    for floor, expected in FLOORS[name].items():
        assert result[f"{floor}_mse"] == pytest.approx(expected, rel=0.01), floor
    assert result["random_mse"] == pytest.approx(result["age_persistence_mse"], rel=1e-4)


def test_the_table_is_printed_again_without_running_a_cell(tmp_path: Path) -> None:
    real_file(STREAMS["england_covid"].source)
    given = ["--nodes", "--data", "england_covid", "--models", "tgcn", "--seeds", "0", "1", "--epochs", "2"]
    first, again = (
        accuracy(tmp_path / "results.parquet", *given, "--params", "{hidden: 8}") for _ in range(2)
    )
    rows = {
        line.split(" | ")[0].strip("| `"): line for line in first.stdout.splitlines() if line.startswith("|")
    }
    assert float(rows["tgcn"].split(" | ")[1].split(" ± ")[0]) < 68
    assert rows["persistence"].split(" | ")[1] == "67.8824"
    assert [line for line in again.stdout.splitlines() if line.startswith("|")] == list(rows.values())
    assert "number=4 of=4" in first.stdout + first.stderr
    assert "number=" not in again.stdout + again.stderr


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
