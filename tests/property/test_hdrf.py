"""HDRF and PowerGraph's greedy rule against plain Python that scores every part, event by event."""

import math
from dataclasses import astuple
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sep_streams import MASK, batches, seal, snapshot, splitmix64, streams

from freshet_graph.stream.partition.edge import base
from freshet_graph.stream.partition.interface import PartitionError, create

GOLDEN = 0x9E3779B97F4A7C15


class PlainCopying:
    def __init__(self, greedy, parts, seed, weight):
        self.greedy, self.P, self.seed, self.weight = greedy, parts, seed, weight
        self.A, self.home, self.count = {}, {}, {}
        self.sizes, self.events = [0] * parts, 0

    def update(self, events):
        for op, i, j, _ in events if self.greedy else ():
            for v in {i, j} if op > 0 else ():
                self.count[v] = self.count.get(v, 0) + 1
        out = []
        for op, i, j, _ in events:
            state = (splitmix64(self.seed) + GOLDEN * self.events) & MASK
            self.events += 1
            out.append(-1 if op < 0 else self.assign(i, j, (state >> 32) * self.P >> 32))
        return out

    def assign(self, i, j, first):
        for v in {i, j}:
            self.count[v] = self.count.get(v, 0) + (-1 if self.greedy else 1)
        rule = self.greedy_parts if self.greedy else self.best_parts
        part = min(rule(i, j), key=lambda p: (self.sizes[p], (p - first) % self.P))
        self.sizes[part] += 1
        for v in (i, j):
            self.home.setdefault(v, part)
            self.A.setdefault(v, set()).add(part)
        return part

    def greedy_parts(self, i, j):
        a, b = self.A.get(i, set()), self.A.get(j, set())
        if a and b and not a & b and self.count[i] != self.count[j]:
            return a if self.count[i] > self.count[j] else b
        return a & b or a | b or set(range(self.P))

    def best_parts(self, i, j):
        """Parts of the largest score; of equal scores in two classes, those of the class that comes first."""
        a, b = self.A.get(i, set()), self.A.get(j, set())
        theta = Fraction(self.count[i], self.count[i] + self.count[j])
        scale = Fraction(self.weight) / (1 + max(self.sizes) - min(self.sizes))

        def score(p):
            worth = 3 if p in a & b else 2 - theta if p in a else 1 + theta if p in b else 0
            return worth + scale * (max(self.sizes) - self.sizes[p])

        best = max(map(score, range(self.P)))
        tied = {p for p in range(self.P) if score(p) == best}
        return tied & a & b or tied & a or tied & b or tied


RULES = st.sampled_from([("hdrf", 1.0), ("hdrf", 0.25), ("hdrf", 5.0), ("powergraph-greedy", None)])


@settings(max_examples=300, deadline=None)
@given(
    st.one_of(streams(1), streams(8), streams(20)),
    st.sampled_from([1, 2, 4, 32, 33, 64, 100]),
    RULES,
    st.integers(0, 3),
    st.integers(0, 4),
)
def test_every_event_equals_the_plain_algorithm(stream, parts, rule, seed, restart):
    name, weight = rule
    params = {"parts": parts, "seed": seed} | ({} if weight is None else {"balance_weight": weight})
    fast, plain = create(name, **params), PlainCopying(name != "hdrf", parts, seed, weight)
    seen = 0
    for tau, events in batches(stream):
        if tau == restart:
            state = fast.state()
            fast = create(name, **params)
            fast.restore(state)
        seen = max([seen, *(max(i, j) + 1 for _, i, j, _ in events)])
        before = {v: set(held) for v, held in plain.A.items()}
        assignment = fast.update(snapshot(tau, seen, events))
        assert assignment.event_part.tolist() == plain.update(events)
        home = fast.home()
        assert {v: int(home[v]) for v in np.flatnonzero(home >= 0).tolist()} == plain.home
        seal(before, assignment)
        assert before == plain.A
        quality = fast.quality()
        if seen:
            copies = sum(map(len, plain.A.values()))
            assert math.isclose(quality.replication_factor, (copies + seen - len(plain.A)) / seen)
            shared = sum(len(held) > 1 for held in plain.A.values())
            assert math.isclose(quality.training_replication_factor, 1 + shared / seen * (parts - 1))


