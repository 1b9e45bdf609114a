"""``strategy: auto``: a run changes its strategy at a snapshot's border, as a restart with that strategy would."""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest
from small_trainers import EVENT_MODEL, config_for, lines, run, trainer_for
from structlog.testing import capture_logs
from thread_ranks import FakeLink, side_by_side
from trainer_streams import SECOND, make_lane, meetings

from freshet_graph.schemas.config import Lane
from freshet_graph.schemas.trainer_config import TrainerConfig
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.store.errors import ConfigMissingError
from freshet_graph.stream.store.from_file import build_store
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.trainer.continual import auto
from freshet_graph.trainer.continual.auto import lane_of
from freshet_graph.trainer.exports.predictor import Predictor
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.session.checkpoint import with_strategy
from freshet_graph.trainer.session.measurement import measured_link
from freshet_graph.trainer.session.session import Session
from freshet_graph.trainer.session.snapshot_trainer import SnapshotTrainer
from freshet_graph.trainer.strategies.cost_model import Cost
from freshet_graph.trainer.validation import candidates

SNAPSHOTS = 9


@pytest.fixture
def config(tmp_path: Path) -> TrainerConfig:
    """A model that ``vertex`` trains, too, on a lane with something to learn."""
    make_lane(tmp_path / "store", events=meetings(snapshots=SNAPSHOTS, a_snapshot=40))
    return config_for(tmp_path, strategy="auto")


def prices(**seconds: float) -> Any:
    """Instead of measured costs, which depend on the machine."""
    return lambda name, *_: Cost(seconds[name], 0.0)


def strategies(config: TrainerConfig) -> list[str]:
    return [line["strategy"] for line in lines(config)]


def parameters(trainer: Any) -> Mapping[str, Any]:
    return {name: value.clone() for name, value in trainer.session.model.state_dict().items()}


def test_the_link_is_measured_as_it_is() -> None:
    for ranks in (2, 3):
        found = side_by_side(ranks, measured_link, FakeLink(latency_s=0.5, bytes_per_s=1e6))
        for alpha_s, beta_s in found:
            assert alpha_s == pytest.approx(0.5, rel=1e-4)
            assert beta_s == pytest.approx(1e-6, rel=1e-4)
    assert measured_link(Ranks()) == (0.0, 0.0)


def test_it_changes_at_a_border_and_learns_what_a_session_with_these_weights_learns(
    config: TrainerConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auto, "cost", prices(whole=2.0, snapshot=2.0, vertex=1.0))
    trainer = run(config, snapshots=auto.BEFORE)
    assert strategies(config) == ["whole"] * auto.BEFORE
    weights, state = parameters(trainer), copy.deepcopy(trainer.session.state())
    beside = Session(with_strategy(config, "vertex"), LaneReader(config.store, "hash"), Ranks())
    beside.restore(state)
    assert all(value.equal(weights[name]) for name, value in beside.model.state_dict().items())
    manifest = trainer.lane.manifests[auto.BEFORE]
    with capture_logs() as logs:
        trainer.step(manifest)
    assert strategies(config)[-1] == trainer.session.config.strategy == "vertex"
    beside.advance(manifest)
    expected = SnapshotTrainer(beside).learn(beside.task.examples(beside.view, beside.strategy), 2)
    line = lines(config)[-1]
    assert (line["loss"], line["steps"]) == (expected.loss, expected.steps)
    assert all(value.equal(beside.model.state_dict()[name]) for name, value in parameters(trainer).items())
    (said,) = [entry for entry in logs if entry["event"] == "the strategy changes"]
    assert said["reason"].startswith("vertex is predicted to need least for a pass: whole: 2 s")
    assert line["predicted_s"] == {"whole": 2.0, "snapshot": 2.0, "vertex": 1.0}
    series = generate_latest(trainer.metrics.registry).decode()
    assert 'freshet_trainer_strategy_info{graph="meetings",strategy="vertex"} 1.0' in series
    assert 'strategy_info{graph="meetings",strategy="whole"}' not in series
    assert 'freshet_trainer_predicted_seconds{graph="meetings",strategy="whole"} 2.0' in series


