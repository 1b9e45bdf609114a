"""byte-lp against plain Python: the search node by node, crowded parts, traffic, and the bound that always holds."""

import math

import numpy as np
import pytest
from edge_events import edge_events
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_graph.stream.partition.interface import create
from freshet_graph.stream.partition.vertex.base import sampled_share
from freshet_graph.stream.partition.vertex.byte_lp import COLUMNS, DRAWS, anneal, shed, traffic
from freshet_graph.stream.snapshots.adjacency import build_adjacency
from freshet_graph.stream.snapshots.delta import Csr
from freshet_graph.stream.snapshots.graph import LiveGraph
from freshet_graph.stream.snapshots.pairs import pair_keys

PARTS = [1, 2, 3, 64, 100]


@st.composite
def cases(draw):
    """A small graph (self-loops and multi-edges given, as a live graph drops them), owners of before and now."""
    n, parts = draw(st.integers(1, 9)), draw(st.sampled_from(PARTS))
    ends = st.integers(0, n - 1)
    pairs = draw(st.lists(st.tuples(ends, ends), max_size=3 * n))
    keys = np.unique(pair_keys(*np.array(pairs, np.int64).reshape(-1, 2).T.copy()))
    rows = Csr(*build_adjacency(n, keys, np.ones(len(keys), np.float32))).rows
    live = np.unique(np.array(pairs, np.int64))
    owner, before = np.full(n, -1, np.int32), np.full(n, -1, np.int32)
    for v in live:
        owner[v] = draw(st.integers(0, parts - 1))
        before[v] = draw(st.integers(-1, parts - 1))
    return {
        "rows": rows,
        "half": np.rint(sampled_share(rows, np.arange(n), 2) * 256) / 256,
        "uses": draw(st.sampled_from([1.0, 4.0])),
        "live": live,
        "before": before,
        "owner": owner,
        "count": np.bincount(owner[live], minlength=parts),
        "move_cost": draw(st.sampled_from([0.0, 0.5, 5.0])),
        "capacity": math.ceil(draw(st.sampled_from([1.0, 1.05, 1.2, 9.0])) * max(len(live), 1) / parts),
    }


def neighbours(case, v):
    rows = case["rows"]
    return rows.indices[rows.start[v] : rows.end[v]].tolist()


def known(case):
    """Parts and halves as the kernels take them."""
    return np.stack([case["owner"], case["half"]], axis=1).astype(np.float32)


def worths(case, owner, v):
    """What each part is worth to v, without balance."""
    half, home = case["half"], case["before"][v]
    worth = [0.0] * len(case["count"])
    for u in neighbours(case, v):
        worth[owner[u]] += case["uses"] * (half[u] + half[v])
    return [w - case["move_cost"] * (home >= 0 and p != home) for p, w in enumerate(worth)]


def splitmix64(key):
    z = (key + 0x9E3779B97F4A7C15) % 2**64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return z ^ (z >> 31)