@pytest.mark.parametrize("name", ["hdrf", "powergraph-greedy"])
@pytest.mark.parametrize(("parts", "apart"), [(4, 3), (4, 12), (32, 9), (40, 30), (64, 500)])
def test_loads_within_the_levels_and_beyond_give_the_same_parts(name, parts, apart):
    """From loads that are some edges apart, levels saturate, are built again, go down, and parts catch up."""
    draws = np.random.default_rng(parts + apart)
    sizes = draws.integers(0, apart + 1, parts)
    fast, plain = create(name, parts=parts, seed=2), PlainCopying(name != "hdrf", parts, 2, 1.0)
    fast.sizes[:] = plain.sizes[:] = sizes.tolist()
    for tau in range(4):
        ends = np.minimum(draws.integers(0, 120, (400, 2)), draws.integers(0, 120, (400, 2)))
        events = [(1, int(i), int(j), tau) for i, j in ends]
        assert fast.update(snapshot(tau, 120, events)).event_part.tolist() == plain.update(events)
    assert fast.sizes.tolist() == plain.sizes


@pytest.mark.parametrize("name", ["hdrf", "powergraph-greedy"])
@pytest.mark.parametrize("apart", [2**25 - 1, 2**25, 2**40])
def test_parts_of_any_load_are_told_apart(name, apart):
    """Also where they are further apart than any other number in the kernel."""
    partitioner = create(name, parts=3, seed=1)
    partitioner.sizes[:] = [apart, apart + 1, 5]
    pairs = [(1, 2 * v, 2 * v + 1, 0) for v in range(4)]
    assert partitioner.update(snapshot(0, 8, pairs)).event_part.tolist() == [2] * 4
    # Both ends of the next edge know parts 0 and 1 only, and 1 is one edge fuller.
    partitioner.records[:2] = partitioner.records[:2] >> np.uint64(32) << np.uint64(32) | np.uint64(0b011)
    assert partitioner.update(snapshot(1, 8, [(1, 0, 1, 1)])).event_part.tolist() == [0]
    assert partitioner.sizes.tolist() == [apart + 1, apart + 1, 9]


@pytest.mark.parametrize("name", ["hdrf", "powergraph-greedy"])
@pytest.mark.parametrize("parts", [5, 40, 100])
def test_a_snapshot_may_be_cut_into_batches_anywhere(name, parts, monkeypatch):
    """The same parts and placements whether kernels get a snapshot whole or a few events at a time."""
    draws = np.random.default_rng(0)
    events = [(1, int(i), int(j), 0) for i, j in draws.integers(0, 50, (300, 2))]
    whole = create(name, parts=parts).update(snapshot(0, 50, events))
    monkeypatch.setattr(base, "_CHUNK", 7)
    cut = create(name, parts=parts).update(snapshot(0, 50, events))
    for of_whole, of_cut in zip(astuple(whole), astuple(cut), strict=True):
        assert of_cut.tolist() == of_whole.tolist()


@pytest.mark.parametrize("name", ["hdrf", "powergraph-greedy"])
def test_states_of_another_shape_are_refused_with_what_to_do(name):
    """As those of hdrf lanes from before it had records."""
    with pytest.raises(
        PartitionError, match=f"not a state of {name} as of this release, it has no counts. Remove the lane's"
    ):
        create(name, parts=2).restore(create("sep", parts=2).state())


def test_greedy_follows_the_end_with_more_edges_left():
    """Nodes 0 and 1 live apart; node 0 has more edges to come, so its part takes the edge between them."""
    partitioner = create("powergraph-greedy", parts=2)
    homes = [(1, 0, 2, 0), (1, 1, 3, 0)]
    partitioner.update(snapshot(0, 8, homes))
    home = partitioner.home().tolist()
    assert home[0] != home[1]
    events = [(1, 0, 1, 1), (1, 0, 4, 1), (1, 0, 5, 1), (1, 1, 6, 1)]
    assert partitioner.update(snapshot(1, 8, events)).event_part[0] == home[0]
