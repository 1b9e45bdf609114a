"""Training for ever: overload, drift, learning rates, and numbers that are none."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from prometheus_client import generate_latest
from small_trainers import EVENT_MODEL, KINDS, config_for, lines, run, trainer_for
from trainer_streams import SECOND, make_lane, meetings

from freshet_graph.schemas.events import event_schema
from freshet_graph.schemas.trainer_config import Drift, Optimisation
from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.store.files.records import Numbered
from freshet_graph.trainer.continual.daemon import Trainer
from freshet_graph.trainer.continual.drift import DriftWatch
from freshet_graph.trainer.continual.pace import LoadPolicy
from freshet_graph.trainer.learning.soundness import copied, is_sound
from freshet_graph.trainer.learning.step import LearningRate
from freshet_graph.trainer.session.snapshot_trainer import time_stratified
from freshet_graph.trainer.strategies.interface import StepReport
from freshet_graph.trainer.tasks.interface import SnapshotExamples
from freshet_graph.trainer.tasks.node_regression import NodeRegression


@pytest.mark.parametrize("share", [0.0, 0.1, 0.37, 0.5, 0.9, 1.0])
def test_a_time_stratified_sample_has_its_share_in_every_stretch_of_time(share: float) -> None:
    chosen = time_stratified(10_030, 10, share, np.random.default_rng(1))
    assert len(chosen) == 10_030
    batches = np.array([block.mean() for block in np.split(chosen[:10_000], 1000)])
    assert set(batches.tolist()) <= {0.0, 1.0}, "batches are whole"
    for stretch in np.split(batches, 10):
        assert abs(stretch.sum() - share * 100) <= 1
    often = [time_stratified(10, 10, share, np.random.default_rng(seed)).any() for seed in range(400)]
    assert np.mean(often) == pytest.approx(share, abs=0.08), "also where a snapshot is one batch"


def test_each_policy_says_what_is_next_and_how_much_of_it_is_learned() -> None:
    assert LoadPolicy("train-all", 8).next(3, 100) == 4
    assert LoadPolicy("skip-to-latest", 8).next(3, 11) == 4
    assert LoadPolicy("skip-to-latest", 8).next(3, 12) == 12
    assert LoadPolicy("subsample", 8).next(3, 11) == 4
    assert LoadPolicy("subsample", 8).next(3, 100) == 96
    assert LoadPolicy("subsample", 1).next(3, 5) == 5
    for policy in ("train-all", "skip-to-latest"):
        assert LoadPolicy(policy, 8).passes(100, 2) == 2
    passes = [LoadPolicy("subsample", 8).passes(lag, 2) for lag in (0, 2, 5, 8, 50)]
    assert passes == [2, 2, 1, 0, 0]


@pytest.mark.parametrize("speed", [1.2, 3.0, 10.0, 100.0])
def test_however_much_faster_the_stream_is_the_lag_is_bounded(speed: float) -> None:
    """A snapshot arrives every 1 s; learning it whole takes ``speed`` s, only taking it in .1 s or less."""
    load, clock, sequence, lags, learned = LoadPolicy("subsample", 8), 20.0, -1, [], 0.0
    while clock < 2000:
        newest = int(clock)
        if newest <= sequence:
            clock += 0.1
            continue
        taken = load.next(sequence, newest)
        skipped, sequence = taken - sequence - 1, taken
        passes = load.passes(newest - sequence, 2)
        clock += 0.02 * skipped + 0.1 + speed * passes / 2
        learned += passes / 2
        lags.append(newest - sequence)
    settled = lags[len(lags) // 4 :]
    assert max(settled) <= 8
    assert learned > 0.2 * 2000 / max(speed, 1), "and what time is left is used for learning"
    everything, lag, clock = LoadPolicy("train-all", 8), 0, 0.0
    for sequence in range(200):
        clock += 0.1 + speed
        lag = int(clock) - sequence
    assert everything.next(0, lag) == 1
    assert lag > 8, "learning all falls behind for ever"


class SlowToLearn:
    """The lane as a reader sees it for whom a snapshot more is there for every ``steps`` optimiser steps."""

    def __init__(self, trainer: Trainer, steps: float) -> None:
        self.whole = list(trainer.lane.manifests)
        self._lane, self._steps, self.done = trainer.lane, steps, 0.0
        learn = trainer.snapshot_trainer.learn

        def counted(examples, passes):  # type: ignore[no-untyped-def]
            report = learn(examples, passes)
            self.done += report.steps + 0.2
            return report

        trainer.snapshot_trainer.learn = counted  # type: ignore[method-assign]
        trainer.lane = self  # type: ignore[assignment]

    def __getattr__(self, name: str):  # type: ignore[no-untyped-def]
        return getattr(self._lane, name)

    @property
    def manifests(self) -> Numbered:
        there: Numbered = Numbered("lane snapshot")
        for manifest in self.whole[: 1 + int(self.done / self._steps)]:
            there.append(manifest)
        return there


@KINDS
def test_a_stream_faster_than_training_is_followed_with_every_event_in_memory(
    kind: dict, tmp_path: Path
) -> None:
    make_lane(tmp_path / "store", events=meetings(snapshots=30, a_snapshot=48))
    config = config_for(tmp_path, overload="subsample", lag={"max_snapshots": 4}, **kind)
    trainer = trainer_for(config)
    steps = 2 * math.ceil(48 / 16)  # of a snapshot that is learned whole
    lane = SlowToLearn(trainer, steps / 3)  # three arrive meanwhile
    lags = []
    while trainer.sequence < 29:
        newest = len(lane.manifests) - 1
        if newest == trainer.sequence:
            lane.done += 0.2
            continue
        taken = trainer.load.next(trainer.sequence, newest)
        trainer.step(lane.whole[taken])
        lags.append(newest - taken)
    assert max(lags) <= 4
    written = lines(config)
    assert 0 < sum(line["trained"] for line in written) < 0.8 * 30 * 48
    assert any(0 < line["passes"] < 2 for line in written)
    seen = sum((trainer.lane.log.events(m.tau)["op"].to_numpy() == 1).sum() for m in lane.whole)
    assert trainer.session.task.history.count_out.sum() == seen
    if kind:
        assert len(trainer.session.strategy.event_times) == seen
    text = generate_latest(trainer.metrics.registry).decode()
    counted = {
        use: float(text.split(f'use="{use}"}} ')[1].split("\n")[0]) for use in ("trained", "state_only")
    }
    assert sum(counted.values()) == seen
    assert "freshet_trainer_trained_ratio{" in text


def line(ap: float | None, scored: int = 100) -> dict:
    return {"ap": ap, "recency_ap": 0.5, "scored": scored}


def test_the_sliding_ap_is_the_mean_of_the_newest_events_and_a_drop_is_a_drift() -> None:
    config = Drift(window_events=300, reference_events=500, threshold=0.1)
    watch = DriftWatch(config)
    seen = [watch.see(line(0.9)) for _ in range(8)]
    assert seen[0].means["model"] == seen[-1].means["model"] == pytest.approx(0.9)
    assert [sliding.drop is None for sliding in seen] == [True] * 7 + [False]
    assert seen[-1].means["recency"] == 0.5
    assert watch.see(line(None)).means["model"] == pytest.approx(0.9), "a snapshot without an AP says nothing"
    falling = [watch.see(line(0.7)) for _ in range(3)]
    assert [sliding.drifted for sliding in falling] == [False, True, False], "told once"
    assert falling[1].drop == pytest.approx(0.9 - (0.9 + 0.7 + 0.7) / 3)


def test_an_error_that_rises_is_a_drift_as_is_a_score_that_falls() -> None:
    watch = DriftWatch(
        Drift(window_events=100, reference_events=100, threshold=0.1), NodeRegression.selection_metric
    )
    errors = [{"mse": mse, "age_persistence_mse": 0.4, "scored": 100} for mse in (0.5, 0.2, 0.35)]
    seen = [watch.see(each) for each in errors]
    assert [sliding.drifted for sliding in seen] == [False, False, True]
    assert seen[1].drop == pytest.approx(-0.3)
    assert seen[2].means == {"model": 0.35, "age_persistence": 0.4}


def test_drift_of_node_regression_is_seen_by_the_daemon(tmp_path: Path) -> None:
    """Targets that have stood still begin to change."""
    rows = [row for row in meetings(seed=2, snapshots=12, features=False).to_pylist() if row["op"] == 1]
    still = [{**rows[n], "t": tau * SECOND + n} for tau in range(5) for n in range(60)]
    late = [row for row in rows if row["t"] >= 5 * SECOND]
    make_lane(tmp_path / "store", events=pa.Table.from_pylist([*still, *late], event_schema("int")))
    drift = {"window_events": 20, "reference_events": 20, "threshold": 0.01}
    trainer = trainer_for(config_for(tmp_path, task="node-regression", drift=drift))
    for manifest in trainer.lane.manifests:
        trainer.step(manifest)
    assert any(written.get("drifted") for written in lines(trainer.config))
    exposed = generate_latest(trainer.metrics.registry).decode()
    for scorer in ("model", "age_persistence"):
        assert f'freshet_trainer_sliding_score{{graph="meetings",metric="mse",scorer="{scorer}"}}' in exposed


def test_a_restart_sees_drift_as_if_it_had_never_stopped() -> None:
    rng = np.random.default_rng(0)
    config = Drift(window_events=200, reference_events=300, threshold=0.05)
    straight, written, seen = DriftWatch(config), [], []
    for _ in range(60):
        now = line(float(rng.random()), int(rng.integers(1, 150)))
        sliding = straight.see(now)
        seen.append(sliding)
        written.append({**now, **({"drifted": True} if sliding.drifted else {})})
    assert any(sliding.drifted for sliding in seen)
    for cut in (10, 30, 50):
        resumed = DriftWatch(config, lines=written[:cut])
        assert [resumed.see(now) for now in written[cut:]] == seen[cut:]


def rates(policy: Optimisation, steps: int, drift_at: int | None = None) -> list[float]:
    weight = torch.nn.Parameter(torch.zeros(1))
    rate = LearningRate(policy, [weight])
    found = []
    for step in range(steps):
        if step == drift_at:
            rate.drifted()
        weight.grad = torch.ones(1)
        before = float(weight.detach())
        rate.step(weight.grad.sum())
        found.append(before - float(weight.detach()))
    return found


def test_rates_rise_stay_fall_and_begin_anew() -> None:
    assert rates(Optimisation(learning_rate=0.5), 3) == pytest.approx([0.5] * 3)
    warm = rates(Optimisation(learning_rate=0.4, warm_up_steps=3), 6)
    assert warm == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4, 0.4])
    fall = rates(Optimisation(learning_rate=0.4, rate="decay", decay_steps=1), 4, drift_at=2)
    assert fall == pytest.approx([0.4, 0.4 / math.sqrt(2), 0.4 / math.sqrt(3), 0.2])
    both = rates(Optimisation(learning_rate=0.4, rate="decay", decay_steps=1, warm_up_steps=1), 3)
    assert both == pytest.approx([0.2, 0.4, 0.4 / math.sqrt(2)])
    anew = rates(Optimisation(learning_rate=0.4, rate="on-drift", decay_steps=1), 4, drift_at=2)
    assert anew == pytest.approx([0.4, 0.4 / math.sqrt(2)] * 2)


@KINDS
def test_rate_and_drift_go_on_after_an_interruption(kind: dict, tmp_path: Path) -> None:
    make_lane(tmp_path / "store", events=meetings(snapshots=8))
    policy = {"epochs": 1, "batch_size": 16, "learning_rate": 0.01, "rate": "on-drift", "decay_steps": 5}
    kind = {
        **kind,
        "optimisation": {**policy, "warm_up_steps": 4},
        "drift": {"window_events": 60, "reference_events": 60, "threshold": 0.001},
    }
    straight, broken = (config_for(tmp_path, checkpoint=str(tmp_path / name), **kind) for name in "ab")
    whole = run(straight)
    run(broken, snapshots=5)
    again = run(broken)
    assert any(written.get("drifted") for written in lines(straight))
    assert again.session.strategy.learner.rate.now() == whole.session.strategy.learner.rate.now()
    ours, theirs = lines(straight), lines(broken)
    assert [{**written, "lag": 0} for written in theirs] == [{**written, "lag": 0} for written in ours]


def checkpoints_of(config) -> list[dict]:  # type: ignore[no-untyped-def]
    return [torch.load(path, weights_only=True) for path in sorted(Path(config.checkpoint).glob("*.pt"))]


@KINDS
def test_a_loss_that_is_not_finite_never_reaches_a_checkpoint_and_ends_the_run_if_it_stays(
    kind: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_lane(tmp_path / "store")
    config = config_for(tmp_path, keep_checkpoints=10, **kind)
    trainer = run(config, snapshots=2)
    before = {key: value.clone() for key, value in trainer.session.model.state_dict().items()}
    head = trainer.session.model.decoder
    logits = head.forward
    # the logit of a sum that overflows: an infinite loss whose gradient is finite
    monkeypatch.setattr(head, "forward", lambda *inputs: logits(*inputs) * 0 + torch.inf)
    trainer.step(trainer.lane.manifests[2])
    trainer.step(trainer.lane.manifests[3])
    with pytest.raises(
        Failure, match=r"not finite in 3 snapshots in a row, the last is 4[.] .*learning_rate"
    ):
        trainer.step(trainer.lane.manifests[4])
    assert all(torch.equal(before[key], value) for key, value in trainer.session.model.state_dict().items())
    saved = checkpoints_of(config)
    assert len(saved) == 4
    assert all(is_sound(state["model"]) and is_sound(state["strategy"]["rate"]) for state in saved)
    written = lines(config)[2:]
    assert [(now["trained"], now["nonfinite"] == now["steps"] > 0) for now in written] == [(0, True)] * 2
    assert all("loss" not in now for now in written)
    text = generate_latest(trainer.metrics.registry).decode()
    total = sum(now["nonfinite"] for now in written)
    assert f'freshet_trainer_nonfinite_total{{graph="meetings"}} {total}.0' in text


@KINDS
def test_weights_that_are_not_finite_are_put_back_and_training_goes_on(
    kind: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_lane(tmp_path / "store")
    config = config_for(tmp_path, keep_checkpoints=10, **kind)
    trainer = run(config, snapshots=2)
    learner = trainer.session.strategy.learner
    before = {key: value.clone() for key, value in trainer.session.model.state_dict().items()}
    optimiser = copied(learner.rate.optimiser.state_dict()["state"])
    step = learner.rate.step

    def poisoned(norm: torch.Tensor) -> torch.Tensor:
        left_out = step(norm)
        with torch.no_grad():
            next(trainer.session.model.parameters()).fill_(torch.nan)
        return left_out

    with monkeypatch.context() as patch:
        patch.setattr(learner.rate, "step", poisoned)
        trainer.step(trainer.lane.manifests[2])
    assert all(torch.equal(before[key], value) for key, value in trainer.session.model.state_dict().items())
    torch.testing.assert_close(learner.rate.optimiser.state_dict()["state"], optimiser, rtol=0, atol=0)
    for manifest in trainer.lane.manifests[3:]:
        trainer.step(manifest)
    written = lines(config)
    assert [now["trained"] > 0 for now in written] == [True, True, False, True, True, True]
    assert written[2]["nonfinite"] > 0
    assert all("ap" in now for now in written)
    assert all(is_sound(state["model"]) for state in checkpoints_of(config))


def test_weights_that_are_not_finite_from_the_start_reach_no_checkpoint(tmp_path: Path) -> None:
    make_lane(tmp_path / "store")
    trainer = trainer_for(config_for(tmp_path))
    with torch.no_grad():
        next(trainer.session.model.parameters()).fill_(torch.nan)
    with pytest.raises(Failure, match=r"weights after snapshot 0 are not finite[.] No checkpoint is written"):
        trainer.step(trainer.lane.manifests[0])
    assert checkpoints_of(trainer.config) == []


@pytest.mark.parametrize("what", ["weights", "moments"])
def test_with_weights_or_moments_that_are_put_back_goes_what_they_left_in_memory(
    what: str, tmp_path: Path
) -> None:
    make_lane(tmp_path / "store")
    trainer = run(config_for(tmp_path, **EVENT_MODEL), snapshots=2)
    before = trainer.session.strategy.state()["streams"]["0"]
    mail, sketch = before["mail"].clone(), before["sketch"].copy()
    strategy, weight = trainer.session.strategy, next(trainer.session.model.parameters())
    learn = strategy.learn

    def poisoned(example_sets: Sequence[SnapshotExamples], epoch: int) -> StepReport:
        report = learn(example_sets, epoch)
        if epoch + 1 < trainer.config.optimisation.passes:
            return report  # the next pass would spread them
        with torch.no_grad():
            moment = strategy.learner.rate.optimiser.state[weight]["exp_avg"]
            (weight if what == "weights" else moment).fill_(torch.nan)
        return report

    strategy.learn = poisoned  # type: ignore[method-assign]
    trainer.step(trainer.lane.manifests[2])
    assert is_sound(strategy.learner.state())
    after = trainer.session.strategy.state()["streams"]["0"]
    assert after["position"] == before["position"]
    assert torch.equal(after["mail"][: len(mail)], mail)
    np.testing.assert_array_equal(after["sketch"][: len(sketch)], sketch)
