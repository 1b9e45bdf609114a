"""Old batches are learned again as they were when they were new, as often as asked, from a fair sample of the past."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from prometheus_client import generate_latest
from small_trainers import EVENT_MODEL, config_for, lines, run
from trainer_streams import make_lane, meetings

from freshet_graph.schemas.trainer_config import Replay
from freshet_graph.stream.service.failure import Failure
from freshet_graph.trainer.models.event_model import PairQueries, Question
from freshet_graph.trainer.strategies.events.sequential import PastBatch, Rehearsal

OPTIMISATION = {"epochs": 2, "batch_size": 16, "learning_rate": 0.01}
CROWD = {"nodes": 300, "snapshots": 7, "a_snapshot": 50, "features": False}


def replaying(ratio: float, **more: object) -> dict:
    return {**EVENT_MODEL, "optimisation": {**OPTIMISATION, "replay": {"ratio": ratio, **more}}}


@pytest.mark.parametrize("model", ["tgn-history", "tige", "jodie"])
def test_an_old_batch_has_the_loss_it_had_whatever_was_forgotten_since(model: str, tmp_path: Path) -> None:
    make_lane(tmp_path / "store", events=meetings(**CROWD))
    kind = replaying(1e-9, batches=1000)
    params = {"memory": 8, "time_width": 8} | ({} if model == "jodie" else {"dropout": 0.0})
    kind |= {"model": model, "model_params": params, "budget": {"nodes": 150, "events": 100}}
    trainer = run(config_for(tmp_path, **kind), snapshots=2)
    for module in trainer.session.model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    strategy, new = trainer.session.strategy, trainer.session.strategy.new_loss
    before, seen = len(strategy.rehearsal.batches), []

    def measured(*inputs: object, keep: bool) -> torch.Tensor:
        loss = new(*inputs, keep=keep)
        if keep:
            weights = {key: value.clone() for key, value in trainer.session.model.state_dict().items()}
            seen.append((float(loss.detach()), weights))
        return loss

    strategy.new_loss = measured
    trainer.step(trainer.lane.manifests[2])
    strategy.new_loss = new
    for manifest in trainer.lane.manifests[3:]:
        trainer.step(manifest)
    assert sum(line["evicted"] for line in lines(trainer.config)) > 0
    held = [strategy.rehearsal.batches[place] for place in range(before, before + len(seen))]
    for old, (loss, weights) in zip(held, seen, strict=True):
        trainer.session.model.load_state_dict(weights)
        assert float(old.loss(trainer.session.model, trainer.session.task).detach()) == pytest.approx(
            loss, abs=1e-6
        )


def batch(time_us: int, positives: int = 10) -> PastBatch:
    none = torch.zeros(0)
    return PastBatch(Question(none, [], PairQueries(none, none, none, None)), None, positives, time_us)


def sampled(config: Replay, times: list[int], seed: int) -> list[int]:
    rehearsal = Rehearsal(config, seed)
    for time_us in times:
        place = rehearsal.place_for(time_us)
        if place is not None:
            rehearsal.keep(place, batch(time_us))
    return sorted(held.time_us for held in rehearsal.batches.values())


def test_a_reservoir_keeps_each_batch_alike() -> None:
    config, found = Replay(ratio=1, batches=5), Counter()
    for seed in range(600):
        kept = sampled(config, list(range(30)), seed)
        assert len(kept) == 5
        found.update(kept)
    shares = np.array([found[time] for time in range(30)]) / 600
    assert np.abs(shares - 5 / 30).max() < 0.06


def test_a_sample_by_time_keeps_each_stretch_however_many_batches_it_had() -> None:
    second = 1_000_000
    busy = np.linspace(0, 10 * second, 900).astype(int).tolist()  # a busy beginning
    quiet = np.linspace(10 * second, 1000 * second, 100).astype(int).tolist()
    config = Replay(ratio=1, batches=16, sample="time")
    first, counts = Counter(), []
    for seed in range(40):
        kept = sampled(config, busy + quiet, seed)
        counts.append(len(kept))
        assert sum(time <= 10 * second for time in kept) <= 1
        assert np.diff(kept).max() <= 2 * 64 * second
        first.update(kept[:1])
    assert all(8 <= count <= 16 for count in counts)
    assert len(first) > 20, "and which of a stretch is drawn by chance"


@pytest.mark.parametrize("sample", ["reservoir", "time"])
def test_as_many_old_events_are_learned_as_asked_and_counted(sample: str, tmp_path: Path) -> None:
    make_lane(tmp_path / "store")
    trainer = run(config_for(tmp_path, **replaying(0.5, sample=sample, batches=4)))
    written = lines(trainer.config)
    new = 2 * sum(line["trained"] for line in written)  # two passes
    old = sum(line["replayed"] for line in written)
    assert 0.5 * new - 32 <= old <= 0.5 * new
    assert len(trainer.session.strategy.rehearsal.batches) <= 4
    text = generate_latest(trainer.metrics.registry).decode()
    assert f'freshet_trainer_events_total{{graph="meetings",use="replayed"}} {old}.0' in text
    assert trainer.session.strategy.held_bytes["rehearsal"] > 0


@pytest.mark.parametrize("sample", ["reservoir", "time"])
def test_an_interrupted_run_replays_what_an_uninterrupted_one_does(sample: str, tmp_path: Path) -> None:
    make_lane(tmp_path / "store", events=meetings(**CROWD))
    kind = replaying(0.7, sample=sample, batches=3)
    kind |= {"budget": {"nodes": 150, "events": 150}, "checkpoint_every": 2}
    straight, broken = (config_for(tmp_path, checkpoint=str(tmp_path / name), **kind) for name in "ab")
    run(straight)
    run(broken, snapshots=5)
    run(broken)
    ours, theirs = lines(straight), lines(broken)
    assert ours[-1]["replayed"] > 0 < sum(line["evicted"] for line in ours)
    assert [{**line, "lag": 0} for line in theirs] == [{**line, "lag": 0} for line in ours]


@pytest.mark.parametrize(("strategy", "model"), [("vertex", "sage-linear"), ("pac", "tgn-history")])
def test_strategies_that_do_not_replay_refuse_to(strategy: str, model: str, tmp_path: Path) -> None:
    make_lane(tmp_path / "store")
    kind = {"strategy": strategy, "model": model, "optimisation": {"replay": {"ratio": 0.5}}}
    with pytest.raises(Failure, match=f"strategy {strategy} does not support replay"):
        run(config_for(tmp_path, model_params={}, **kind))
