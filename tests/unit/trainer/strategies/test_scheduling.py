"""Schedules of snapshot groups: the best of all by brute force, the published listing, bounds and figures."""

from itertools import permutations

import numpy as np
import pytest
from plain_schedules import best_epoch, paper_pairs

from freshet_graph.trainer.strategies.dygnex.scheduling.greedy import greedy
from freshet_graph.trainer.strategies.dygnex.scheduling.ilp import ilp
from freshet_graph.trainer.strategies.dygnex.scheduling.locality import keep_runs, moved
from freshet_graph.trainer.strategies.dygnex.scheduling.paper import paper, psg, psg_sorted
from freshet_graph.trainer.strategies.dygnex.scheduling.schedule import (
    Problem,
    Schedule,
    SearchLimits,
    lower_bound_s,
    spread,
)
from freshet_graph.trainer.strategies.dygnex.scheduling.solve import ALGORITHMS, solve
from freshet_graph.trainer.strategies.dygnex.scheduling.workloads import made_up_times

SMALL = {"gap": 0.5, "time_s": 60.0}
"""Limits that would let a solver stop at once, were they used for a few groups."""


def drawn(seed: int, groups: int, kind: str) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if kind == "uniform":
        return rng.uniform(0.1, 1.0, groups)
    return made_up_times(kind, groups, seed)


def small(seed: int) -> Problem:
    """An instance that can be tried out."""
    rng = np.random.default_rng(seed)
    times = drawn(seed, int(rng.integers(1, 9)), ("uniform", "linear", "lognormal")[seed % 3])
    return Problem(times, int(rng.integers(1, 4)), int(rng.integers(1, 4)), [0.0, 0.1, 0.5][seed % 4 % 3])


@pytest.mark.parametrize("seed", range(12))
def test_greedy_is_the_best_of_all_or_nearly_and_the_bound_is_below(seed: int) -> None:
    problem = small(seed)
    best_s = best_epoch(problem.times_s.tolist(), problem.gpus, problem.per_gpu, problem.alpha_s)
    assert lower_bound_s(problem) <= best_s * (1 + 1e-9)
    assert best_s * (1 - 1e-9) <= greedy(problem).epoch_s <= 1.04 * best_s


@pytest.mark.parametrize("solver", ["cp-sat", "highs"])
@pytest.mark.parametrize("seed", range(4))
def test_ilp_is_the_best_of_all_with_either_solver(solver: str, seed: int) -> None:
    problem = small(seed)
    best_s = best_epoch(problem.times_s.tolist(), problem.gpus, problem.per_gpu, problem.alpha_s)
    found, bound_s = ilp(problem, SearchLimits(**SMALL), solver)
    assert found.epoch_s == pytest.approx(best_s, rel=1e-7)
    assert bound_s <= found.epoch_s


