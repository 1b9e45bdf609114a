"""Ranks that share snapshots, from a live topic: one of them is killed, all of them are, and fewer go on."""

import json
import signal
from pathlib import Path

import pytest
import yaml
from day_files import DAYS, days
from streaming import configuration, fresh_topic, send, written
from streaming import started as stream_started
from trainer_processes import PATIENCE_S, ranks_of, scored, started, until

pytestmark = pytest.mark.integration


PARTS_OF_IT = {
    "snapshot": {"model": "cdgcn", "strategy_params": {"blocks": 2}},
    "group": {"model": "wdgcn", "horizon": 5},
    "hybrid": {
        "model": "tgcn",
        "horizon": 5,
        "strategy_params": {"average": "delayed", "seconds_per_snapshot": 2.0},
    },
}


@pytest.mark.parametrize("strategy", PARTS_OF_IT)
def test_two_ranks_learn_a_live_stream_through_kills_and_one_goes_on(
    strategy: str, kafka: str, tmp_path: Path
) -> None:
    topic = fresh_topic(kafka)
    algorithm = "load-aware" if strategy == "hybrid" else "hash"
    lanes = [{"name": "hash", "algorithm": algorithm, "parts": 2}]
    stream = written(tmp_path, configuration(tmp_path / "store", kafka, topic, lanes=lanes))
    trainer = tmp_path / "trainer.yaml"
    keys = {
        "store": str(tmp_path / "store"), "lane": "hash", "strategy": strategy, "window": 3,
        **PARTS_OF_IT[strategy], "model_params": {"hidden": 8, "signature": 4},
        "checkpoint": str(tmp_path / "checkpoints"), "checkpoint_every": 1, "metrics": {"port": 0}, "optimisation": {"epochs": 2},
    }  # fmt: skip
    trainer.write_text(yaml.safe_dump(keys), encoding="utf-8")
    job = stream_started("run", "--config", stream, log=tmp_path / "stream.log")
    try:
        with started("run", "--config", str(trainer), "--ranks", "2", "--json") as process:
            send(kafka, topic, days(0, 4))
            until(lambda: len(scored(tmp_path)) >= 3, "three snapshots")
            ranks_of(process)[-1].kill()
            send(kafka, topic, days(4, 6))
            until(lambda: len(scored(tmp_path)) >= 5, "two more after the kill")
            process.send_signal(signal.SIGTERM)
            _, err = process.communicate(timeout=PATIENCE_S)
            assert process.returncode == 0, err
        send(kafka, topic, days(6, DAYS))
        with started("run", "--config", str(trainer), "--ranks", "1", "--json") as process:
            until(lambda: len(scored(tmp_path)) >= DAYS - 1, "all snapshots but the open one, on one rank")
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=PATIENCE_S)
            assert process.returncode == 0, err
    finally:
        job.terminate()
        job.wait(60)
    lines = scored(tmp_path)
    assert [line["sequence"] for line in lines] == list(range(len(lines)))
    assert json.loads(out)["total_snapshots"] == len(lines)
    of_two = lines[4]  # with two snapshots or more before it
    crosses = {"snapshot": "rows_to_nodes", "group": "gradients", "hybrid": "averages"}
    assert of_two["sent_bytes"][crosses[strategy]] > 0
    if strategy == "group":
        assert {"imbalance measured", "efficiency predicted", "error predicted"} <= of_two["balance"].keys()
    if strategy == "hybrid":
        told = of_two["batches"]
        assert told["averages"] > 0
        assert sum(told["reads"].values()) == of_two["steps"], "of both passes"
        assert told["size"]["vertices"] > 0
    assert all(line["lag"] == 0 for line in lines[-1:])
    assert all(line["loss"] > 0 for line in lines[1:])
    if strategy == "snapshot":
        assert all(line["steps"] == 2 for line in lines[1:])
