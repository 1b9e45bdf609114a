"""The growing temporal CSR and its samples against brute force over the list of all events."""

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_graph.trainer.data.temporal_graph import TemporalGraph
from freshet_graph.trainer.data.temporal_sampler import HOWS, Neighbours, TemporalSampler, sample_before

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


@dataclass
class Brute:
    """All events in a list; a node's interactions are found by looking at every one."""

    events: list[tuple[int, int, int]] = field(default_factory=list)

    def entries(self, node: int, before: int) -> list[tuple[int, int, int]]:
        found = []
        for number, (src, dst, t) in enumerate(self.events):
            if t < before and src == node:
                found.append((dst, 2 * number, t))
            if t < before and dst == node:
                found.append((src, 2 * number + 1, t))
        return found

    def sample(self, node: int, before: int, k: int, how: str, seed: int) -> list[tuple[int, int, int]]:
        entries = self.entries(node, before)
        if how == "uniform" and len(entries) > k:
            return [entries[at] for at in sorted(floyd(node, len(entries), k, seed), reverse=True)]
        return entries[::-1][:k]


def mix(x: int) -> int:
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def floyd(node: int, population: int, k: int, seed: int) -> set[int]:
    state = mix((seed & MASK) ^ mix((node + GOLDEN) & MASK))
    chosen: set[int] = set()
    for limit in range(population - k, population):
        state = (state + GOLDEN) & MASK
        drawn = mix(state) % (limit + 1)
        chosen.add(limit if drawn in chosen else drawn)
    return chosen


# few nodes and few times: many repeats, ties, self-loops and slabs that move
batches = st.lists(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 2)), max_size=30), max_size=5
)


def grown(
    given_batches: list[list[tuple[int, int, int]]],
) -> tuple[TemporalGraph, Brute]:
    graph, brute, now = TemporalGraph(), Brute(), 0
    for batch in given_batches:
        columns: list[list[int]] = [[], [], []]
        for src, dst, gap in batch:
            now += gap
            for column, value in zip(columns, (src, dst, now), strict=True):
                column.append(value)
            brute.events.append((src, dst, now))
        src, dst, t = (np.array(column, np.int64) for column in columns)
        graph.append(src, dst, t, 6)
    return graph, brute


def rows(found: Neighbours, i: int) -> list[tuple[int, int, int]]:
    k = int(found.count[i])
    assert (
        (found.node[i, k:] == -1).all()
        and (found.event[i, k:] == -1).all()
        and (found.time_us[i, k:] == 0).all()
    )
    columns = (found.node[i, :k].tolist(), found.event[i, :k].tolist(), found.time_us[i, :k].tolist())
    return list(zip(*columns, strict=True))


