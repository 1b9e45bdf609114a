"""``--model-out``: the evaluated model answers from its folder, also as of a moment before the test."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from trainer_invoked import _no_logs, invoke, write  # noqa: F401  a fixture

from freshet_graph.stream.service.failure import Failure
from freshet_graph.trainer.exports.predictor import Predictor

OF_A_SNAPSHOT, SNAPSHOTS, TESTED = 50, 10, 8
"""Snapshots of a second; the test begins with number ``TESTED``."""


def event_file(folder: Path) -> str:
    rng = np.random.default_rng(0)
    count = OF_A_SNAPSHOT * SNAPSHOTS
    src = rng.integers(0, 15, count)
    table = {
        "src": src,
        "dst": 15 + (src + rng.integers(0, 3, count)) % 15,
        "t": (np.arange(count) + 0.5) / 50,
    }
    pq.write_table(pa.table(table), folder / "events.parquet")
    return str(folder / "events.parquet")


@pytest.mark.parametrize(
    "model",
    [
        {"model": "tgn-history", "strategy": "sequential", "model_params": {"memory": 8, "time_width": 8}},
        {"model": "tgcn", "strategy": "whole", "model_params": {"hidden": 8}},
    ],
    ids=["event", "snapshot"],
)
def test_it_scores_the_first_event_of_the_test_as_the_evaluation_did(
    model: dict[str, Any], tmp_path: Path
) -> None:
    config = write(
        tmp_path, **model, interval_s=1.0, seed=3, optimisation={"epochs": 2, "learning_rate": 0.01}
    )
    folder, scores = tmp_path / "model", tmp_path / "scores.parquet"
    code, result, error = invoke(
        *("evaluate", "--config", config, "--data", event_file(tmp_path), "--split", "0.6,0.2,0.2"),
        *("--seeds", "2", "--scores-out", str(scores), "--model-out", str(folder)),
    )
    assert code == 0, error
    assert result["model_config"] == str(folder / "trainer.yaml")
    first = pq.read_table(scores).to_pylist()[0]
    assert (first["seed"], first["event"]) == (3, OF_A_SNAPSHOT * TESTED)

    before = Predictor(result["model_config"], as_of=str(TESTED - 1))
    assert (before.tau, before.sequence) == (TESTED - 1, TESTED - 1)
    ((_, score),) = before.rank(first["src"], [first["dst"]], t=first["t"])
    assert score == pytest.approx(first["score"], abs=1e-4)
    newest, later = Predictor(result["model_config"]), Predictor(result["model_config"], as_of="8")
    assert (newest.tau, later.tau) == (SNAPSHOTS - 1, 8)
    assert newest.version == before.version, "no weight saw the test"
    vectors = [one.embeddings()["embedding"].to_pylist() for one in (before, later, newest)]
    assert vectors[0] != vectors[1] != vectors[2]
    by_time = Predictor(result["model_config"], as_of=datetime(1970, 1, 1, 0, 0, TESTED, tzinfo=UTC))
    assert by_time.tau == TESTED - 1
    with pytest.raises(
        Failure,
        match=r"has no checkpoint as old as 3, the oldest is after snapshot 7, which ends at 1970-01-01T00:00:08Z\. Ask about "
        "that moment or a later one$",
    ):
        Predictor(result["model_config"], as_of=3)

    out = tmp_path / "vectors.parquet"
    arguments = ("export", "--config", result["model_config"], "--out", str(out), "--as-of", "@9")
    code, exported, error = invoke(*arguments)
    assert (code, exported.get("tau")) == (0, 8), error
    assert pq.read_table(out)["embedding"].to_pylist() == vectors[1]

    code, _, error = invoke("evaluate", "--config", config, "--data", "absent", "--model-out", str(folder))
    assert (code, "it must be a new or empty folder" in error) == (1, True)
    code, ran, error = invoke("run", "--config", result["model_config"], "--until-idle", "0.1")
    assert (code, ran.get("snapshots")) == (0, 0), f"run resumes from it: {error}"
