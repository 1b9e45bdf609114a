"""A run and its experiment tracker: nothing is missed, nothing waits, nothing ends training."""

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import pytest
from small_trainers import config_for, lines
from trainer_invoked import RUNNER, invoke, write
from trainer_streams import held_back, make_lane

from freshet_graph.schemas.section import Section
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.trainer.cli import app
from freshet_graph.trainer.continual import tracking
from freshet_graph.trainer.continual.journal import ScoreFile
from freshet_graph.trainer.continual.tracking import figures_of
from freshet_graph.trainer.metrics import TrainerMetrics
from freshet_graph.trainer.trackers.interface import TRACKERS, TrackedRun
from freshet_graph.trainer.trackers.mlflow import MlflowOptions, MlflowTracker


class Notebook:
    """A tracker that keeps all in memory; ``faults`` are raised first, one a call."""

    name: ClassVar[str] = "notebook"
    Options: ClassVar[type[Section]] = Section
    runs: ClassVar[list[TrackedRun]] = []
    figures: ClassVar[list[tuple[Mapping[str, float], int, int]]] = []
    files: ClassVar[dict[str, bytes]] = {}
    ends: ClassVar[list[bool]] = []
    removed: ClassVar[list[str]] = []
    faults: ClassVar[list[BaseException]] = []

    def __init__(self, options: Section) -> None:
        self._options = options

    def _fault(self) -> None:
        if self.faults:
            raise self.faults.pop(0)

    def open(self, run: TrackedRun, earlier: str | None) -> str:
        self._fault()
        if earlier is None or earlier in self.removed:
            self.runs.append(run)
            return f"run {len(self.runs)}"
        return earlier

    def log(self, figures: Sequence[tuple[Mapping[str, float], int, int]]) -> None:
        self._fault()
        self.figures.extend(figures)

    def upload(self, files: Mapping[str, Path]) -> None:
        self._fault()
        self.files.update({place: path.read_bytes() for place, path in files.items()})

    def close(self, *, failed: bool) -> None:
        self.ends.append(failed)


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(TRACKERS.registered, "notebook", Notebook)
    monkeypatch.setattr(tracking, "EVERY_S", 0.01)
    for kept in (
        Notebook.runs,
        Notebook.figures,
        Notebook.files,
        Notebook.ends,
        Notebook.removed,
        Notebook.faults,
    ):
        kept.clear()
    return


def _numbers() -> list[int]:
    return [number for _, number, _ in Notebook.figures]


def test_every_snapshot_is_sent_once_over_two_runs(tmp_path: Path) -> None:
    store = tmp_path / "store"
    make_lane(store)
    go_on = held_back(store, "hash", 3)
    config = write(tmp_path, store=str(store), tracker="notebook")
    assert invoke("run", "--config", config, "--until-idle", "0.1")[0] == 0
    assert _numbers() == [0, 1, 2]
    go_on()
    assert invoke("run", "--config", config, "--until-idle", "0.1")[0] == 0
    assert _numbers() == [0, 1, 2, 3, 4, 5]
    assert Notebook.ends == [False, False]
    (run,) = Notebook.runs
    assert run.params["model"] == "sage-linear"
    assert not any(key.startswith("tracker") for key in run.params)  # an address may have a login in it
    scores = lines(config_for(tmp_path, checkpoint=str(tmp_path / "checkpoints")))
    assert [figures["ap"] for figures, number, _ in Notebook.figures if number] == [
        line["ap"] for line in scores[1:]
    ]
    assert "checkpoints/0000000000000005.pt" in Notebook.files
    card = Notebook.files["model-card.md"].decode()
    assert "| recency_ap |" in card
    assert "# " in card.splitlines()[0]


def test_what_a_failing_tracker_misses_is_sent_later_and_training_goes_on(tmp_path: Path) -> None:
    make_lane(tmp_path / "store")
    Notebook.faults.extend([ConnectionError("no route"), SystemError("odd"), TimeoutError()])
    config = write(tmp_path, store=str(tmp_path / "store"), tracker="notebook")
    status, printed, _ = invoke("run", "--config", config, "--until-idle", "1.5")
    assert status == 0
    assert printed["snapshots"] == 6
    assert _numbers() == [0, 1, 2, 3, 4, 5]


