"""A matrix of evaluations: each cell once, whatever happens in between."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml
from structlog.testing import capture_logs
from typer.testing import CliRunner

from schemas.matrix import Matrix
from stream.service.config_file import load_config
from stream.service.failure import Failure
from stream.store.errors import LaneBusyError
from stream.store.files.lock import FolderLock
from trainer.cli import app
from trainer.evaluation import matrix as under_test
from trainer.evaluation.matrix import Cell, cells, run_matrix

EVENT = {"strategy": "sequential"}


def matrix_for(folder: Path, **keys: Any) -> Matrix:
    (folder / "a.csv").write_text("src,dst,t\n1,2,3\n")
    content = {
        "data": [{"file": str(folder / "a.csv")}],
        "models": [
            {"name": "plain", "config": {"model": "tgn", **EVENT}},
            {"name": "history", "config": {"model": "tgn-history", **EVENT}},
        ],
        "seeds": [0, 1],
        **keys,
    }
    (folder / "matrix.yaml").write_text(yaml.safe_dump(content))
    return load_config(Matrix, folder / "matrix.yaml")


class Evaluations:
    """In the place of the processes: remembers which cells were evaluated."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done: list[tuple[str, int]] = []
        self.dies_at: int | None = None
        self.fails: set[str] = set()
        monkeypatch.setattr(under_test, "evaluated", self)

    def __call__(self, cell: Cell) -> dict[str, Any]:
        if self.dies_at == len(self.done):
            raise KeyboardInterrupt
        self.done.append((cell.model, cell.config.seed))
        row = dict.fromkeys(under_test.ABOUT) | dict(zip(under_test.IDENTITY, cell.key, strict=True))
        if cell.model in self.fails:
            return {**row, "error": "lane hash has no parts"}
        return {**row, "ap": 0.9, **({"mrr": 0.5} if cell.model == "history" else {})}


@pytest.fixture
def evaluations(monkeypatch: pytest.MonkeyPatch) -> Evaluations:
    return Evaluations(monkeypatch)


def run(matrix: Matrix, out: Path) -> dict[str, Any]:
    with capture_logs():
        return run_matrix(matrix, out)


def test_a_run_that_was_killed_goes_on_and_a_finished_one_does_nothing(
    tmp_path: Path, evaluations: Evaluations
) -> None:
    matrix, out = matrix_for(tmp_path), tmp_path / "results" / "r.parquet"
    evaluations.dies_at = 3
    with pytest.raises(KeyboardInterrupt):
        run(matrix, out)
    assert pq.read_table(out)["seed"].to_pylist() == [0, 1, 0]
    evaluations.dies_at = None
    found = run(matrix, out)
    assert (found["cells"], found["run"], found["skipped"], found["failed"]) == (4, 1, 3, 0)
    assert evaluations.done == [("plain", 0), ("plain", 1), ("history", 0), ("history", 1)]
    assert run(matrix, out)["run"] == 0
    table = pq.read_table(out)
    assert table["ap"].to_pylist() == [0.9] * 4
    assert table["mrr"].to_pylist() == [None, None, 0.5, 0.5]  # absent, never zero


def test_failed_cells_are_tried_again_and_others_kept(tmp_path: Path, evaluations: Evaluations) -> None:
    matrix, out = matrix_for(tmp_path), tmp_path / "r.parquet"
    evaluations.fails = {"plain"}
    assert run(matrix, out)["failed"] == 2
    assert pq.read_table(out)["error"].to_pylist() == ["lane hash has no parts"] * 2 + [None] * 2
    evaluations.fails = set()
    assert run(matrix, out) | {"seconds": 0, "file": ""} == {
        "file": "", "cells": 4, "run": 2, "skipped": 2, "failed": 0, "seconds": 0,
    }  # fmt: skip
    assert pq.read_table(out)["error"].null_count == 4


