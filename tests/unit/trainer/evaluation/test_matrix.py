"""A matrix of evaluations: each cell once, whatever happens in between."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml
from structlog.testing import capture_logs
from typer.testing import CliRunner

from freshet_graph.schemas.matrix import Matrix
from freshet_graph.stream.service.config_file import load_config
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.store.errors import LaneBusyError
from freshet_graph.stream.store.places.durable import FolderLock
from freshet_graph.trainer.cli import app
from freshet_graph.trainer.evaluation import matrix as under_test
from freshet_graph.trainer.evaluation.matrix import Cell, Entry, cells, entries, render, run_matrix
from freshet_graph.trainer.evaluation.progress import LogFollower, Progress

EVENT = {"strategy": "sequential"}
OVER_RANKS = [
    {"name": "plain", "config": {"model": "tgn", "strategy": "pac"}},
    {"name": "history", "config": {"model": "tgn-history", "strategy": "pac"}},
]


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
        self.cells: list[Cell] = []
        self.dies_at: int | None = None
        self.fails: set[str] = set()
        self.cautions: list[dict[str, Any]] = []
        self.makes: Path | None = None
        self.replaces: Path | None = None
        monkeypatch.setattr(under_test, "evaluated", self)

    def __call__(self, cell: Cell, progress: Callable[[str], None]) -> dict[str, Any]:
        if self.dies_at == len(self.done):
            raise KeyboardInterrupt
        self.done.append((cell.model, cell.config.seed))
        self.cells.append(cell)
        if self.makes is not None and not self.makes.exists():
            self.makes.write_text("negatives")
        if self.replaces is not None:
            self.replaces.write_text("others again")
            self.replaces = None
        row = dict.fromkeys(under_test.ABOUT) | dict(zip(under_test.IDENTITY, cell.key, strict=True))
        if cell.model in self.fails:
            return {**row, "error": "lane hash has no parts"}
        progress("epoch 1 of 3")
        if self.cautions:
            row["cautions"] = json.dumps(self.cautions)
        ap = 0.9 + 0.01 * cell.config.seed
        return {**row, "ap": ap, **({"mrr": 0.5} if cell.model == "history" else {})}


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
    assert pq.read_table(out)["seed"].to_pylist() == [0, 0, 1], "the first seed of all cells comes first"
    evaluations.dies_at = None
    found = run(matrix, out)
    assert (found["cells"], found["run"], found["skipped"], found["failed"]) == (4, 1, 3, 0)
    assert evaluations.done == [("plain", 0), ("history", 0), ("plain", 1), ("history", 1)]
    assert run(matrix, out)["run"] == 0
    table = pq.read_table(out)
    assert table["ap"].to_pylist() == [0.9, 0.9, 0.91, 0.91]
    assert table["mrr"].to_pylist() == [None, 0.5] * 2  # absent, never zero


def test_failed_cells_are_tried_again_and_others_kept(tmp_path: Path, evaluations: Evaluations) -> None:
    matrix, out = matrix_for(tmp_path), tmp_path / "r.parquet"
    evaluations.fails = {"plain"}
    assert run(matrix, out)["failed"] == 2
    assert pq.read_table(out)["error"].to_pylist() == ["lane hash has no parts", None] * 2
    evaluations.fails = set()
    assert run(matrix, out) | {"seconds": 0, "file": "", "results": []} == {
        "file": "", "cells": 4, "run": 2, "skipped": 2, "failed": 0, "seconds": 0, "results": [],
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
    assert run(matrix_for(tmp_path, seeds=[0], masked_nodes=0.1), out)["run"] == 2
    assert run(matrix, out)["run"] == 0
    (tmp_path / "a.csv").write_text("src,dst,t\n1,2,4\n")
    assert run(matrix, out)["run"] == 2
    table = pq.read_table(out)
    assert len(table) == 10  # what was measured before stays
    assert len(set(table["data_hash"].to_pylist())) == 2
    assert len(set(table["config_hash"].to_pylist())) == 8


def test_cells_of_other_negatives_are_not_averaged_with_these(
    tmp_path: Path, evaluations: Evaluations
) -> None:
    negatives, out = tmp_path / "n.parquet", tmp_path / "r.parquet"
    data = [{"file": str(tmp_path / "a.csv"), "negatives": str(negatives)}]
    evaluations.makes = negatives  # the first cell makes this file
    assert run(matrix_for(tmp_path, data=data, seeds=[0]), out)["run"] == 2
    assert run(matrix_for(tmp_path, data=data, seeds=[0]), out)["run"] == 0
    negatives.write_text("others")
    found = run(matrix_for(tmp_path, data=data, seeds=[0, 1]), out)
    assert (found["run"], [entry["seeds"] for entry in found["results"]]) == (4, [2, 2])
    table = pq.read_table(out)
    assert sorted(Counter(table["negatives_hash"].to_pylist()).values()) == [2, 4]
    assert table["negatives_hash"].null_count == 0
    assert run(matrix_for(tmp_path, data=data, seeds=[0, 1]), out)["run"] == 0
    evaluations.replaces = negatives  # while the third seed is evaluated
    with pytest.raises(Failure, match=r"n\.parquet changed after a cell was judged by them\. Start"):
        run(matrix_for(tmp_path, data=data, seeds=[0, 1, 2]), out)
    assert run(matrix_for(tmp_path, data=data, seeds=[0, 1, 2]), out)["run"] == 4


def test_axes_make_cells_and_nearer_keys_go_before_common_ones(tmp_path: Path) -> None:
    matrix = matrix_for(
        tmp_path,
        lanes=[{"lane": "hash"}, {"lane": "sep", "config": {"lane_params": {"hubs": 0.1}}}],
        ranks=[1, 2],
        models=OVER_RANKS,
        config={"optimisation": {"epochs": 3}, "model": "jodie"},
    )
    found = cells(matrix)
    assert len(found) == 2 * 2 * 2 * 2
    assert {(cell.config.model, cell.config.optimisation.epochs) for cell in found} == {
        ("tgn", 3),
        ("tgn-history", 3),
    }
    assert {cell.config.lane: cell.config.lane_params for cell in found} == {"hash": {}, "sep": {"hubs": 0.1}}


def test_further_cells_name_what_differs_and_no_cell_comes_twice(
    tmp_path: Path, evaluations: Evaluations
) -> None:
    few, many = (
        {"lane": "sep", "name": f"sep-{p}", "config": {"lane_params": {"hubs": p / 100}}} for p in (0, 5)
    )
    more = [{"ranks": [4], "seeds": [0]}, {"lanes": [few], "seeds": [0]}, {"seeds": [1]}]
    matrix = matrix_for(tmp_path, models=OVER_RANKS[:1], lanes=[many], ranks=[2], more=more)
    places = [(cell.lane, cell.ranks, cell.config.seed, cell.config.lane) for cell in cells(matrix)]
    assert places == [
        ("sep-5", 2, 0, "sep"), ("sep-5", 4, 0, "sep"), ("sep-0", 2, 0, "sep"), ("sep-5", 2, 1, "sep"),
    ]  # fmt: skip
    results = run(matrix, tmp_path / "r.parquet")["results"]
    assert [(entry["lane"], entry["ranks"], entry["seeds"]) for entry in results] == [
        ("sep-5", 2, 2), ("sep-5", 4, 1), ("sep-0", 2, 1),
    ]  # fmt: skip
    with pytest.raises(Failure, match=r"lane sep-5 has two meanings\. Give one of them another name"):
        matrix_for(tmp_path, lanes=[many], more=[{"lanes": [{"lane": "hdrf", "name": "sep-5"}]}])
    with pytest.raises(Failure, match="lanes must have distinct names"):
        matrix_for(tmp_path, lanes=[{"lane": "sep"}, {"lane": "sep", "config": {"parts": 2}}])


def test_further_cells_may_have_models_of_their_own(tmp_path: Path, evaluations: Evaluations) -> None:
    (tmp_path / "b_1.csv").write_text("src,dst,t\n1,2,9\n")
    slow = {
        "name": "slow",
        "config": {"model": "tgn", "strategy": "sequential", "optimisation": {"epochs": 9}},
    }
    more = [{"data": [{"file": str(tmp_path / "b_1.csv")}], "models": [OVER_RANKS[0], slow], "seeds": [1]}]
    matrix = matrix_for(tmp_path, models=OVER_RANKS[:1], lanes=[{"lane": "hash"}], seeds=[0], more=more)
    places = [(Path(cell.data).stem, cell.model, cell.config.seed) for cell in cells(matrix)]
    assert places == [("a", "plain", 0), ("b_1", "plain", 1), ("b_1", "slow", 1)]
    assert [cell.config.optimisation.epochs for cell in cells(matrix)] == [None, None, 9]
    lines = render(
        [Entry(**entry) for entry in run(matrix, tmp_path / "r")["results"]], "markdown"
    ).splitlines()
    assert lines[2:] == ["| plain | 0.9000 | 0.9100 |", "| slow | – | 0.9100 |"]
    with pytest.raises(Failure, match=r"model plain has two meanings\. Give one of them another name"):
        matrix_for(tmp_path, more=[{"models": [{**slow, "name": "plain"}]}])


def test_what_is_wrong_is_told_before_anything_runs(tmp_path: Path, evaluations: Evaluations) -> None:
    out = tmp_path / "r.parquet"
    with pytest.raises(Failure, match=r"model plain on lane hash of .*a.csv: unknown key modell"):
        run(matrix_for(tmp_path, config={"modell": 1}), out)
    with pytest.raises(
        Failure, match=r"model plain on lane hush of .*a.csv: key lane: unknown partitioner 'hush'"
    ):
        run(matrix_for(tmp_path, lanes=[{"lane": "hush"}]), out)
    with pytest.raises(Failure, match=r"model new on lane hash of .*a.csv: key model: unknown model 'tgnn'"):
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
    with pytest.raises(Failure) as refused:
        cells(matrix_for(tmp_path, data=[{"file": "b.csv"}]), tmp_path / "papers")
    assert str(refused.value) == (
        f"b.csv cannot be read: No such file or directory. It was looked for in {Path.cwd()}, the working directory, and in "
        f"{tmp_path / 'papers'}, that of the matrix. Correct its path, or run the command in the folder of the data"
    )
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


def table_of(folder: Path, *options: str) -> str:
    (folder / "b_1.csv").write_text("src,dst,t\n1,2,9\n")
    files = [{"file": str(folder / name)} for name in ("a.csv", "b_1.csv")]
    matrix_for(folder, data=files, seeds=[0, 2])
    command = ["evaluate", "--matrix", str(folder / "matrix.yaml"), "--out", str(folder / "r"), *options]
    with capture_logs():
        done = CliRunner().invoke(app, command)
    assert "mean ± standard deviation over 2 seeds; cells 8" in done.stderr
    return done.stdout


@pytest.mark.usefixtures("evaluations")
def test_the_table_has_mean_and_deviation_by_model_and_data(tmp_path: Path) -> None:
    assert table_of(tmp_path, "--format", "markdown").splitlines() == [
        "| model | a | b_1 |",
        "| --- | ---: | ---: |",
        "| plain | 0.9100 ± 0.0141 | 0.9100 ± 0.0141 |",
        "| history | 0.9100 ± 0.0141 | 0.9100 ± 0.0141 |",
    ]
    assert table_of(tmp_path, "--format", "latex").splitlines() == [
        r"\begin{tabular}{lrr}",
        r"\toprule",
        r"model & a & b\_1 \\",
        r"\midrule",
        r"plain & 0.9100 $\pm$ 0.0141 & 0.9100 $\pm$ 0.0141 \\",
        r"history & 0.9100 $\pm$ 0.0141 & 0.9100 $\pm$ 0.0141 \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]
    shown = table_of(tmp_path)
    assert all(word in shown for word in ("model", "b_1", "history", "0.9100 ± 0.0141"))
    other = table_of(tmp_path, "--figure", "mrr", "--format", "markdown").splitlines()
    assert other[2:] == ["| plain | – | – |", "| history | 0.5000 ± 0.0000 | 0.5000 ± 0.0000 |"]


@pytest.mark.usefixtures("evaluations")
def test_one_file_with_other_flags_is_other_data_under_a_name(tmp_path: Path) -> None:
    file = str(tmp_path / "a.csv")
    with pytest.raises(Failure, match=r"data .*a\.csv has two meanings\. Give one of them another name"):
        matrix_for(tmp_path, data=[{"file": file}, {"file": file, "columns": "weight=t"}])
    data = [{"file": file}, {"file": file, "name": "weighted", "columns": "weight=t"}]
    found = run(matrix_for(tmp_path, data=data), tmp_path / "r.parquet")["results"]
    lines = render([Entry(**entry) for entry in found], "markdown").splitlines()
    assert lines[0] == "| model | a | weighted |"
    assert found[0]["seeds"] == 2


def test_the_table_shows_failures_single_seeds_lanes_and_ranks(
    tmp_path: Path, evaluations: Evaluations
) -> None:
    evaluations.fails = {"plain"}
    matrix = matrix_for(
        tmp_path, seeds=[1], lanes=[{"lane": "hash"}, {"lane": "sep"}], ranks=[1, 2], models=OVER_RANKS
    )
    found = run(matrix, tmp_path / "r.parquet")["results"]
    lines = render([Entry(**entry) for entry in found], "markdown").splitlines()
    assert "| plain, hash, 1 rank | failed |" in lines
    assert "| history, sep, 2 ranks | 0.9100 |" in lines
    assert len(lines) == 2 + 8
    with pytest.raises(Failure, match=r"--figure app: no cell has it\. Cells have ap, mrr"):
        run_matrix(matrix, tmp_path / "r.parquet", "app")


def test_cautions_of_cells_are_told_with_the_table(tmp_path: Path, evaluations: Evaluations) -> None:
    evaluations.cautions = [{"figures": ["auroc"], "label": 1, "events": 3}]
    matrix, out = matrix_for(tmp_path), tmp_path / "r.parquet"
    told = [{"data": str(tmp_path / "a.csv"), **evaluations.cautions[0]}]
    assert run(matrix, out)["cautions"] == told
    with capture_logs() as logs:
        assert run_matrix(matrix, out)["cautions"] == told, "although no cell was run"
    assert sum("AUROC" in line["event"] for line in logs) == 1
    out.unlink()
    evaluations.cautions = []
    assert "cautions" not in run(matrix, out)


def test_large_figures_have_no_decimals() -> None:
    rows = [row_of("tgn", seed, cut=0.1, rank_memory_bytes=1e6 + seed) for seed in (0, 2)]
    assert render(entries(rows, "cut"), "markdown").splitlines()[2:] == ["| tgn | 0.1000 ± 0.0000 |"]
    assert render(entries(rows, "rank_memory_bytes"), "markdown").splitlines()[2:] == [
        "| tgn | 1,000,001 ± 1 |"
    ]


def row_of(model: str, seed: int, **figures: float | None) -> dict[str, Any]:
    return {
        "model": model,
        "data": "a.csv",
        "lane": "hash",
        "ranks": 1,
        "seed": seed,
        "error": None,
        **figures,
    }


def test_baselines_stand_below_the_models_that_they_stand_beside() -> None:
    popular = {"recency_popularity_historical_ap": 0.4}
    alike = [
        row_of(model, seed, historical_ap=0.7, recency_historical_ap=0.3 + seed / 10, **popular)
        for model in ("tgn", "dyrep")
        for seed in (0, 1)
    ]
    assert render(entries(alike, "historical_ap"), "markdown").splitlines()[2:] == [
        "| tgn | 0.7000 ± 0.0000 |",
        "| dyrep | 0.7000 ± 0.0000 |",
        "| recency (baseline) | 0.3500 ± 0.0707 |",
        "| recency_popularity (baseline) | 0.4000 ± 0.0000 |",
    ]
    later = row_of("dysat", 0, historical_ap=0.6, recency_historical_ap=0.5)  # it knows another moment
    assert [entry.model for entry in entries([*alike, later], "historical_ap")[-3:-1]] == [
        "recency (baseline of tgn, dyrep)",
        "recency (baseline of dysat)",
    ]


def test_progress_within_a_cell_is_read_from_its_log() -> None:
    with capture_logs() as logs:
        Progress(shown=True, seed=0, epochs=3, snapshots=1500).snapshot_done(1, 1234)
        Progress(shown=True, seed=0, epochs=3, snapshots=1500).snapshot_done(3, 7)
        Progress(shown=False, seed=0, epochs=3, snapshots=1500).snapshot_done(1, 1)
    written = "".join(json.dumps(line) + "\n" for line in logs)
    told: list[str] = []
    rest = ['{"event": "epoch"}\n', "error: no lane\n", "{broken\n"]
    followed = LogFollower([*written.splitlines(keepends=True), *rest], told.append)  # type: ignore[arg-type]
    assert followed.text() == "".join(rest)
    assert told == ["epoch 2 of 3, snapshot 1,235 of 1,500", "test, snapshot 8 of 1,500"]


def test_options_that_do_not_go_together_are_wrong_usage(tmp_path: Path) -> None:
    alone = ["--config", "c", "--data", "d", "--format", "latex"]
    for arguments in ([], ["--matrix", "m.yaml"], ["--matrix", "m.yaml", "--out", "r", "--data", "d"], alone):
        assert CliRunner().invoke(app, ["evaluate", *arguments]).exit_code == 2


def test_files_are_in_the_working_directory_or_beside_the_matrix(
    tmp_path: Path, evaluations: Evaluations, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "papers").mkdir()
    (tmp_path / "data").mkdir()
    monkeypatch.chdir(tmp_path / "data")
    matrix_for(tmp_path / "papers", data=[{"file": "a.csv", "negatives": "n.parquet"}])
    (tmp_path / "papers" / "n.parquet").write_text("negatives")
    how = ("evaluate", "--matrix", "../papers/matrix.yaml", "--out", "r.parquet", "--json")
    ran = CliRunner().invoke(app, how)
    assert ran.exit_code == 0, ran.output
    (cell,) = {(cell.data, cell.negatives_hash) for cell in evaluations.cells}
    assert cell == ("a.csv", under_test.file_hash(tmp_path / "papers" / "n.parquet"))
    for name in ("a.csv", "n.parquet"):
        (tmp_path / "papers" / name).rename(name)
    again = CliRunner().invoke(app, how)
    assert json.loads(again.stdout)["skipped"] == 4, "the same files elsewhere are the same cells"
    Path("n.parquet").write_text("others")
    (tmp_path / "papers" / "n.parquet").write_text("negatives")
    later = CliRunner().invoke(app, how)
    assert json.loads(later.stdout)["run"] == 4, "those of the working directory come first"