class PlainSearch:
    """The rule of ``anneal`` with every worth summed up anew; all sums are exact."""

    def __init__(self, case, move_cost, gamma, seed):
        self.case, self.move_cost, self.gamma = case, np.float32(move_cost), np.float32(gamma)
        self.owner, self.count = case["owner"].tolist(), case["count"].tolist()
        self.draw = splitmix64(seed)
        self.active, self.due = [], set()

    def score(self, v, p):
        near = sum(self.pair(u, v) for u in neighbours(self.case, v) if self.owner[u] == p)
        return np.float32(near) - self.gamma * np.float32(self.count[p])

    def pair(self, u, v):
        return self.case["half"][u] + self.case["half"][v]

    def cost(self):
        """Of the pairs cut and of the moves, in vectors a use."""
        live, before = self.case["live"].tolist(), self.case["before"]
        cut = sum(
            self.pair(u, v)
            for v in live
            for u in neighbours(self.case, v)
            if u < v and self.owner[u] != self.owner[v]
        )
        return cut - sum(self.move_cost * (self.owner[v] == before[v]) for v in live)

    def sweep(self, heat):
        moves, joined = 0, []
        for v in self.active:
            if heat == 0:
                if v not in self.due:
                    continue
                self.due.remove(v)
            k, home = self.owner[v], self.case["before"][v]
            free = [p for p in range(len(self.count)) if p != k and self.count[p] < self.case["capacity"]]
            if not free:
                continue
            bonus = {p: self.move_cost if p == home else np.float32(0) for p in [*free, k]}
            best = max(free, key=lambda p: self.score(v, p) + bonus[p])
            self.count[k] -= 1
            gain = self.score(v, best) + bonus[best] - self.score(v, k) - bonus[k]
            self.count[k] += 1
            least = np.float32(0)
            if heat:
                if gain <= -heat * DRAWS[0]:
                    continue
                self.draw = (self.draw * 6364136223846793005 + 1442695040888963407) % 2**64
                least = -heat * DRAWS[self.draw >> 54]
            if gain <= least:
                continue
            self.owner[v] = best
            self.count[k] -= 1
            self.count[best] += 1
            moves += 1
            for u in neighbours(self.case, v):
                if u in self.active or u in joined:
                    self.due.add(u)
                elif self.owner[u] != best:
                    joined.append(u)
                    self.due.add(u)
        self.active += joined
        return moves

    def run(self, first, sweeps, temperature, steps):
        self.active, self.due = list(first), set(first)
        heated = temperature > 0 and steps > 0
        for _ in range(1 if heated else sweeps):
            if not self.sweep(0):
                break
        if heated:
            start, cost = (self.owner.copy(), self.count.copy()), self.cost()
            for step in range(steps):
                self.sweep(np.float32(temperature * (1 - step / steps)))
            self.due = set(self.active)
            for _ in range(sweeps):
                if not self.sweep(0):
                    break
            if self.cost() > cost:
                self.owner, self.count = start


@settings(max_examples=150, deadline=None)
@given(
    cases(),
    st.sampled_from([0.0, 0.25, 2.0]),
    st.integers(0, 4),
    st.sampled_from([0.0, 0.5, 3.0]),
    st.integers(0, 3),
    st.integers(0, 2**63 - 1),
    st.data(),
)
def test_the_search_equals_the_plain_rule(case, gamma, sweeps, temperature, steps, seed, data):
    live, move_cost = case["live"].tolist(), case["move_cost"] / 4
    first = sorted(data.draw(st.sets(st.sampled_from(live)))) if live else []
    plain = PlainSearch(case, move_cost, gamma, seed)
    at_first = plain.cost()
    plain.run(first, sweeps, temperature, steps)
    now, count = known(case), case["count"].copy()
    work = np.zeros((len(now), COLUMNS + len(count)), np.float32)
    saved, by_heat, changed = anneal(
        case["rows"],
        now,
        work,
        case["before"],
        count,
        np.array(first, np.int64),
        move_cost,
        gamma,
        case["capacity"],
        sweeps,
        temperature,
        steps,
        seed,
    )
    owner = now[:, 0].astype(int)
    assert owner.tolist() == plain.owner
    assert count.tolist() == plain.count == np.bincount(owner[live], minlength=len(count)).tolist()
    assert saved + by_heat == pytest.approx(at_first - plain.cost(), abs=1e-3)
    assert by_heat >= 0
    moved = np.flatnonzero(owner != case["owner"])
    assert set(moved[owner[moved] != case["before"][moved]]) <= set(changed.tolist())
    assert len(set(changed.tolist())) == len(changed)
    assert (owner[changed] != case["before"][changed]).all()
    assert not work[:, 0].any()


