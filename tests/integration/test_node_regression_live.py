"""Node regression by a snapshot model, from a live topic to metrics: the stream and the trainer as users start them."""

import json
import signal
import urllib.request
from pathlib import Path

import pytest
import torch
import yaml
from day_files import DAYS, days
from streaming import configuration, fresh_topic, send, written
from streaming import started as stream_started
from trainer_processes import PATIENCE_S, scored, served, started, until

pytestmark = pytest.mark.integration

MSE = ("mse", "zero_mse", "mean_mse", "persistence_mse", "age_persistence_mse")


def test_tgcn_learns_in_degrees_of_a_live_stream_beside_its_floors(kafka: str, tmp_path: Path) -> None:
    topic = fresh_topic(kafka)
    lanes = [{"name": "hash", "algorithm": "hash", "parts": 2, "edge_life": 2}]
    stream = written(tmp_path, configuration(tmp_path / "store", kafka, topic, lanes=lanes))
    trainer = tmp_path / "trainer.yaml"
    keys = {
        "store": str(tmp_path / "store"), "lane": "hash", "model": "tgcn", "strategy": "whole", "window": 3,
        "task": "node-regression", "task_params": {"next": "in_degree"}, "model_params": {"hidden": 8, "signature": 4},
        "checkpoint": str(tmp_path / "checkpoints"), "checkpoint_every": 1, "metrics": {"port": 0}, "optimisation": {"epochs": 3},
    }  # fmt: skip
    trainer.write_text(yaml.safe_dump(keys), encoding="utf-8")
    job = stream_started("run", "--config", stream, log=tmp_path / "stream.log")
    try:
        with started("run", "--config", str(trainer), "--json") as process:
            url = served(process)[0]
            send(kafka, topic, days(0, 4))
            until(lambda: len(scored(tmp_path)) >= 2, "two snapshots")
            assert len(scored(tmp_path)) < DAYS - 1
            send(kafka, topic, days(4, DAYS))  # the trainer has been learning meanwhile
            until(lambda: len(scored(tmp_path)) >= DAYS - 1, "all snapshots but the open one")
            with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
                text = answer.read().decode()
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=PATIENCE_S)
            assert process.returncode == 0, err
    finally:
        job.terminate()
        job.wait(60)
    lines, result = scored(tmp_path), json.loads(out)
    assert [line["sequence"] for line in lines] == list(range(len(lines)))
    assert lines[0]["scored"] == 0, "nobody had come before the first snapshot"
    for line in lines[1:]:
        assert set(MSE) <= line.keys()
        assert line["steps"] == 3
        assert set(line["train_seconds"]) >= {"train", "backward", "update"}
    assert lines[1]["mse"] == pytest.approx(lines[1]["age_persistence_mse"], rel=1e-5), (
        "it begins as the baseline"
    )
    assert lines[-1]["mse"] != pytest.approx(lines[-1]["age_persistence_mse"], rel=1e-5), (
        "and has learned since"
    )
    for key in MSE:
        weighted = sum(line[key] * line["scored"] for line in lines[1:]) / sum(
            line["scored"] for line in lines
        )
        assert result[key] == pytest.approx(weighted)
    for scorer in ("model", "zero", "mean", "persistence", "age_persistence"):
        assert f'freshet_trainer_score{{graph="test",metric="mse",scorer="{scorer}",subset="all"}}' in text
    assert 'freshet_trainer_step_seconds_count{graph="test",phase="train_backward",rank="0"}' in text
    state = torch.load(result["checkpoint"], weights_only=True)
    assert {"targets", "mean"} <= state.keys()
