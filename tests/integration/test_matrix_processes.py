"""Cells are processes: one that fails tells its sentence, and none outlives the matrix."""

import json
import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml
from trainer_invoked import RUNNER, _no_logs, invoke  # noqa: F401  a fixture
from trainer_processes import PATIENCE_S, ranks_of, started, until
from trainer_streams import meetings

from freshet_graph.schemas.matrix import Matrix
from freshet_graph.trainer.cli import app
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
    assert 0 < row["validation_ap"] <= 1
    choice = json.loads(row["choice"])
    assert (choice["strategy"], *choice["predicted_s"]) == ("sequential", "sequential")
    assert told
    assert re.fullmatch(r"epoch 1 of 1, snapshot 1 of \d+", told[0])


@pytest.mark.slow
def test_cells_of_pac_hide_nodes_stop_early_and_say_cut_balance_memory_and_bytes(
    tmp_path: Path,
) -> None:
    """Through the command, as SPEED's Table IV: two passes over the training part, on one rank and on two."""
    events = meetings(snapshots=6, a_snapshot=40, nodes=40, features=False)
    table = events.select(["src", "dst", "op"]).append_column(
        "t", [[t / 1e6 for t in events["t"].to_pylist()]]
    )
    pq.write_table(table, tmp_path / "events.parquet")
    model = {"model": "tige", "model_params": {"memory": 8, "time_width": 8}}
    sep = {"lane": "sep-two-pass", "name": "sep-5", "config": {"lane_params": {"hubs": 0.05}}}
    matrix = {
        "data": [{"file": str(tmp_path / "events.parquet")}],
        "models": [{"name": "tige", "config": model}],
        "lanes": [sep],
        "ranks": [2],
        "more": [{"lanes": [{"lane": "hash", "name": "none"}], "ranks": [1]}],
        "split": "0.6,0.2,0.2",
        "masked_nodes": 0.1,
        "config": {
            "strategy": "pac",
            "parts": 2,
            "interval_s": 1.0,
            "optimisation": {"epochs": 9, "patience": 1, "learning_rate": 1e-9, "batch_size": 16},
        },
    }
    (tmp_path / "matrix.yaml").write_text(yaml.safe_dump(matrix))
    command = ["evaluate", "--matrix", str(tmp_path / "matrix.yaml"), "--out", str(tmp_path / "r.parquet")]
    code, result, err = invoke(*command)
    assert (code, result["cells"], result["failed"]) == (0, 2, 0), err
    rows = {row["ranks"]: row for row in pq.read_table(tmp_path / "r.parquet").to_pylist()}
    one, two = rows[1], rows[2]
    assert one["masked_nodes"] == two["masked_nodes"] > 0
    assert max(one["epochs"], two["epochs"]) < 9
    assert one["cut"] == one["discarded"] == 0
    assert one["event_balance"] == 1
    assert two["cut"] * one["rank_events"] == pytest.approx(two["discarded"])
    learned = one["rank_events"] * (1 - two["cut"])
    assert two["event_balance"] == pytest.approx(two["rank_events"] * 2 / learned)
    assert min(row[name] for row in (one, two) for name in ("rank_memory_bytes", "rank_cpu_s")) > 0
    assert one.get("sent_bytes") is None
    assert two["sent_bytes"] > 0
    assert all(0 < row[name] <= 1 for row in (one, two) for name in ("ap", "transductive_ap", "inductive_ap"))
    printed = RUNNER.invoke(app, [*command, "--figure", "event_balance", "--format", "markdown"]).stdout
    assert printed.splitlines()[2:] == [
        f"| tige, sep-5, 2 ranks | {two['event_balance']:.4f} |",
        "| tige, none, 1 rank | 1.0000 |",
    ]
