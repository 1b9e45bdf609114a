"""Parts of ``hybrid``: kernels beside plain twins, balanced targets, a reservoir within its bounds, adjusters that learn."""

import copy
from concurrent.futures import Future, wait
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from freshet_graph.trainer.data.neighbours import NodeEdges
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.strategies.dynahb import batches
from freshet_graph.trainer.strategies.dynahb.adjusters import (
    ADJUSTERS,
    LEAST,
    Dqn,
    DqnAdjuster,
    Outcome,
    cleaned_reward,
)
from freshet_graph.trainer.strategies.dynahb.batches import (
    ExampleSampler,
    HybridBatch,
    LoadBalancedSampler,
    QueriesByNode,
    Recipe,
)
from freshet_graph.trainer.strategies.dynahb.reservoir import LOOK_S, BatchGenerator, Reservoir
from freshet_graph.trainer.strategies.snapshots.past import STRIDE, Past, PastSnapshot
from freshet_graph.trainer.strategies.snapshots.sampled_layout import SampledLayout

SIZES = [(s, v) for s in (0.1, 0.2, 0.5) for v in (0.05, 0.2)]
TAUS = [3, 4, 6, 7, 8, 9, 12, 13, 14, 15, 16]


def neighbours_of(edges: list[tuple[int, int]]) -> dict[int, set[int]]:
    found: dict[int, set[int]] = {node: set() for node in range(10)}
    for one, other in edges:
        if one != other:
            found[one].add(other)
            found[other].add(one)
    return found


def past_of(drawn: list[list[tuple[int, int]]]) -> Past:
    """A window of a rank that owns even nodes, and knows the edges of the others."""
    snapshots = []
    for tau, edges in enumerate(drawn):
        near = neighbours_of(edges)
        own, foreign = (
            NodeEdges.of_degrees(
                np.arange(first, 10, 2),
                np.array([len(near[node]) for node in range(first, 10, 2)]),
                np.array([other for node in range(first, 10, 2) for other in sorted(near[node])], np.int32),
            )
            for first in (0, 1)
        )
        none = np.empty(0, np.int64), np.empty((0, 2), np.float32)
        snapshots.append(PastSnapshot(tau, tau, own, np.arange(10, dtype=np.int8) % 2, *none, foreign))
    return Past(snapshots, len(snapshots))


edges = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=20)


@given(edges, st.integers(1, 3))
def test_loads_count_walks(drawn: list[tuple[int, int]], hops: int) -> None:
    near = neighbours_of(drawn)
    walks = [dict.fromkeys(range(10), 1)]
    for _ in range(hops):
        walks.append({node: sum(walks[-1][other] for other in near[node]) for node in range(10)})
    expected = [
        sum(sum(walks[j][node] for j in range(most + 1)) for most in range(hops + 1)) for node in range(10)
    ]
    assert past_of([drawn]).snapshots[0].loads(hops).tolist() == expected