@pytest.mark.parametrize("solver", ["cp-sat", "highs"])
def test_solvers_find_what_greedy_misses(solver: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their own schedule is the result, not the start that they were given."""
    monkeypatch.setattr(
        "freshet_graph.trainer.strategies.dygnex.scheduling.ilp.greedy", lambda problem, *_: psg(problem)
    )
    problem = Problem(np.array([6.0, 1.0, 5.0, 2.0, 4.0, 3.0]), 2, 2, 0.5)
    found, _ = ilp(problem, SearchLimits(**SMALL), solver)
    best_s = best_epoch(problem.times_s.tolist(), 2, 2, 0.5)
    assert psg(problem).epoch_s > 1.1 * best_s
    assert found.epoch_s == pytest.approx(best_s, rel=1e-7)


def test_ilp_works_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    monkeypatch.setitem(__import__("sys").modules, "ortools", None)  # importing it fails
    problem = Problem(np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.5]), 2)
    found, _ = ilp(problem, SearchLimits())
    assert found.epoch_s == pytest.approx(best_epoch(problem.times_s.tolist(), 2, 2, 0.0))


@pytest.mark.parametrize("kind", ["uniform", "linear", "lognormal"])
def test_greedy_is_never_worse_than_the_published_one_and_near_the_bound(kind: str) -> None:
    gains = []
    for groups, gpus in ((20, 3), (64, 4), (100, 4), (200, 16)):
        problem = Problem(drawn(groups, groups, kind), gpus)
        ours, published = greedy(problem).epoch_s, paper(problem).epoch_s
        assert ours <= 1.001 * published
        gains.append(1 - ours / published)
        if groups >= max(100, 8 * gpus):
            assert ours <= 1.01 * lower_bound_s(problem)
    assert np.mean(gains) > 0.005


@pytest.mark.parametrize(("gpus", "least"), [(128, 0.997), (512, 0.993), (1024, 0.989)])
def test_ten_thousand_groups_keep_many_gpus_busy(gpus: int, least: float) -> None:
    problem = Problem(made_up_times("linear", 10_000, 0), gpus)
    assert greedy(problem).efficiency >= least > psg(problem).efficiency + 0.1


@pytest.mark.parametrize("seed", range(8))
def test_the_published_listing_equals_its_plain_twin(seed: int) -> None:
    """Also where times are equal: of equal candidates the first stays."""
    rng = np.random.default_rng(seed)
    times = rng.integers(1, 12, int(rng.integers(1, 30))).astype(float) / 4
    gpus = int(rng.integers(1, 6))
    plain = [sorted(map(sorted, iteration)) for iteration in paper_pairs(times.tolist(), gpus)]
    ours = [
        sorted(sorted(times[group] for group in gpu) for gpu in iteration if gpu)
        for iteration in paper(Problem(times, gpus)).iterations()
    ]
    assert ours == plain


def test_alpha_makes_iterations_fewer() -> None:
    times = np.array([10.0, 10.0, 0.1, 0.1, 0.1, 0.1])
    assert len(greedy(Problem(times, 2, 2, 0.0)).slots) == 2
    few = Problem(np.array([3.0, 3.0, 1.0, 1.0]), 2, 2)
    assert greedy(few).epoch_s == 4.0
    assert len(greedy(Problem(few.times_s, 2, 2, 5.0)).slots) == 1


def test_psg_gives_each_gpu_one_group_in_order_of_time() -> None:
    assert psg(Problem(np.arange(1.0, 6.0), 2)).iterations() == [[[0], [1]], [[2], [3]], [[4], []]]
    assert psg_sorted(Problem(np.arange(1.0, 6.0), 2)).epoch_s == 5 + 3 + 1


def test_figures_of_a_schedule_by_hand() -> None:
    """Two GPUs, three groups: ▮ trains, · waits, α = 1.

    GPU 0  ▮▮▮▮ α ▮▮ α
    GPU 1  ▮··· α ·· α
    """
    problem = Problem(np.array([4.0, 1.0, 2.0]), 2, 2, 1.0)
    found = Schedule(problem, np.array([[[0, -1], [1, -1]], [[2, -1], [-1, -1]]]))
    assert found.epoch_s == 4 + 1 + 2 + 1
    assert found.imbalance == 6.0
    assert found.efficiency == pytest.approx(7 / 16)
    assert spread(found).imbalance == pytest.approx(4 / 3)  # the last group goes to the GPU that worked less
    assert Schedule(problem, found.slots[:, :1]).problem.room == 4


def test_an_idle_gpu_shows_in_efficiency_only() -> None:
    found = psg(Problem(np.ones(1), 4))
    assert (found.imbalance, found.efficiency) == (1.0, 0.25)


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_groups_that_take_no_time_have_a_schedule(algorithm: str) -> None:
    solved = solve(Problem(np.zeros(5), 2), algorithm)
    assert solved.schedule.epoch_s == solved.lower_bound_s == 0.0
    assert np.isnan(solved.gap)


def test_the_same_seed_gives_the_same_schedule() -> None:
    problem = Problem(drawn(3, 60, "lognormal"), 4)
    first, second = greedy(problem, 7), greedy(problem, 7)
    assert first.iterations() == second.iterations()
    assert first.iterations() != greedy(problem, 8).iterations()


@pytest.mark.parametrize("seed", range(6))
def test_no_assignment_within_the_slack_moves_fewer_snapshots(seed: int) -> None:
    problem = Problem(np.random.default_rng(seed).uniform(1.0, 1.4, 7), 2)
    schedule, slack = greedy(problem), 0.05
    places = schedule.slots.size
    fewest = 10**9
    for order in permutations(range(7)):
        slots = np.array([*order, *[-1] * (places - 7)]).reshape(schedule.slots.shape)
        other = Schedule(problem, slots)
        if other.epoch_s <= schedule.epoch_s * (1 + slack):
            fewest = min(fewest, moved(other, 3))
    assert moved(keep_runs(schedule, 3, slack=slack), 3) <= fewest