def test_a_run_that_does_not_change_gives_the_numbers_of_one_that_names_the_strategy(
    config: TrainerConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Trying other strategies leaves no trace: neither in weights and history nor in random draws."""
    monkeypatch.setattr(auto, "cost", prices(whole=1.0, snapshot=1.0, vertex=2.0))
    named = config_for(tmp_path, strategy="whole", checkpoint=str(tmp_path / "named"))
    run(config)
    run(named)
    chosen = lines(config)
    assert {line.pop("strategy") for line in chosen} == {"whole"}
    for line in chosen:
        line.pop("predicted_s", None)
        line.pop("reason", None)
    assert chosen == lines(named)


def test_an_interrupted_run_continues_with_what_it_chose(
    config: TrainerConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(auto, "cost", prices(whole=2.0, snapshot=2.0, vertex=1.0))
    straight = config.model_copy(update={"checkpoint": str(tmp_path / "straight")})
    run(straight)
    run(config, snapshots=auto.BEFORE + 2)
    resumed = trainer_for(config)
    assert resumed.session.config.strategy == "vertex"
    with capture_logs() as logs:
        for manifest in resumed.lane.manifests[resumed.sequence + 1 :]:
            resumed.step(manifest)
    assert not [entry for entry in logs if entry["event"].startswith("the strategy")]
    for each in (*(ours := lines(config)), *(theirs := lines(straight))):
        del each["lag"]
    assert ours == theirs
    assert strategies(config) == ["whole"] * auto.BEFORE + ["vertex"] * (SNAPSHOTS - auto.BEFORE)
    assert Predictor(config).rank(0, [1])


def test_costs_are_measured_where_nobody_sets_them(config: TrainerConfig) -> None:
    run(config, snapshots=auto.BEFORE + 2)
    written = lines(config)[-1]
    assert written["predicted_s"].keys() == {"whole", "snapshot", "vertex"}
    assert min(written["predicted_s"].values()) > 0
    assert "predicted_s" not in lines(config)[0]


def test_of_models_that_one_strategy_trains_that_one_is_taken(tmp_path: Path) -> None:
    make_lane(tmp_path / "store")
    event = config_for(tmp_path, **{**EVENT_MODEL, "strategy": "auto"})
    run(event, snapshots=2)
    assert strategies(event) == ["sequential"] * 2
    assert candidates(event, 2) == ["pac"]
    assert candidates(config_for(tmp_path, strategy="auto", model="cdgcn"), 2) == ["snapshot"]
    assert candidates(config_for(tmp_path, strategy="auto", horizon=4), 1) == ["whole", "snapshot"]


def test_a_lane_is_chosen_for_what_its_busiest_rank_has_to_do_and_kept(tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    made = {"a": ("hash", 2), "b": ("metis", 2), "c": ("hdrf", 4), "d": ("sep", 2), "one": ("metis", 1)}
    lanes = [Lane(name=name, algorithm=algorithm, parts=parts) for name, (algorithm, parts) in made.items()]
    events = meetings(snapshots=4, a_snapshot=200, features=False)
    build_store(events, store, interval_us=SECOND, lanes=lanes, graph="meetings")
    config = config_for(tmp_path, strategy="vertex", lane="auto")
    assert lane_of(config.model_copy(update={"lane": "a"}), 2) == "a"
    assert lane_of(config, 2) == "b"
    event = config_for(tmp_path, lane="auto", **{**EVENT_MODEL, "strategy": "pac"})
    cuts = {name: LaneReader(store, name).manifests[3].quality.cut or 0.0 for name in "abcd"}
    assert cuts[lane_of(event, 2)] == min(cuts.values())
    with pytest.raises(ConfigMissingError, match="no lane with a snapshot and at least 5 parts"):
        lane_of(config, 5)
    run(config_for(tmp_path, strategy="vertex", lane="a"), snapshots=2)
    assert lane_of(config, 2) == "a"
    assert Predictor(config).rank(0, [1])


def test_refusals_name_the_key(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="key strategy_params: strategy auto has no parameters"):
        candidates(config_for(tmp_path, strategy="auto", strategy_params={"steps": 2}), 1)
    with pytest.raises(Failure, match=r"dcrnn convolves states.*Choose strategy whole"):
        candidates(config_for(tmp_path, strategy="auto", model="dcrnn"), 2)
