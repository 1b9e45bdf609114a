"""byte-lp against plain Python: every sweep node by node, crowded parts, traffic, and the bound that always holds."""

import math

import numpy as np
import pytest
from edge_events import edge_events
from hypothesis import given, settings
from hypothesis import strategies as st

from stream.partition.byte_lp_kernels import shed, sweep, traffic
from stream.partition.interface import PartitionError, create
from stream.partition.quality import sampled_share
from stream.snapshots.adjacency import build_adjacency
from stream.snapshots.delta import Csr
from stream.snapshots.graph import LiveGraph
from stream.snapshots.pairs import pair_keys

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
        "chance": sampled_share(rows, np.arange(n), 2).astype(np.float32).astype(np.float64),
        "uses": draw(st.sampled_from([1.0, 4.0])),
        "live": live,
        "before": before,
        "owner": owner,
        "count": np.bincount(owner[live], minlength=parts),
        "move_cost": draw(st.sampled_from([0.0, 0.7, 5.0])),
        "capacity": math.ceil(draw(st.sampled_from([1.0, 1.05, 1.2, 9.0])) * max(len(live), 1) / parts),
    }


def neighbours(case, v):
    rows = case["rows"]
    return rows.indices[rows.start[v] : rows.end[v]].tolist()


def known(case):
    """Parts and chances as the kernels take them."""
    return np.stack([case["owner"], case["chance"]], axis=1).astype(np.float32)


def marks(case):
    return np.zeros(len(case["owner"]), np.bool_)


def worths(case, owner, v):
    """What each part is worth to v, without balance."""
    chance, home = case["chance"], case["before"][v]
    worth = [0.0] * len(case["count"])
    for u in neighbours(case, v):
        worth[owner[u]] += case["uses"] * (chance[u] + chance[v])
    return [w - case["move_cost"] * (home >= 0 and p != home) for p, w in enumerate(worth)]


def plain_sweep(case, first, gamma, sweeps):
    owner, count = case["owner"].tolist(), case["count"].tolist()
    due, changes, ever = set(first), 0, set()
    for made in range(sweeps):
        later, changed = set(), 0
        for v in sorted(due):
            worth = worths(case, owner, v)
            k = owner[v]
            score = {p: worth[p] - gamma * (count[p] - (p == k)) for p in range(len(count))}
            best = k
            for p in range(len(count)):
                if p != k and count[p] < case["capacity"] and score[p] > score[best]:
                    best = p
            if best != k:
                owner[v] = best
                count[k] -= 1
                count[best] += 1
                changed += 1
                ever.add(v)
                later |= {u for u in neighbours(case, v) if owner[u] != best}
        changes += changed
        if not changed:
            return owner, (made + 1, changes), ever
        due = later
    return owner, (sweeps, changes), ever


@settings(max_examples=200, deadline=None)
@given(cases(), st.sampled_from([0.0, 0.3, 2.0]), st.integers(0, 4), st.data())
def test_every_sweep_equals_the_plain_rule(case, gamma, sweeps, data):
    live = case["live"].tolist()
    first = sorted(data.draw(st.sets(st.sampled_from(live)))) if live else []
    expected = plain_sweep(case, first, gamma, sweeps)
    now, count, one, other = known(case), case["count"].copy(), marks(case), marks(case)
    *made, movers = sweep(
        case["rows"],
        now,
        case["uses"],
        case["before"],
        count,
        np.array(first, np.int64),
        case["move_cost"],
        gamma,
        case["capacity"],
        sweeps,
        one,
        other,
    )
    owner = now[:, 0].astype(int)
    assert (owner.tolist(), tuple(made), set(movers.tolist())) == expected
    assert len(movers) == len(expected[2])
    assert count.tolist() == np.bincount(owner[live], minlength=len(count)).tolist()
    assert not one.any()
    assert not other.any()


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


@settings(max_examples=200, deadline=None)
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


@settings(max_examples=100, deadline=None)
@given(cases())
def test_traffic_is_fetches_in_all_uses_and_moves(case):
    owner, before = case["owner"], case["before"]
    live = case["live"].tolist()
    fetched = sum(
        case["uses"] * (case["chance"][u] + case["chance"][v])
        for v in live
        for u in neighbours(case, v)
        if u < v and owner[u] != owner[v]
    )
    moved = sum(before[v] >= 0 and before[v] != owner[v] for v in live)
    found = traffic(case["rows"], known(case), case["uses"], before, case["move_cost"])
    assert found == pytest.approx(fetched + case["move_cost"] * moved)


@settings(max_examples=40, deadline=None)
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


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"move_cost": -1.0}, "byte-lp takes move_cost ≥ 0, found -1.0"),
        ({"pair_cost": -1.0}, "byte-lp takes pair_cost ≥ 0, found -1.0"),
        ({"tries": 0}, "byte-lp takes tries from 1 to 100, found 0"),
        ({"refresh": -1.0}, "byte-lp takes refresh ≥ 0, found -1.0"),
        ({"uses": 0.0}, "byte-lp takes uses > 0, trainings on a snapshot, or null, found 0.0"),
        ({"fanout": 0}, "byte-lp takes fanout ≥ 1, found 0"),
    ],
)
def test_parameters_out_of_range_are_refused(params, message):
    with pytest.raises(PartitionError, match=message):
        create("byte-lp", parts=2, **params)