def test_a_tracker_that_never_answers_costs_no_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_lane(tmp_path / "store")
    monkeypatch.setattr(tracking, "ENDING_S", 0.1)
    monkeypatch.setattr(Notebook, "open", lambda *_: threading.Event().wait(5))
    config = write(tmp_path, store=str(tmp_path / "store"), tracker="notebook")
    status, printed, _ = invoke("run", "--config", config, "--until-idle", "0.1")
    assert (status, printed["snapshots"], Notebook.figures) == (0, 6, [])


def test_training_that_begins_anew_is_a_new_run(tmp_path: Path) -> None:
    make_lane(tmp_path / "store")
    config = write(tmp_path, store=str(tmp_path / "store"), tracker="notebook")
    assert invoke("run", "--config", config, "--until-idle", "0.1")[0] == 0
    for checkpoint in (tmp_path / "checkpoints").glob("*.pt"):
        checkpoint.unlink()
    assert invoke("run", "--config", config, "--until-idle", "0.1")[0] == 0
    assert len(Notebook.runs) == 2
    assert _numbers() == [*range(6), *range(6)]


def test_a_run_that_the_service_lost_meanwhile_is_sent_again_whole(tmp_path: Path) -> None:
    make_lane(tmp_path / "store")
    lane = LaneReader(tmp_path / "store", "hash")
    config = config_for(tmp_path, tracker="notebook")
    scores = ScoreFile(config.checkpoint)
    line = {"tau": 0, "t_min": 0.0, "t_max": 1.0, "trained": 1, "scored": 1, "ap": 0.5}
    scores.append({"sequence": 0, **line})
    sending = tracking.Tracking(config, lane, TrainerMetrics(config, 0))
    sending._send(is_ending=False)
    scores.append({"sequence": 1, **line})
    Notebook.removed.append("run 1")
    sending._tracker = None  # as after a failure
    sending._send(is_ending=False)
    assert _numbers() == [0, 0, 1]


def test_a_damaged_note_begins_a_new_run(tmp_path: Path) -> None:
    make_lane(tmp_path / "store")
    config = write(tmp_path, store=str(tmp_path / "store"), tracker="notebook")
    assert invoke("run", "--config", config, "--until-idle", "0.1")[0] == 0
    (tmp_path / "checkpoints" / "tracker.json").write_text("{", encoding="utf-8")
    assert invoke("run", "--config", config, "--until-idle", "0.1")[0] == 0
    assert json.loads((tmp_path / "checkpoints" / "tracker.json").read_text())["run"] == "run 2"
    assert _numbers() == [*range(6), *range(6)]  # the new one is whole


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"tracker": "mlfow"}, "key tracker: unknown tracker 'mlfow'"),
        ({"tracker": "mlflow", "tracker_params": {"url": "x"}}, "tracker_params of mlflow: unknown key url"),
    ],
)
def test_a_wrong_name_is_refused_at_the_start(keys: dict, sentence: str, tmp_path: Path) -> None:
    config = write(tmp_path, store=str(tmp_path / "store"), **keys)
    refused = RUNNER.invoke(app, ["run", "--config", config, "--until-idle", "0.1"])
    assert refused.exit_code == 1
    assert sentence in refused.stderr


def test_only_finite_numbers_are_figures() -> None:
    line = {"tau": 3, "ap": 0.5, "loss": float("nan"), "seconds": {"train": 2}, "held": "why", "sequence": 1}
    assert figures_of(line) == {"ap": 0.5, "seconds.train": 2.0}


def test_mlflow_gets_pieces_that_its_interface_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow", reason="extra mlflow")
    sizes: list[int] = []
    tracker = MlflowTracker(MlflowOptions(uri="http://127.0.0.1:9"))
    monkeypatch.setattr(tracker._client, "log_batch", lambda _run, metrics: sizes.append(len(metrics)))
    tracker.log([({f"figure {number}": 1.0 for number in range(700)}, step, 0) for step in range(3)])
    assert sizes == [1000, 1000, 100]
