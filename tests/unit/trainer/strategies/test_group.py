"""``group``: the same bits on any number of ranks, what ``whole`` learns of one group, resuming, and what it refuses."""

import copy
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rank_equality import begun, require_equal
from structlog.testing import capture_logs
from thread_ranks import side_by_side
from trainer_sessions import examples_of
from trainer_streams import make_lane, meetings

from freshet_graph.stream.service.failure import Failure
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.session.session import Session
from freshet_graph.trainer.session.snapshot_trainer import ExampleWindow
from freshet_graph.trainer.strategies.dygnex.group import GroupSteps
from freshet_graph.trainer.strategies.dygnex.scheduling.time_model import Profile
from freshet_graph.trainer.strategies.interface import STRATEGIES

WINDOW, HORIZON = 3, 8


@pytest.fixture(scope="module")
def lane() -> Iterator[LaneReader]:
    with tempfile.TemporaryDirectory() as folder:
        yield make_lane(Path(folder), events=meetings(nodes=40, a_snapshot=9, snapshots=9, features=False))


def session_of(
    lane: LaneReader,
    ranks: Ranks,
    model: str = "wdgcn",
    *,
    strategy: str = "group",
    dtype: torch.dtype = torch.float32,
    horizon: int = HORIZON,
    **params: Any,
) -> Session:
    return begun(
        lane,
        strategy,
        model,
        ranks,
        dtype,
        0.01,
        window=WINDOW,
        horizon=horizon,
        strategy_params=params,
    )


def learned(session: Session, book: ExampleWindow, first: int = 0, end: int | None = None) -> dict[str, Any]:
    """Weights and losses after two passes over every second snapshot; the others are questions of the past then."""
    found: dict[str, Any] = {}
    for manifest in list(session.lane.manifests)[first:end]:
        examples = examples_of(session, manifest.sequence)
        book.open(examples)
        if manifest.sequence % 2:
            continue
        for epoch in range(2):
            report = session.strategy.learn(book.with_newest(examples), epoch)
        found[f"{manifest.tau} events"] = torch.tensor(report.events)
        found[f"{manifest.tau} loss"] = torch.tensor(np.nan if report.loss is None else report.loss).double()
    return found | {name: weight.detach().clone() for name, weight in session.model.named_parameters()}


def all_learned(session: Session) -> dict[str, Any]:
    return learned(session, ExampleWindow(session.task, session.strategy.needs.example_sets))


def without_nan(found: dict[str, Any]) -> dict[str, Any]:
    """Snapshots without a question have no loss."""
    return {key: value for key, value in found.items() if not torch.isnan(value.double()).any()}


def require_same_bits(found: dict[str, Any], one: dict[str, Any]) -> None:
    for key, value in without_nan(one).items():
        assert torch.equal(found[key], value), key


@pytest.mark.parametrize(
    ("model", "sizes"),
    [("wdgcn", [2, 4]), ("tgcn", [3]), ("evolvegcn-h", [2]), ("gatlstm", [3]), ("dcrnn", [2])],
)
def test_fixed_steps_learn_the_same_bits_on_any_number_of_ranks(
    model: str, sizes: list[int], lane: LaneReader
) -> None:
    one = all_learned(session_of(lane, Ranks(), model))
    for size in sizes:
        for found in side_by_side(size, lambda ranks: all_learned(session_of(lane, ranks, model))):
            require_same_bits(found, one)


def test_a_horizon_of_one_window_learns_what_whole_learns(lane: LaneReader) -> None:
    params = {"horizon": WINDOW, "dtype": torch.float64}
    one = all_learned(session_of(lane, Ranks(), strategy="whole", **params))
    require_equal(all_learned(session_of(lane, Ranks(), **params)), one, torch.float64)
    for found in side_by_side(2, lambda ranks: all_learned(session_of(lane, ranks, **params))):
        require_equal(found, one, torch.float64)


@pytest.mark.parametrize("algorithm", ["greedy", "paper", "auto", "psg", "psg-sorted"])
def test_the_schedule_trains_every_group_once_in_every_pass(algorithm: str, lane: LaneReader) -> None:
    def work(ranks: Ranks) -> Any:
        session = session_of(lane, ranks, composition="schedule", algorithm=algorithm)
        trained: list[list[int]] = []
        backward, learn = session.strategy.steps.backward, session.strategy.learn

        def watched(loss: Any, groups: list[int], weight: float) -> Any:
            trained[-1].extend(groups)
            return backward(loss, groups, weight)

        def passed(example_sets: Any, epoch: int) -> Any:
            trained.append([])
            return learn(example_sets, epoch)

        session.strategy.steps.backward, session.strategy.learn = watched, passed
        return trained, all_learned(session)

    (first, found), (second, others) = side_by_side(2, work)
    passes = [sorted(one + other) for one, other in zip(first, second, strict=True)]
    assert all(groups == list(range(len(groups))) for groups in passes)
    assert len(passes[-1]) == HORIZON - WINDOW + 1
    assert first[-1]
    assert second[-1]
    require_same_bits(others, found)


