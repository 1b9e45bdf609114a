"""Whatever is drawn, every algorithm schedules each group once and keeps to L; kernels equal their plain twins."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from freshet_graph.trainer.strategies.dygnex.scheduling.greedy import anneal, cut, fill_bins, greedy, level
from freshet_graph.trainer.strategies.dygnex.scheduling.locality import SLACK, keep_runs, moved
from freshet_graph.trainer.strategies.dygnex.scheduling.schedule import (
    Problem,
    Schedule,
    SearchLimits,
    lower_bound_s,
)
from freshet_graph.trainer.strategies.dygnex.scheduling.solve import ALGORITHMS

SECONDS = st.floats(0.0, 1e6, allow_subnormal=False) | st.integers(0, 4).map(float)


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    times = np.array(draw(st.lists(SECONDS, min_size=1, max_size=40)))
    return Problem(
        times, draw(st.integers(1, 9)), draw(st.integers(1, 4)), draw(st.sampled_from([0.0, 0.3, 1e6]))
    )


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
@given(problem=problems())
def test_every_group_has_one_place_and_no_gpu_more_than_it_may(algorithm: str, problem: Problem) -> None:
    schedule, bound_s = ALGORITHMS[algorithm](problem, SearchLimits(gap=1e9, time_s=0.1))
    slots = schedule.slots
    assert slots.shape[1:] == (problem.gpus, problem.per_gpu)
    assert sorted(slots[slots >= 0].tolist()) == list(range(len(problem.times_s)))
    assert all(any(gpu for gpu in iteration) for iteration in schedule.iterations())
    assert bound_s <= schedule.epoch_s * (1 + 1e-9)
    assert schedule.epoch_s == pytest.approx(plain_epoch(problem, schedule.iterations()), rel=1e-9)


def plain_epoch(problem: Problem, iterations: list[list[list[int]]]) -> float:
    times = problem.times_s.tolist()
    return sum(max(sum(times[k] for k in gpu) for gpu in each) + problem.alpha_s for each in iterations)


@given(problem=problems(), alone=st.booleans(), seed=st.integers(0, 99))
def test_no_kernel_loses_an_item_and_no_search_makes_an_epoch_longer(
    problem: Problem, alone: bool, seed: int
) -> None:
    times = np.zeros((problem.fewest + seed % 3) * problem.room)
    times[: len(problem.times_s)] = -np.sort(-problem.times_s)
    bins = np.full((len(times) // problem.per_gpu, problem.per_gpu), -1)
    fill_bins(times, problem.gpus, problem.per_gpu, alone, bins)
    told = [plain_cut(times, bins, problem.gpus)]
    assert cut(times, bins, problem.gpus) == pytest.approx(told[0], rel=1e-9)
    for search in (
        lambda: level(times, bins, problem.gpus, 4, 0.0),
        lambda: anneal(times, bins, problem.gpus, 400, 0.1 * times[0] + 1e-9, seed, 0.0),
    ):
        found = search()
        assert sorted(bins.ravel().tolist()) == list(range(len(times)))
        told.append(plain_cut(times, bins, problem.gpus))
        assert found == pytest.approx(told[-1], rel=1e-9)
        assert told[-1] <= told[-2] * (1 + 1e-9)


def plain_cut(times: np.ndarray, bins: np.ndarray, gpus: int) -> float:
    """The sum of every G-th largest load."""
    return sum(sorted((sum(times[i] for i in one) for one in bins.tolist()), reverse=True)[::gpus])


@given(times=st.lists(SECONDS, min_size=1, max_size=24), gpus=st.integers(1, 4))
def test_two_to_a_gpu_are_folded_largest_with_smallest_where_nothing_is_peeled(
    times: list[float], gpus: int
) -> None:
    items = sorted(times, reverse=True)
    items += [items[-1]] * (-len(items) % (2 * gpus))
    if len(items) > 2 * gpus and items[0] + items[-1] > 2 * sum(items) / len(items):
        return
    bins = np.empty((len(items) // 2, 2), np.int64)
    fill_bins(np.array(items), gpus, 2, False, bins)
    ours = sorted(items[a] + items[b] for a, b in bins.tolist())
    assert ours == sorted(map(sum, zip(items[: len(bins)], items[: len(bins) - 1 : -1], strict=True)))


@settings(max_examples=20)
@given(
    seed=st.integers(0, 2**32 - 1),
    shape=st.sampled_from([(4, 13), (5, 20), (8, 7), (12, 5), (25, 4)]),
    tail=st.sampled_from(["pareto", "lognormal"]),
)
@example(seed=2, shape=(25, 4), tail="lognormal")
def test_greedy_is_within_a_hundredth_of_the_best_with_heavy_tails(
    seed: int, shape: tuple[int, int], tail: str
) -> None:
    """Groups are iterations of heavy-tailed lengths, cut in two at random for each GPU: the best schedule wastes nothing."""
    iterations, draws = shape[1], np.random.default_rng(seed)
    length = 1 + draws.pareto(1.5, iterations) if tail == "pareto" else np.exp(draws.normal(size=iterations))
    first = length[:, None] * draws.uniform(size=shape[::-1])
    problem = Problem(np.concatenate([first, length[:, None] - first], axis=1).ravel(), gpus=shape[0])
    best_s = length.sum()
    assert lower_bound_s(problem) == pytest.approx(best_s)
    assert best_s * (1 - 1e-9) <= greedy(problem).epoch_s <= 1.01 * best_s


@given(problem=problems())
def test_the_bound_is_at_least_what_everybody_knows(problem: Problem) -> None:
    times = -np.sort(-problem.times_s)
    known = max(times.sum() / problem.gpus, times[:: problem.room].sum())
    assert lower_bound_s(problem) >= known * (1 - 1e-9) + problem.alpha_s * problem.fewest


@pytest.mark.parametrize("algorithm", ["greedy", "psg"])
@given(problem=problems(), window=st.integers(1, 6), seed=st.integers(0, 99))
def test_runs_are_kept_together_within_the_slack_and_nothing_is_lost(
    algorithm: str, problem: Problem, window: int, seed: int
) -> None:
    schedule, _ = ALGORITHMS[algorithm](problem, SearchLimits())
    near = keep_runs(schedule, window, seed, steps=500)
    assert sorted(near.slots[near.slots >= 0].tolist()) == list(range(len(problem.times_s)))
    assert near.epoch_s <= schedule.epoch_s * (1 + SLACK) * (1 + 1e-9)
    assert moved(near, window) == plain_moves(near, window) <= plain_moves(schedule, window)
    assert np.array_equal(near.slots, keep_runs(schedule, window, seed, steps=500).slots)


def plain_moves(schedule: Schedule, window: int) -> int:
    return sum(
        len({k + s for each in schedule.iterations() for k in each[gpu] for s in range(window)})
        for gpu in range(schedule.problem.gpus)
    )
