"""What gradient checkpoint blocks hold, and how many of them a budget asks for."""

import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rank_equality import begun
from thread_ranks import side_by_side
from trainer_sessions import examples_of, session_on
from trainer_streams import make_lane, meetings

from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.trainer.models.unroll import unroll
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.session.session import Session
from freshet_graph.trainer.strategies.esdg.blocks import BlockBudget, SavedBytes, carried_bytes
from freshet_graph.trainer.timeline.timeline import Horizon

WINDOW = 5
MODELS = ["sage-linear", "tmgcn", "cdgcn", "wdgcn", "evolvegcn-o", "evolvegcn-h", "tgcn", "gatlstm", "dysat"]


def long_lane(folder: Path, snapshots: int) -> LaneReader:
    return make_lane(folder, events=meetings(nodes=40, a_snapshot=25, snapshots=snapshots, features=False))


def held_bytes(session: Session, horizon: Horizon, blocks: int) -> int:
    """What is saved for backward of the largest block, and carries of all."""
    strategy, model = session.strategy, session.model
    strategy.number_of_blocks = blocks
    passed = strategy.blocks(model, horizon, last=False)
    carries, most = passed.carries(), 0
    for block, before in zip(passed.ranges, carries, strict=True):
        with SavedBytes(list(model.parameters())) as saved:
            kept = unroll(model.stages, passed.layout(block), passed.begun(before))
        most = max(most, saved.bytes)
        del kept
    return most + sum(carried_bytes(before) for before in carries)


def test_blocks_hold_a_fraction_of_what_one_pass_saves(tmp_path: Path) -> None:
    """ESDG section 3.1: 32 snapshots of CD-GCN."""
    lane = long_lane(tmp_path, 33)
    session = session_on(lane, "snapshot", "cdgcn", window=32)
    for manifest in lane.manifests:
        session.advance(manifest)
    horizon = session.strategy.timeline.before_newest(np.empty(0, np.int64))
    assert len(horizon.taus) == 32
    one = held_bytes(session, horizon, 1)
    assert held_bytes(session, horizon, 4) <= 0.30 * one
    assert held_bytes(session, horizon, 8) <= 0.20 * one


def test_measuring_what_is_saved_keeps_none_of_it() -> None:
    """An operation that saves what it made is not held by it."""
    x = torch.ones(3, requires_grad=True)
    with SavedBytes([]) as saved:
        made = x.exp()
    assert saved.bytes == made.nbytes
    made_then = weakref.ref(made)
    del made
    assert made_then() is None


@pytest.mark.parametrize("model", MODELS)
def test_carries_are_measured_as_large_as_they_become(model: str, tmp_path: Path) -> None:
    """A window of three snapshots in a horizon of ten: what is taken over grows twice and then no more."""
    lane = long_lane(tmp_path, 11)
    session = session_on(lane, "snapshot", model, window=3, horizon=10, strategy_params={"blocks": 10})
    for manifest in lane.manifests:
        session.advance(manifest)
    strategy: Any = session.strategy
    horizon = strategy.timeline.before_newest(np.empty(0, np.int64))
    passed = strategy.blocks(session.model, horizon, last=False)
    strategy.number_of_blocks = "auto"
    strategy.blocks(session.model, horizon, last=False)
    largest = max(carried_bytes(carry) for carry in passed.carries())
    assert strategy.budget.measured[10].carried == largest


def test_blocks_auto_are_the_fewest_that_fit_and_never_exceed_the_budget(tmp_path: Path) -> None:
    """100 drawn cases: a model, a stage of a stream, a budget."""
    lane = long_lane(tmp_path, 13)
    draw, several, refused = np.random.default_rng(5), 0, 0
    for model in MODELS:
        session = session_on(lane, "snapshot", model, window=12)
        for manifest in lane.manifests[:1]:
            session.advance(manifest)
        for manifest in list(lane.manifests)[1:]:
            session.advance(manifest)
            if manifest.sequence % 2:
                continue
            horizon = session.strategy.timeline.before_newest(np.empty(0, np.int64))
            most = held_bytes(session, horizon, 1)
            for budget in most * draw.uniform(0.02, 1.2, 2):
                session.strategy.number_of_blocks = "auto"
                session.strategy.budget.bytes = int(budget)  # what was measured earlier still serves
                try:
                    number = len(session.strategy.blocks(session.model, horizon, last=False).ranges)
                except Failure as failure:
                    assert "device_budget_mib is" in str(failure)
                    refused += 1
                    continue
                several += number > 1
                assert held_bytes(session, horizon, number) <= budget
    assert several > 25
    assert refused < 75


@pytest.mark.parametrize("size", [1, 2])
def test_blocks_are_measured_anew_only_where_horizons_differ(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream of one kind: while its horizon grows, and then no more."""
    lane, measured, measure = long_lane(tmp_path, 14), [], BlockBudget._measured

    def counted(*arguments: Any) -> tuple[int, int]:
        measured.append(1)
        return measure(*arguments)

    monkeypatch.setattr(BlockBudget, "_measured", counted)

    def work(ranks: Ranks) -> None:
        session = begun(lane, "snapshot", "tgcn", ranks, torch.float64, 0.01, window=WINDOW)
        for manifest in lane.manifests:
            examples = examples_of(session, manifest.sequence)
            for epoch in range(2):
                session.strategy.learn([examples], epoch)

    side_by_side(size, work)
    assert len(measured) <= size * (WINDOW + 1)
