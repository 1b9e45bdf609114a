"""From Kafka into a store in a bucket, killed on the way, and from there into a trainer."""

import json
import os
import signal
from pathlib import Path

import pytest
import yaml
from s3_server import S3Server
from streaming import T0, command, configuration, edge, fresh_topic, run_job, send, written
from warm_popen import run

from freshet_graph.stream.store.crash import VARIABLE
from freshet_graph.stream.store.exports import ExportReader
from freshet_graph.stream.store.inspect import inspect
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.stream.store.log.reader import LogReader
from freshet_graph.stream.store.verify.store import verify

pytestmark = pytest.mark.integration

DAYS, A_DAY, NODES = 8, 60, 20
LANES = [{"name": "hash", "algorithm": "hash", "parts": 1, "window": 2}]


def meetings(kafka: str) -> str:
    """A topic of some days, each a ring of nodes that turns by a step."""
    topic = fresh_topic(kafka)
    events = [
        edge(i % NODES, (i + 1 + day % 3) % NODES, T0 + 86_400 * day + 60 * i)
        for day in range(DAYS)
        for i in range(A_DAY)
    ]
    send(kafka, topic, [*events, b"not an event"])
    return topic


def trained(folder: Path, store: str) -> list[int]:
    """The snapshots that a trainer which reads a store to its end has scored."""
    folder.mkdir()
    config = folder / "trainer.yaml"
    keys = {
        "store": store, "lane": "hash", "model": "sage-linear", "strategy": "vertex", "window": 2, "metrics": {"port": 0},
        "model_params": {"hidden": 8, "signature": 8}, "optimisation": {"epochs": 1, "batch_size": 64},
        "checkpoint": str(folder / "checkpoints"), "checkpoint_every": 1, "exports": {"embeddings": True},
    }  # fmt: skip
    config.write_text(yaml.safe_dump(keys), encoding="utf-8")
    trainer = ["freshet-trainer", "run", "--config", config, "--until-idle", "1"]
    done = run(trainer, environment=os.environ, timeout_s=180)
    assert done.returncode == 0, done.stderr
    lines = (folder / "checkpoints" / "scores.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["tau"] for line in lines]


def test_what_kafka_has_reaches_a_trainer_through_a_bucket(kafka: str, s3: S3Server, tmp_path: Path) -> None:
    topic = meetings(kafka)
    store = s3.store(lease_s=2)
    content = configuration(tmp_path / "unused", kafka, topic, lanes=LANES) | {"store": store}
    config = written(tmp_path, content)
    killed = command("run", "--config", config, "--until-idle", "1", secrets={VARIABLE: "file.renamed:4"})
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    run_job(content)
    local = configuration(tmp_path / "local", kafka, topic, lanes=LANES, graph="test")
    run_job(local)

    assert verify(store).problems == []
    found, expected = inspect(store), inspect(tmp_path / "local")
    for key in ("snapshots", "events", "refused", "nodes", "live_edges", "offsets", "log_bytes"):
        assert found[key] == expected[key], key
    assert found["lanes"]["hash"]["lag"] == 0
    one, other = LogReader(store), LogReader(tmp_path / "local")
    assert [one.events(s.tau).to_pylist() for s in one.snapshots] == [
        other.events(s.tau).to_pylist() for s in other.snapshots
    ]
    taus = [manifest.tau for manifest in LaneReader(store, "hash").manifests]
    assert trained(tmp_path / "trainer", store) == taus
    exported = ExportReader(store, "hash")
    assert [commit.tau for commit in exported.commits] == taus
    assert len(exported.table(exported.commits[0], "embeddings")) == exported.commits[0].num_embeddings > 0