def test_other_data_or_another_configuration_is_another_cell(
    tmp_path: Path, evaluations: Evaluations
) -> None:
    matrix, out = matrix_for(tmp_path, seeds=[0]), tmp_path / "r.parquet"
    run(matrix, out)
    assert run(matrix_for(tmp_path, seeds=[0], config={"metrics": {"port": 7}}), out)["run"] == 0
    assert run(matrix_for(tmp_path, seeds=[0], config={"interval_s": 5.0}), out)["run"] == 2
    assert run(matrix_for(tmp_path, seeds=[0], split="0.8,0.1,0.1"), out)["run"] == 2
    assert run(matrix, out)["run"] == 0
    (tmp_path / "a.csv").write_text("src,dst,t\n1,2,4\n")
    assert run(matrix, out)["run"] == 2
    table = pq.read_table(out)
    assert len(table) == 8  # what was measured before stays
    assert len(set(table["data_hash"].to_pylist())) == 2
    assert len(set(table["config_hash"].to_pylist())) == 6


def test_axes_make_cells_and_nearer_keys_go_before_common_ones(tmp_path: Path) -> None:
    matrix = matrix_for(
        tmp_path,
        lanes=[{"lane": "hash"}, {"lane": "sep", "config": {"lane_params": {"hubs": 0.1}}}],
        ranks=[1, 2],
        config={"optimisation": {"epochs": 3}, "model": "jodie"},
    )
    found = cells(matrix)
    assert len(found) == 2 * 2 * 2 * 2
    assert {(cell.config.model, cell.config.optimisation.epochs) for cell in found} == {
        ("tgn", 3),
        ("tgn-history", 3),
    }
    assert {cell.config.lane: cell.config.lane_params for cell in found} == {"hash": {}, "sep": {"hubs": 0.1}}


def test_what_is_wrong_is_told_before_anything_runs(tmp_path: Path, evaluations: Evaluations) -> None:
    out = tmp_path / "r.parquet"
    with pytest.raises(Failure, match=r"model plain on lane hash of .*a.csv: unknown key modell"):
        run(matrix_for(tmp_path, config={"modell": 1}), out)
    with pytest.raises(Failure, match=r"model plain on lane hush of .*a.csv: unknown partitioner 'hush'"):
        run(matrix_for(tmp_path, lanes=[{"lane": "hush"}]), out)
    with pytest.raises(Failure, match=r"model new on lane hash of .*a.csv: unknown model 'tgnn'"):
        run(
            matrix_for(
                tmp_path, lanes=[{"lane": "hash"}], models=[{"name": "new", "config": {"model": "tgnn"}}]
            ),
            out,
        )
    with pytest.raises(Failure, match="models must have distinct names"):
        matrix_for(tmp_path, models=[{"name": "a"}, {"name": "a"}])
    with pytest.raises(Failure, match=r"b\.csv cannot be read: No such file"):
        run(matrix_for(tmp_path, data=[{"file": str(tmp_path / "b.csv")}]), out)
    out.write_text("text")
    with pytest.raises(Failure, match="cannot be read"):
        run(matrix_for(tmp_path), out)
    out.unlink()
    lock = FolderLock(tmp_path, "someone", "r.parquet.lock")
    with pytest.raises(LaneBusyError, match="is being written by someone"):
        run(matrix_for(tmp_path), out)
    lock.release()
    assert evaluations.done == []


def test_a_cell_that_failed_shows_in_the_exit_code(tmp_path: Path, evaluations: Evaluations) -> None:
    matrix_for(tmp_path, lanes=[{"lane": "hash"}])
    command = ["evaluate", "--matrix", str(tmp_path / "matrix.yaml"), "--out", str(tmp_path / "r"), "--json"]
    evaluations.fails = {"plain"}
    assert CliRunner().invoke(app, command).exit_code == 1
    evaluations.fails = set()
    assert CliRunner().invoke(app, command).exit_code == 0


def test_options_that_do_not_go_together_are_wrong_usage(tmp_path: Path) -> None:
    for arguments in ([], ["--matrix", "m.yaml"], ["--matrix", "m.yaml", "--out", "r", "--data", "d"]):
        assert CliRunner().invoke(app, ["evaluate", *arguments]).exit_code == 2
