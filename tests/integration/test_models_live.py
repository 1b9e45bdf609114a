"""Models follow one live topic by ``run``; a killed trainer becomes one that never was.

Every snapshot model under ``whole``, and the event models without a memory, each under one of their strategies.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from command_job import logged, without_settings
from streaming import T0, configuration, edge, fresh_topic, send, written
from streaming import started as stream_started
from trainer_processes import PATIENCE_S, scored, until
from trainer_sessions import small_params

from freshet_graph.stream.store.exports import ExportReader
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.trainer.exports.embeddings import load_embeddings
from freshet_graph.trainer.models.interface import MODELS
from freshet_graph.trainer.session.checkpoint import Checkpoints

pytestmark = [pytest.mark.integration, pytest.mark.slow]

FOLLOWING = {
    **{name: "whole" for name, made in sorted(MODELS.all().items()) if made.kind == "snapshot"},
    "graphmixer": "sequential", "dygformer": "pac",
}  # fmt: skip
"""Models and their strategies."""
DAY_S, DAYS, FIRST_DAYS, NODES = 86_400, 9, 5, 60
NEVER_KILLED, KILLED = "never-killed", "killed"


def days(first: int, end: int) -> list[bytes | None]:
    """Edges of some days; new nodes come every day."""
    rng = np.random.default_rng(first)
    midnight = T0 - T0 % DAY_S
    return [
        edge(
            int(rng.integers(NODES * (day + 1) // DAYS)),
            int(rng.integers(5)),
            midnight + day * DAY_S + number,
        )
        for day in range(first, end)
        for number in range(40)
    ]


class Trainers:
    """Trainers of every model on one store, each in a process of its own.

    Args:
        processes: Forks them.
        folder: Has the store.
    """

    def __init__(self, processes: ForkServerContext, folder: Path) -> None:
        self.folder = folder
        self.store = folder / "store"
        self._processes, self._started = processes, dict[tuple[str, str], ForkServerProcess]()

    def start(self, role: str, *arguments: str) -> None:
        """One of each model; each role has checkpoints and exports of its own."""
        for model, strategy in FOLLOWING.items():
            folder = self.folder_of(role, model)
            folder.mkdir(parents=True, exist_ok=True)
            keys = {
                "store": str(self.store), "lane": "hash", "model": model, "strategy": strategy, "window": 3,
                "model_params": small_params(model), "checkpoint": str(folder / "checkpoints"),
                "checkpoint_every": 2, "metrics": {"port": 0}, "optimisation": {"epochs": 2},
                "exports": {"embeddings": True, "name": f"{role}-{model}"},
            }  # fmt: skip
            config = folder / "trainer.yaml"
            config.write_text(yaml.safe_dump(keys), encoding="utf-8")
            process = self._processes.Process(
                target=logged,
                args=(
                    ["freshet-trainer", "run", "--config", str(config), *arguments],
                    str(folder / "log"),
                    without_settings(),
                ),
            )
            process.start()
            self._started[role, model] = process

    def folder_of(self, role: str, model: str) -> Path:
        return self.folder / role / model

    def until_scored(self, role: str, snapshots: int) -> None:
        """Until each of a role has predicted so many snapshots, or has ended."""
        for model in FOLLOWING:
            process, folder = self._started[role, model], self.folder_of(role, model)
            until(
                lambda process=process, folder=folder: (
                    len(scored(folder)) >= snapshots or not process.is_alive()
                ),
                f"snapshot {snapshots} of {model}",
            )

    def end(self, role: str, how: Callable[[ForkServerProcess], None], code: int) -> None:
        """End each of a role."""
        running = {model: self._started[role, model] for model in FOLLOWING}
        for process in running.values():
            how(process)
        for model, process in running.items():
            process.join(PATIENCE_S)
            assert process.exitcode == code, (self.folder_of(role, model) / "log").read_text()

    def close(self) -> None:
        """Leave nothing running."""
        for process in self._started.values():
            if process.is_alive():
                process.kill()
            process.join(10)


@contextmanager
def streaming(folder: Path, kafka: str, topic: str) -> Iterator[None]:
    lanes = [{"name": "hash", "algorithm": "hash", "parts": 2, "edge_life": 2}]
    config = written(folder, configuration(folder / "store", kafka, topic, lanes=lanes))
    job = stream_started("run", "--config", config, log=folder / "stream.log")
    try:
        yield
    finally:
        job.terminate()
        job.wait(60)


@pytest.fixture(scope="module")
def trained(
    kafka: str, processes: ForkServerContext, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Trainers]:
    """One stream, and after it of every model a trainer that followed it, and one that was killed and resumed."""
    folder, topic = tmp_path_factory.mktemp("live"), fresh_topic(kafka)
    trainers = Trainers(processes, folder)
    try:
        with streaming(folder, kafka, topic):
            trainers.start(NEVER_KILLED)
            trainers.start(KILLED)
            send(kafka, topic, days(0, FIRST_DAYS))
            trainers.until_scored(KILLED, 3)
            trainers.end(KILLED, ForkServerProcess.kill, -9)
            trainers.until_scored(NEVER_KILLED, 1)
            send(kafka, topic, days(FIRST_DAYS, DAYS))
            trainers.start(KILLED)
            for role in (NEVER_KILLED, KILLED):
                trainers.until_scored(role, DAYS - 1)  # all but the open one
                trainers.end(role, ForkServerProcess.terminate, 0)
        yield trainers
    finally:
        trainers.close()


@pytest.mark.parametrize("model", FOLLOWING)
def test_a_model_trains_on_a_live_stream_and_resumes_after_a_kill_to_the_same_bits(
    model: str, trained: Trainers
) -> None:
    straight, broken = (trained.folder_of(role, model) for role in (NEVER_KILLED, KILLED))
    assert (broken / "log").read_text().count('"event": "resumed"') == 1
    ours, theirs = scored(straight), scored(broken)
    assert [line["sequence"] for line in ours] == list(range(DAYS - 1))
    assert all(line["steps"] == 2 for line in ours)
    figures = ("sequence", "tau", "loss", "ap", "mrr", "steps")
    assert [[line.get(key) for key in figures] for line in theirs] == [
        [line.get(key) for key in figures] for line in ours
    ]

    first, second = (Checkpoints(folder / "checkpoints", 3).newest() for folder in (straight, broken))
    assert first is not None
    assert second is not None
    assert first[1]["sequence"] == DAYS - 2
    assert set(first[1]["model"]) == set(second[1]["model"])
    for name, weights in first[1]["model"].items():
        assert torch.equal(weights, second[1]["model"][name]), name

    names = [f"{role}-{model}" for role in (NEVER_KILLED, KILLED)]
    versions = [commit.model_version for commit in ExportReader(trained.store, names[0]).commits]
    assert len(set(versions)) == DAYS - 1, "each snapshot is learned"
    vectors, again = (load_embeddings(trained.store, name).sort_by("node") for name in names)
    num_nodes = LaneReader(trained.store, "hash").manifests[DAYS - 2].num_nodes
    assert vectors["node"].to_pylist() == list(range(num_nodes))
    for column in ("id", "node", "t", "embedding"):
        assert vectors[column].equals(again[column]), column