@settings(max_examples=60, deadline=None)
@given(batches, st.integers(1, 7), st.sampled_from(HOWS), st.integers(-5, 1 << 65))
def test_samples_are_those_of_brute_force(
    given_batches: list[list[tuple[int, int, int]]], k: int, how: str, seed: int
) -> None:
    graph, brute = grown(given_batches)
    last = brute.events[-1][2] if brute.events else 0
    nodes = np.array([0, 1, 2, 3, 4, 5, 9, 0, 1, 2], np.int64)
    before = np.array([last + 1] * 7 + [last, last // 2, 0], np.int64)
    found = sample_before(graph, nodes, before, k, how, seed)
    for i, (node, t) in enumerate(zip(nodes.tolist(), before.tolist(), strict=True)):
        assert rows(found, i) == brute.sample(node, t, k, how, seed)


@settings(max_examples=40, deadline=None)
@given(
    batches, st.integers(1, 4), st.sampled_from(HOWS), st.lists(st.integers(0, 5), unique=True, min_size=1)
)
def test_two_layers_name_every_node_once_and_are_those_of_brute_force(
    given_batches: list[list[tuple[int, int, int]]], k: int, how: str, targets: list[int]
) -> None:
    graph, brute = grown(given_batches)
    before = (brute.events[-1][2] if brute.events else 0) or 1
    sampler = TemporalSampler(graph, k, how, seed=3)
    layers = sampler.layers(np.array(targets, np.int64), before, 2)
    assert [layer.nodes.tolist() for layer in layers[:1]] == [targets]
    below = [layers[1].nodes, sampler.below]
    for depth, layer in enumerate(layers):
        assert len(np.unique(below[depth])) == len(below[depth])
        np.testing.assert_array_equal(below[depth][layer.own_place], layer.nodes)
        for i, node in enumerate(layer.nodes.tolist()):
            expected = brute.sample(node, before, k, how, 3 + depth)
            assert rows(layer.sampled, i) == expected
            count = len(expected)
            assert below[depth][layer.place[i, :count]].tolist() == [entry[0] for entry in expected]
            assert (layer.place[i, count:] == 0).all()


@settings(max_examples=40, deadline=None)
@given(batches, st.integers(1, 3), st.sampled_from(HOWS), st.lists(st.booleans(), min_size=6, max_size=6))
def test_among_some_nodes_a_row_has_its_first_interactions_with_those(
    given_batches: list[list[tuple[int, int, int]]], k: int, how: str, among: list[bool]
) -> None:
    graph, brute = grown(given_batches)
    before = brute.events[-1][2] + 1 if brute.events else 1
    sampler = TemporalSampler(graph, k, how, seed=3)
    sampler.among, sampler.reach = np.array(among), 2
    (layer,) = sampler.layers(np.arange(6), before, 1)
    for i in range(6):
        looked_through = brute.sample(i, before, 2 * k, how, 3)
        assert rows(layer.sampled, i) == [entry for entry in looked_through if among[entry[0]]][:k]
    assert np.isin(sampler.below[6:], np.flatnonzero(among)).all()


@settings(max_examples=40, deadline=None)
@given(batches, batches)
def test_a_restored_graph_goes_on_as_the_one_it_was_made_of(
    earlier: list[list[tuple[int, int, int]]], later: list[list[tuple[int, int, int]]]
) -> None:
    graph, brute = grown(earlier)
    now = brute.events[-1][2] if brute.events else 0
    again = TemporalGraph()
    again.append(np.array([0]), np.array([9]), np.array([5]), 10)  # what it had before is gone
    again.restore(graph.state())
    for batch in later:
        src, dst = (np.array([event[side] for event in batch], np.int64) for side in range(2))
        t = now + np.cumsum([event[2] for event in batch], dtype=np.int64)
        now = int(t[-1]) if len(t) else now
        for each in (graph, again):
            each.append(src, dst, t, 8)
    assert again.num_events == graph.num_events
    nodes = np.arange(8)
    ours, theirs = (sample_before(each, nodes, now + 1, 50) for each in (graph, again))
    for name in ("node", "event", "time_us", "count"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))


def test_uniform_draws_are_uniform() -> None:
    graph = TemporalGraph()
    many = np.arange(1, 21)
    graph.append(np.zeros(20, np.int64), many, many, 21)
    drawn = np.concatenate(
        [sample_before(graph, np.array([0]), 99, 5, "uniform", seed).node for seed in range(8000)]
    )
    counts = np.bincount(drawn.ravel(), minlength=21)[1:]
    assert counts.min() > 0.9 * 2000 and counts.max() < 1.1 * 2000


def test_the_arena_stays_within_four_times_the_entries() -> None:
    graph, rng = TemporalGraph(), np.random.default_rng(0)
    for step in range(200):
        ends = rng.zipf(1.3, (2, 500)).clip(max=5000) - 1
        graph.append(ends[0], ends[1], np.full(500, step), 5000)
    entries = 2 * graph.num_events
    assert graph._used <= 4 * (entries + graph.num_nodes)
    assert graph.row[:, 1].sum() == entries


def test_another_way_to_sample_is_refused() -> None:
    with pytest.raises(ValueError, match="recent or uniform, found 'newest'"):
        TemporalSampler(TemporalGraph(), 3, "newest")  # type: ignore[arg-type]
