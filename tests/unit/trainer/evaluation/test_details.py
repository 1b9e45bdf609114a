"""``--per-snapshot``, ``--plot``, ``--scores-out``: the same figures by snapshot, and the scores that they follow from."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from thread_ranks import side_by_side
from trainer_invoked import _no_logs, invoke, write  # noqa: F401  a fixture
from trainer_streams import meetings

from freshet_graph.schemas.errors import FreshetError
from freshet_graph.schemas.trainer_config import TrainerConfig
from freshet_graph.stream.service.config_file import load_config
from freshet_graph.trainer.evaluation.details import Details
from freshet_graph.trainer.evaluation.evaluate import evaluate
from freshet_graph.trainer.scoring.metrics import auroc, batched_figures

TGN = {
    "model": "tgn-history",
    "strategy": "sequential",
    "model_params": {"memory": 8, "time_width": 8},
    "optimisation": {"epochs": 1, "batch_size": 50},
    "interval_s": 1.0,
}


def event_file(folder: Path, *, labels: bool = False, snapshots: int = 10) -> str:
    """Inserts over so many seconds, a snapshot each; with ``labels`` the events of every third source have label 1."""
    table = meetings(snapshots=snapshots, a_snapshot=60, features=False)
    table = table.filter(pc.equal(table["op"], 1))
    columns = {
        "src": table["src"],
        "dst": table["dst"],
        "t": pc.divide(pc.cast(table["t"], pa.float64()), 1e6),
    }
    if labels:
        columns["label"] = pa.array((table["src"].to_numpy() % 3 == 0).astype(np.int32))
    pq.write_table(pa.table(columns), folder / "events.parquet")
    return str(folder / "events.parquet")


def details_of(folder: Path) -> tuple[list[str], Path, Path, Path]:
    files = folder / "snapshots.parquet", folder / "ap.png", folder / "scores.parquet"
    options = ["--per-snapshot", str(files[0]), "--plot", str(files[1]), "--scores-out", str(files[2])]
    return options, *files


def test_rows_of_links_by_snapshot_and_by_event_of_every_seed(tmp_path: Path) -> None:
    data, config = event_file(tmp_path), write(tmp_path, **TGN)
    options, per_snapshot, plot, scores_out = details_of(tmp_path)
    negatives = ["--negatives", str(tmp_path / "negatives.parquet")]
    evaluation = ("evaluate", "--config", config, "--data", data, *negatives)
    code, result, error = invoke(*evaluation, "--seeds", "2", *options)
    assert code == 0, error
    rows, scores = pq.read_table(per_snapshot).to_pylist(), pq.read_table(scores_out)
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert {(row["seed"], row["tau"]) for row in rows} == {(seed, tau) for seed in (0, 1) for tau in (8, 9)}
    assert sum(row["scored"] for row in rows) == len(scores)
    assert {"ap", "random_ap", "edgebank_ap", "recency_ap", "recency_popularity_ap"} <= rows[0].keys()

    events = pq.read_table(data)
    event = scores["event"].to_numpy()
    for name in ("src", "dst", "t"):
        assert np.array_equal(scores[name].to_numpy(), events[name].to_numpy()[event]), name
    for run in result["runs"]:
        own = scores.filter(pc.equal(scores["seed"], run["seed"]))
        score, negative = (own[name].to_numpy() for name in ("score", "random_score"))
        assert float(batched_figures(score, negative)["ap"]) == pytest.approx(run["ap"], abs=1e-12)
        rank = own["rank"].drop_null().to_numpy()
        assert float(np.mean(1 / rank)) == pytest.approx(run["mrr"], abs=1e-12)
        for row in (row for row in rows if row["seed"] == run["seed"]):
            here = np.floor(own["t"].to_numpy()) == row["tau"]
            assert float(batched_figures(score[here], negative[here])["ap"]) == pytest.approx(row["ap"])

    own = scores.filter(pc.equal(scores["seed"], 0))
    pq.write_table(own, tmp_path / "again.parquet")
    again = tmp_path / "again.snapshots.parquet"
    code, judged, error = invoke(
        *evaluation, "--scores", str(tmp_path / "again.parquet"), "--per-snapshot", str(again)
    )
    assert code == 0, error
    first = result["runs"][0]
    for name in ("ap", "auc", "historical_ap", "transductive_ap", "recency_ap"):
        assert judged[name] == pytest.approx(first[name], abs=1e-12), name
    assert [row["ap"] for row in pq.read_table(again).to_pylist()] == [
        pytest.approx(row["ap"]) for row in rows if row["seed"] == 0
    ]


def test_rows_of_labels(tmp_path: Path) -> None:
    data = event_file(tmp_path, labels=True)
    config = write(tmp_path, **TGN, task="edge-classification", task_params={"epochs": 2})
    options, per_snapshot, plot, scores_out = details_of(tmp_path)
    scores_csv = scores_out.with_suffix(".csv")
    options[-1] = str(scores_csv)
    code, result, error = invoke("evaluate", "--config", config, "--data", data, *options)
    assert code == 0, error
    scores = pa.csv.read_csv(scores_csv)
    assert scores.column_names == [
        "seed", "event", "src", "dst", "t", "label", "score", "random_score", "activity_score",
    ]  # fmt: skip
    label, every = scores["label"].to_numpy(), np.ones(len(scores), np.bool_)
    assert np.array_equal(label, (scores["src"].to_numpy() % 3 == 0).astype(np.int64))
    for name in ("auroc", "random_auroc", "activity_auroc"):
        column = f"{name.removesuffix('auroc')}score"
        assert auroc(scores[column].to_numpy(), label, every) == pytest.approx(result[name])
    rows = pq.read_table(per_snapshot).to_pylist()
    assert [row["tau"] for row in rows] == [8, 9]
    assert sum(row["scored"] for row in rows) == len(scores)
    assert plot.exists()


@pytest.mark.parametrize("ranks", [1, 2])
def test_rows_of_nodes_on_one_rank_and_on_two(ranks: int, tmp_path: Path) -> None:
    data = event_file(tmp_path)
    keys = {"task": "node-regression", "interval_s": 1.0}
    config = load_config(TrainerConfig, write(tmp_path, **keys, optimisation={"epochs": 1}))
    _, *files = details_of(tmp_path)
    results = side_by_side(ranks, lambda group: evaluate(config, data, group, details=Details(*files)))
    scores = pq.read_table(files[2])
    target = scores["target"].to_numpy()
    for scorer, name in (("model", "mse"), ("zero", "zero_mse"), ("persistence", "persistence_mse")):
        error = np.mean((scores[f"{scorer}_value"].to_numpy() - target) ** 2)
        assert error == pytest.approx(results[0][name]), scorer
    rows = pq.read_table(files[0]).to_pylist()
    assert sum(row["scored"] for row in rows) == len(scores)
    assert {row["tau"] for row in rows} == set(scores["tau"].to_pylist())
    assert files[1].exists()


def test_classes_of_nodes(tmp_path: Path) -> None:
    data = event_file(tmp_path)
    pq.write_table(
        pa.table({"node": np.arange(30), "t": np.zeros(30), "label": np.arange(30) // 15}),
        tmp_path / "labels.parquet",
    )
    values = {
        "model": "tgcn",
        "strategy": "whole",
        "task": "node-classification",
        "model_params": {"hidden": 8},
    }
    labels = {"labels": str(tmp_path / "labels.parquet"), "classes": 2}
    config = write(tmp_path, **values, task_params=labels, interval_s=1.0, optimisation={"epochs": 1})
    options, per_snapshot, plot, scores_out = details_of(tmp_path)
    code, result, error = invoke("evaluate", "--config", config, "--data", data, *options)
    assert code == 0, error
    scores = pq.read_table(scores_out)
    assert np.array_equal(scores["label"].to_numpy(), scores["node"].to_numpy() // 15)
    for scorer, name in (("model", "accuracy"), ("last_label", "last_label_accuracy")):
        right = np.mean(scores[f"{scorer}_class"].to_numpy() == scores["label"].to_numpy())
        assert right == pytest.approx(result[name])
    assert "macro_f1" in pq.read_table(per_snapshot).column_names
    assert plot.exists()


@pytest.mark.parametrize(
    ("option", "file", "sentence"),
    [
        ("--plot", "ap.pdf", "the picture is a PNG"),
        ("--scores-out", "nowhere/s.parquet", "it must be a file in a folder that exists"),
        ("--per-snapshot", ".", "it must be a file in a folder that exists"),
    ],
)
def test_a_file_that_cannot_be_written_is_refused_before_training(
    option: str, file: str, sentence: str, tmp_path: Path
) -> None:
    arguments = ("--config", write(tmp_path), "--data", "absent.parquet", option, str(tmp_path / file))
    code, _, error = invoke("evaluate", *arguments)
    assert code == 1
    assert sentence in error
    with pytest.raises(FreshetError, match="it must be a file"):
        Details(plot=tmp_path / "nowhere" / "x.png").require_writable()
