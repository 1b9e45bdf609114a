"""Cells are processes: one that fails tells its sentence, and none outlives the matrix."""

import json
import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml
from trainer_processes import PATIENCE_S, ranks_of, started, until
from trainer_streams import meetings

from freshet_graph.schemas.matrix import Matrix
from freshet_graph.trainer.evaluation.matrix import cells, evaluated


@pytest.mark.slow
def test_a_killed_matrix_leaves_no_process_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    events = meetings(snapshots=6, a_snapshot=40, features=False)
    table = events.select(["src", "dst", "op"]).append_column(
        "t", [[t / 1e6 for t in events["t"].to_pylist()]]
    )
    pq.write_table(table, tmp_path / "events.parquet")
    matrix = {
        "data": [{"file": str(tmp_path / "events.parquet"), "negatives": str(tmp_path / "n.parquet")}],
        "models": [
            {
                "name": "wrong",
                "config": {"model": "tgn", "strategy": "sequential", "task": "edge-classification"},
            },
            {
                "name": "right",
                "config": {"model": "tgn", "strategy": "sequential", "model_params": {"memory": 8}},
            },
        ],
        "split": "0.6,0.2,0.2",
        "config": {"interval_s": 1.0, "optimisation": {"epochs": 1}},
    }
    (tmp_path / "matrix.yaml").write_text(yaml.safe_dump(matrix))
    arguments = [
        "evaluate",
        "--matrix",
        str(tmp_path / "matrix.yaml"),
        "--out",
        str(tmp_path / "r.parquet"),
        "--json",
    ]
    with started(*arguments) as process:
        until((tmp_path / "r.parquet").exists, "the first cell's end")
        until(lambda: bool(ranks_of(process)), "the second cell")
        children = ranks_of(process)
        process.kill()
        process.wait()
        until(
            lambda: not any(child.is_running() and child.status() != "zombie" for child in children),
            "the end of the cell",
        )
    assert list(temporary.glob("freshet-matrix-*"))
    with started(*arguments) as process:
        out, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 1, err
    assert json.loads(out)["failed"] == 1
    assert not list(temporary.glob("freshet-*")), "what the killed one left is swept"
    rows = {row["model"]: row for row in pq.read_table(tmp_path / "r.parquet").to_pylist()}
    assert "task edge-classification needs labels, and no event has one" in rows["wrong"]["error"]
    right = rows["right"]
    assert right["error"] is None
    assert 0 < right["ap"] <= 1
    assert 0 < right["recency_ap"] <= 1
    assert len(right["data_hash"]) == len(right["config_hash"]) == len(right["negatives_hash"]) == 64
    assert json.loads(right["config"])["model_params"] == {"memory": 8}


def test_a_cell_tells_how_far_it_is_and_reads_columns_of_other_names(tmp_path: Path) -> None:
    rows = [f"{a % 7}\t{a % 5 + 10}\t2024-01-01T00:00:{a:02d}Z" for a in range(60)]
    (tmp_path / "e.tsv").write_text("\n".join(["user\titem\tts", *rows]) + "\n")
    matrix = Matrix.model_validate(
        {
            "data": [{"file": str(tmp_path / "e.tsv"), "columns": "src=user,dst=item,t=ts"}],
            "models": [{"name": "tgn", "config": {"model": "tgn", "strategy": "auto"}}],
            "config": {"interval_s": 20.0, "optimisation": {"epochs": 1}},
        }
    )
    told: list[str] = []
    row = evaluated(cells(matrix)[0], told.append)
    assert row["error"] is None
    assert 0 < row["ap"] <= 1
    choice = json.loads(row["choice"])
    assert (choice["strategy"], *choice["predicted_s"]) == ("sequential", "sequential")
    assert told
    assert re.fullmatch(r"epoch 1 of 1, snapshot 1 of \d+", told[0])


@pytest.mark.slow
def test_pac_cells_train_on_two_passes_over_the_training_part_on_one_rank_and_on_two(tmp_path: Path) -> None:
    events = meetings(snapshots=6, a_snapshot=60, nodes=60, features=False)
    table = events.select(["src", "dst", "op"]).append_column(
        "t", [[t / 1e6 for t in events["t"].to_pylist()]]
    )
    pq.write_table(table, tmp_path / "events.parquet")
    model = {"model": "tgn", "model_params": {"memory": 8, "time_width": 8}, "strategy": "pac"}
    matrix = Matrix.model_validate(
        {
            "data": [{"file": str(tmp_path / "events.parquet")}],
            "models": [{"name": "tgn", "config": model}],
            "lanes": [{"lane": "sep-two-pass", "config": {"lane_params": {"hubs": 0.05}, "parts": 2}}],
            "ranks": [1, 2],
            "split": "0.6,0.2,0.2",
            "config": {"interval_s": 1.0, "optimisation": {"epochs": 1, "batch_size": 16}},
        }
    )
    one, two = (evaluated(cell, lambda sentence: None) for cell in cells(matrix))
    assert (one["error"], two["error"]) == (None, None)
    assert one["discarded"] == 0 < two["discarded"]
    assert 0 < one["ap"] <= 1
    assert 0 < two["ap"] <= 1