def test_a_run_resumes_to_the_same_bits_on_fewer_ranks_whatever_was_measured(lane: LaneReader) -> None:
    straight = all_learned(session_of(lane, Ranks()))

    def begin(ranks: Ranks) -> Any:
        session = session_of(lane, ranks)
        book = ExampleWindow(session.task, session.strategy.needs.example_sets)
        learned(session, book, end=6)
        return session.state(), book.state()

    state, example_sets = side_by_side(3, begin)[0]
    for rows in state["strategy"]["profile"].values():
        rows[4:] *= np.random.default_rng(1).uniform(0.1, 9.0, len(rows) - 4)

    def resume(ranks: Ranks) -> dict[str, Any]:
        session = session_of(lane, ranks)
        session.restore(copy.deepcopy(state))
        book = ExampleWindow(session.task, session.strategy.needs.example_sets)
        book.restore(example_sets)
        return learned(session, book, first=6)

    for size in (1, 2):
        found = [resume(Ranks())] if size == 1 else side_by_side(size, resume)
        for each in found:
            require_same_bits(each, {key: straight[key] for key in each})


def test_a_profile_predicts_groups_that_never_ran() -> None:
    rng = np.random.default_rng(3)
    sizes = np.column_stack(
        [rng.uniform(100, 1000, 60), rng.uniform(100, 5000, 60), np.full(60, 4.0), rng.uniform(0, 5000, 60)]
    )
    seconds = sizes @ np.array([2e-6, 5e-7, 1e-3, 1e-6]) * rng.normal(1, 0.02, 60)
    seconds[7] *= 30  # an outlier
    profile = Profile()
    profile.measured(range(40), sizes[:40], seconds[:40])
    assert np.abs(profile.predict(range(40, 60), sizes[40:]) / seconds[40:] - 1).max() < 0.1
    again = Profile()
    again.restore(profile.state())
    assert np.array_equal(again.predict(range(60), sizes), profile.predict(range(60), sizes))


def test_a_group_that_waits_for_a_core_is_no_longer_than_its_work() -> None:
    model = torch.nn.Linear(1, 1)
    steps = GroupSteps(list(model.parameters()), Ranks(), ordered=True)

    def loss(_: int) -> torch.Tensor:
        time.sleep(0.5)
        return model.weight.sum()

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        steps.backward(loss, [3], 1.0)()
    finally:
        torch.set_num_threads(threads)
    (took_s,) = steps.seconds().values()
    assert 0 < took_s < 0.5


def test_ranks_that_would_only_wait_are_told(lane: LaneReader) -> None:
    with capture_logs() as lines:
        session_of(lane, Ranks(0, 6))
    (told,) = [line for line in lines if line["log_level"] == "warning"]
    assert "strategy group has more ranks than a step has groups" in told["event"]
    assert (told["ranks"], told["groups"]) == (6, 4)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"composition": "free"}, "composition: must be 'fixed' or 'schedule', found 'free'"),
        (
            {"composition": "schedule", "algorithm": "best"},
            "algorithm: must be 'greedy', 'paper', 'ilp', 'auto', 'psg' or 'psg-sorted', found 'best'",
        ),
        (
            {"algorithm": "psg"},
            "algorithm psg decides which groups make a step, but composition is fixed. Set composition: schedule",
        ),
        ({"groups_per_step": 0}, "groups_per_step: must be at least 1, found 0"),
        ({"groups_per_rank": 0}, "groups_per_rank: must be at least 1, found 0"),
        ({"alpha_s": -1.0}, "alpha_s: must be at least 0, found -1.0"),
        (
            {"transfer": "some"},
            "transfer: must be 'whole', 'esdg', 'derived', 'counts' or 'auto', found 'some'",
        ),
    ],
)
def test_options_that_cannot_be_are_refused(params: dict[str, Any], message: str) -> None:
    with pytest.raises(Failure, match=f"strategy_params of group: {message}"):
        STRATEGIES.options("group", params)