def test_heat_leaves_a_local_optimum_and_never_ends_dearer():
    """A ring of 40 dealt to two parts by turns of two: no node gains alone, the ring in halves cuts two pairs."""
    n = 40
    ends = np.arange(n)
    keys = np.unique(pair_keys(ends, (ends + 1) % n))
    rows = Csr(*build_adjacency(n, keys, np.ones(len(keys), np.float32))).rows
    saved = {}
    for steps in (0, 20):
        of_seeds = []
        for seed in range(5):
            now = np.stack([ends // 2 % 2, np.full(n, 0.5)], axis=1).astype(np.float32)
            _, by_heat, _ = anneal(
                rows,
                now,
                np.zeros((n, COLUMNS + 2), np.float32),
                np.full(n, -1, np.int32),
                np.array([n // 2, n // 2]),
                ends,
                0.0,
                0.01,
                n // 2 + 1,
                30,
                0.8,
                steps,
                seed,
            )
            of_seeds.append(by_heat)
        saved[steps] = of_seeds
    assert saved[0] == [0.0] * 5
    assert min(saved[20]) > 5


def plain_shed(case):
    owner, count = case["owner"].tolist(), case["count"].tolist()
    crowded = [p for p in range(len(count)) if count[p] > case["capacity"]]
    loss = {}
    for v in case["live"].tolist():
        if owner[v] in crowded:
            worth = worths(case, owner, v)
            loss[v] = worth[owner[v]] - max(worth[p] for p in range(len(count)) if p not in crowded)
    for v in sorted(loss, key=lambda v: (loss[v], v)):
        if count[owner[v]] > case["capacity"]:
            worth = worths(case, owner, v)
            best = max((p for p in range(len(count)) if count[p] < case["capacity"]), key=lambda p: worth[p])
            count[owner[v]] -= 1
            count[best] += 1
            owner[v] = best
    return owner


@settings(max_examples=100, deadline=None)
@given(cases())
def test_crowded_parts_shed_what_loses_least_until_all_hold(case):
    expected = plain_shed(case)
    now, count = known(case), case["count"].copy()
    left = shed(case["rows"], now, case["uses"], case["before"], count, case["move_cost"], case["capacity"])
    owner = now[:, 0].astype(int)
    assert owner.tolist() == expected
    assert sorted(left.tolist()) == np.flatnonzero(owner != case["owner"]).tolist()
    assert count.tolist() == np.bincount(owner[case["live"]], minlength=len(count)).tolist()
    assert count.max() <= case["capacity"]


@settings(max_examples=50, deadline=None)
@given(cases())
def test_traffic_is_fetches_in_all_uses_and_moves(case):
    owner, before = case["owner"], case["before"]
    live = case["live"].tolist()
    fetched = sum(
        case["uses"] * (case["half"][u] + case["half"][v])
        for v in live
        for u in neighbours(case, v)
        if u < v and owner[u] != owner[v]
    )
    moved = sum(before[v] >= 0 and before[v] != owner[v] for v in live)
    found = traffic(case["rows"], known(case), case["uses"], before, case["move_cost"])
    assert found == pytest.approx(fetched + case["move_cost"] * moved)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000), st.sampled_from(PARTS), st.sampled_from(["byte-lp", "anchor-metis"]))
def test_no_part_ever_holds_more_than_its_capacity(seed, parts, algorithm):
    """Dense and sparse snapshots that grow, shrink and end."""
    draws = np.random.default_rng(seed)
    graph, partitioner = LiveGraph(edge_life=2), create(algorithm, parts=parts)
    for tau in range(6):
        nodes = int(draws.integers(2, 40))
        ends = draws.integers(nodes, size=(int(draws.integers(4 * nodes)), 2))
        delta = graph.apply(tau, edge_events([(1, *pair) for pair in ends.tolist()]))
        partitioner.update(delta)
        held = np.bincount(partitioner.home()[delta.live], minlength=parts)
        assert held.max() <= math.ceil(1.05 * len(delta.live) / parts)


def test_two_cliques_are_told_apart_and_a_node_that_changes_sides_follows():
    """Node 0 leaves the left clique for the right one.

    0─1   4─5
    │╳│   │╳│
    2─3 ─ 6─7
    """
    left, right = ([(a, b) for a in of for b in of if a < b] for of in ((0, 1, 2, 3), (4, 5, 6, 7)))
    graph, partitioner = LiveGraph(), create("byte-lp", parts=2, refresh=None)
    partitioner.update(
        graph.apply(0, edge_events([(1, *p) for p in [*left, *right, (3, 6), (8, 1), (9, 5)]]))
    )
    home = partitioner.home()
    assert len(set(home[:4])) == len(set(home[4:8])) == 1
    assert home[0] != home[4]
    changes = [(-1, 0, v) for v in (1, 2, 3)] + [(1, 0, v) for v in (4, 5, 6, 7)]
    # One more on the left, or the right would be over its capacity.
    changes += [(-1, 9, 5), (1, 9, 1), (1, 9, 2), (1, 9, 3)]
    partitioner.update(graph.apply(1, edge_events(changes)))
    home = partitioner.home()
    assert home[0] == home[4]
    assert home[9] == home[1]