@given(st.lists(edges, min_size=1, max_size=3), st.sets(st.integers(0, 9)))
def test_a_batch_has_the_neighbours_of_every_hop_and_no_other_rows(
    drawn: list[list[tuple[int, int]]], asked: set[int]
) -> None:
    """Two convolutions without and with a recurrence between them."""
    from freshet_graph.trainer.models.convolutions import LaplacianConvolution
    from freshet_graph.trainer.models.recurrences import MovingMean

    near, past = [neighbours_of(each) for each in drawn], past_of(drawn)
    nodes = np.array(sorted(asked), np.int64)
    first, second = (LaplacianConvolution(1, 1) for _ in range(2))

    def around(sets: list[set[int]]) -> list[set[int]]:
        return [of | {far for node in of for far in at[node]} for of, at in zip(sets, near, strict=True)]

    def degrees(keys: Any) -> Any:
        return np.array([len(near[key // STRIDE][key % STRIDE]) for key in keys.tolist()], np.int64)

    for stages in ([first, second], [first, MovingMean(2), second]):
        rows = around([asked] * len(drawn))
        if len(stages) == 3:
            rows = [set().union(*rows)] * len(drawn)
        rows = around(rows)
        lowest = list[Any]()

        def encode(keys: Any, lowest: list[Any] = lowest) -> Any:
            lowest.extend(keys.tolist())
            return torch.zeros(len(keys), 1), degrees(keys)

        layout = SampledLayout(stages, past, nodes, encode, Ranks(), seed=None)
        assert lowest == [at * STRIDE + node for at, each in enumerate(rows) for node in sorted(each)]
        for level in layout._levels:
            hop = level.hop
            assert hop is not None
            assert hop.sources[hop.target_places].tolist() == hop.targets.tolist()
            assert hop.degrees.tolist() == degrees(hop.sources).tolist()
            for place, target in enumerate(hop.targets.tolist()):
                found = hop.sources[hop.neighbours[hop.indptr[place] : hop.indptr[place + 1]]]
                at, node = divmod(target, STRIDE)
                assert found.tolist() == [at * STRIDE + other for other in sorted(near[at][node])]


def test_a_sample_has_as_many_targets_of_every_group_and_a_load_like_the_others() -> None:
    rng = np.random.default_rng(0)
    load = rng.pareto(1.5, 2000)
    sampler = LoadBalancedSampler(load)
    samples = [sampler.draw(205, rng) for _ in range(50)]
    rank = np.argsort(np.argsort(-load)) // 200
    for sample in samples:
        assert len(np.unique(sample)) == 205
        counts = np.bincount(rank[sample], minlength=10)
        assert counts.min() == 20
        assert counts.max() <= 21
    uniform = [rng.choice(2000, 205, replace=False) for _ in range(50)]

    def spread(of: list[Any]) -> float:
        return float(np.std([load[sample].sum() for sample in of]))

    assert spread(samples) < spread(uniform)
    assert set(np.concatenate(samples).tolist()) > set(range(0, 2000, 1000))
    few = LoadBalancedSampler(load[:3])
    assert few.draw(10, rng).tolist() == [0, 1, 2]
    assert len(LoadBalancedSampler(load[:0]).draw(2, rng)) == 0


def test_a_group_gives_one_target_of_every_stratum() -> None:
    load = np.random.default_rng(0).pareto(1.5, 2000)
    sample = LoadBalancedSampler(load).draw(200, np.random.default_rng(1))
    rank = np.argsort(np.argsort(-load))
    assert sorted((rank[sample] // 10).tolist()) == list(range(200))


def test_a_node_loads_a_batch_with_itself_and_those_it_is_asked_about_beside() -> None:
    def examples_of(src: list[int], dst: list[int]) -> Any:
        ends = np.array(src), np.array(dst)
        return SimpleNamespace(
            part=lambda items: (SimpleNamespace(ends=[end[items] for end in ends]), np.zeros(len(items)))
        )

    loads = np.array([10.0, 20.0, 30.0])
    asked = QueriesByNode(examples_of([1, 0, 1, 7], [2, 1, 8, 0]), np.arange(4), loads, least=3.0)
    assert asked.nodes.tolist() == [0, 1, 7]
    assert asked.load.tolist() == [10 + 20, 20 + 30 + 3, 3 + 10]
    assert asked.items_of(np.array([1, 5, 7])).tolist() == [0, 2, 3]
    assert asked.items_of(np.empty(0, np.int64)).tolist() == []
    again = QueriesByNode(examples_of([7, 2], [0, 0]), np.arange(2), loads, least=3.0)
    seen: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches, "LoadBalancedSampler", seen.append)
        window = ExampleSampler({0: asked, 2: again})
    assert window.nodes.tolist() == [0, 1, 2, 7]
    assert seen[0].tolist() == [30, 53, 30 + 10, 13 + 3 + 10]


def batch_of(size: int) -> HybridBatch:
    return HybridBatch(np.empty(0, np.int64), SimpleNamespace(nbytes=4 * size), [])


def test_a_reservoir_has_no_batch_older_than_the_horizon_and_drops_a_share_of_the_others() -> None:
    rng = np.random.default_rng(1)
    reservoir = Reservoir(SIZES, newest_share=0.3, refresh=0.5)
    for _ in range(400):
        recipe, _ = reservoir.draw(int(rng.integers(len(SIZES))), TAUS, rng)
        at = TAUS.index(recipe.first)
        assert TAUS[at + recipe.length] == recipe.until
        assert recipe.length == max(1, round(SIZES[recipe.size][0] * (len(TAUS) - 1)))
    before = reservoir.recipes()
    assert sum(reservoir.counts().values()) == len(before)
    again = Reservoir(SIZES, newest_share=0.3, refresh=0.5)
    again.restore(copy.deepcopy(reservoir.state()))
    assert again.recipes() == before
    assert again.state()["drawn"] == len(before)
    reservoir.slide([*TAUS[2:], 20], rng)
    kept = reservoir.recipes()
    may_stay = {each for each in before if each.first >= TAUS[2] and each.until < TAUS[-1]}
    assert kept < may_stay
    assert 0.4 * len(may_stay) < len(kept) < 0.6 * len(may_stay)
    draws = [np.random.default_rng(5) for _ in range(2)]
    again.slide([*TAUS[2:], 20], np.random.default_rng(5))
    other = Reservoir(SIZES, newest_share=0.3, refresh=0.5)
    other.restore(again.state())
    assert [again.draw(1, TAUS, draws[0]) for _ in range(30)] == [
        other.draw(1, TAUS, draws[1]) for _ in range(30)
    ]


def test_full_reservoirs_are_read_again_as_the_paper_has_it() -> None:
    rng = np.random.default_rng(2)
    reservoir = Reservoir([(0.5, 0.2)], newest_share=0.0, refresh=0.0)
    known = [reservoir.draw(0, TAUS, rng)[1] for _ in range(2000)]
    assert len(reservoir.recipes()) == 10, "N·T / (N_S · N_V)"
    assert all(known[-500:])
    assert not known[0]
    several = Reservoir([(0.5, 0.2), (0.1, 0.125)], newest_share=0.25, refresh=0.0)
    for _ in range(4000):
        several.draw(int(rng.integers(2)), TAUS, rng)
    assert several.counts() == {0: 5, 1: 40}, "each size has its part of them"
    newest = [each for each in several.recipes() if each.until == TAUS[-1]]
    assert len(newest) >= 1 + 10, "a quarter of each, rounded, and those that came by chance"
    assert len([each for each in newest if each.size == 1]) < 10 + 10


def test_batches_stay_within_their_bytes_and_come_as_they_were_asked_for() -> None:
    made: list[Recipe] = []

    def make(recipe: Recipe) -> HybridBatch:
        made.append(recipe)
        return batch_of(25 * (1 + recipe.number % 3))

    generator = BatchGenerator(make, 1000, threads=2)
    rng = np.random.default_rng(3)
    recipes = [Recipe(0, 1, 1, 2, number) for number in range(12)]
    order = [recipes[2], *(recipes[at] for at in rng.integers(0, 12, 199))]  # none is larger than the first
    for now, ahead in zip(order, [*order[1:], order[0]], strict=True):
        generator.want(now)
        generator.want(ahead)
        for future in list(generator._futures.values()):
            future.exception()
        assert generator.held_bytes <= 1000
        batch = generator.take(now, known=False)
        assert batch.nbytes == 4 * 25 * (1 + now.number % 3)
        assert generator.held_bytes <= 1000
    waits_s, outcomes = generator.since_last()
    assert outcomes["hit"] > 50
    assert len(waits_s) == outcomes["fresh"] == 200 - outcomes["hit"]
    generator.retain({recipes[0]})
    generator.drain()
    assert generator.held_bytes <= 100

    def broken(recipe: Recipe) -> HybridBatch:
        raise ValueError("no such snapshot")

    with pytest.raises(ValueError, match="no such snapshot"):
        BatchGenerator(broken, 1000, threads=1).take(recipes[0], known=False)
    for _ in range(2):
        generator.close()


def test_a_batch_that_is_ready_just_as_a_look_at_it_ends_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    class Late(Future[HybridBatch]):
        """Done at the end of a wait that found it undone."""

        def result(self, timeout: float | None = None) -> HybridBatch:
            if timeout is not None:
                self.set_result(batch_of(1))
                raise TimeoutError
            return super().result()

    late, looks = Late(), list[float]()

    def looked(futures: Any, timeout: float) -> Any:
        looks.append(timeout)
        if len(looks) == 2:
            late.set_result(batch_of(1))
        return wait(futures, timeout=0)

    monkeypatch.setattr("freshet_graph.trainer.strategies.dynahb.reservoir.wait", looked, raising=False)
    generator, recipe = BatchGenerator(lambda recipe: batch_of(1), 1000, threads=1), Recipe(0, 1, 1, 2, 0)
    generator._futures[recipe] = late
    assert generator.take(recipe, known=False).nbytes == 4
    assert looks == [LOOK_S] * 2


def test_an_adjuster_resumes_from_its_state() -> None:
    def run(adjuster: DqnAdjuster, steps: int, rng: np.random.Generator) -> list[int]:
        chosen = []
        for _ in range(steps):
            chosen.append(adjuster.choose())
            adjuster.observe(Outcome(chosen[-1], float(rng.normal(0.5, 0.1)), float(rng.uniform(0.1, 0.2))))
        return chosen

    straight, resumed = (DqnAdjuster(SIZES, 7) for _ in range(2))
    run(straight, 30, np.random.default_rng(0))
    resumed.restore(copy.deepcopy(straight.state()))
    assert run(straight, 30, np.random.default_rng(1)) == run(resumed, 30, np.random.default_rng(1))
    assert straight.reward == resumed.reward != 0
    assert straight.epsilon == resumed.epsilon < 1
    assert straight.network.steps == resumed.network.steps == 54
    np.testing.assert_array_equal(straight.network.q, resumed.network.q)


def test_a_fixed_size_has_the_fewest_snapshots_and_the_most_vertices() -> None:
    assert SIZES[ADJUSTERS["fixed"](SIZES, 0).choose()] == (0.1, 0.2)


def test_the_network_follows_the_gradient_of_its_error_and_explores_less_and_less() -> None:
    network, rng = Dqn(4, 1), np.random.default_rng(0)
    states, actions, wanted = rng.normal(size=6), rng.integers(0, 4, 6), rng.normal(size=6)

    def error() -> float:
        return float(np.mean((network.values(network.q, states)[np.arange(6), actions] - wanted) ** 2))

    found, h = network.gradient(states, actions, wanted), 1e-6
    for at in range(len(network.q)):
        network.q[at] += h
        above = error()
        network.q[at] -= 2 * h
        below = error()
        network.q[at] += h
        assert found[at] == pytest.approx((above - below) / (2 * h), abs=1e-5)
    for _ in range(600):
        action = network.choose(0.5)
        network.learn(0.5, action, 1.0 if action == 2 else 0.0, 0.5)
    assert network.epsilon == LEAST
    assert np.argmax(network.values(network.q, np.array([0.5]))[0]) == 2


def test_the_network_learns_transitions_of_its_memory_by_the_published_numbers() -> None:
    network, wanted = Dqn(2, 1), list[Any]()
    network.gradient = lambda states, actions, target: (
        wanted.append((states, target)) or np.ones(len(network.q))
    )
    for number in range(5):
        target, before = network.target.copy(), network.q.copy()
        network.learn(float(number), number % 2, 10.0 * number, 0.5)
    ((states, aims),) = wanted
    best = network.values(target, np.array([0.5])).max()
    np.testing.assert_allclose(aims, 10 * states + 0.99 * best)
    np.testing.assert_allclose(network.q, before - 0.005, rtol=1e-6)
    np.testing.assert_allclose(network.target, target + 0.01 * (network.q - target))
    for number in range(1100):
        network.learn(float(number), 0, 0.0, 0.0)
    assert len(network.replay) == 1000
    assert network.replay[-1, 0] == 1099


@pytest.mark.parametrize(
    ("seconds", "falls", "sizes", "reward"),
    [
        ((2.0, 1.0), (0.1, 0.2), (0, 0), 0.5 + 0.5),
        ((1.0, 2.0), (0.1, 0.2), (0, 0), -1.0 + 0.5),
        ((1.0, 2.0), (0.1, 0.2), (5, 0), 0.0 + 0.5),  # both shrank: no penalty for time
        ((2.0, 1.0), (0.2, 0.1), (0, 5), 0.5 + 0.0),  # both grew: none for the loss
        ((2.0, 1.0), (0.1, -0.1), (0, 0), -0.5 - 2.0),  # the loss rose
        ((2.0, 1.0), (0.1, 1e-9), (0, 0), 0.5 - 10.0),  # a division by next to nothing is bounded
    ],
)
def test_rewards_are_equation_3_with_guards(
    seconds: tuple[float, float], falls: tuple[float, float], sizes: tuple[int, int], reward: float
) -> None:
    assert cleaned_reward(seconds, falls, (SIZES[sizes[0]], SIZES[sizes[1]])) == pytest.approx(reward)
