"""DistDy against plain Python: the whole algorithm node by node, and capacities; payoff, weights and optimum by brute force."""

import itertools
import math
from collections import Counter
from functools import cache

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from plain_distdy import PlainDistDy, pair_lists, snapshot

from freshet_graph.stream.partition.interface import CapacityError, PartitionError, create
from freshet_graph.stream.partition.vertex.base import sampled_share
from freshet_graph.stream.partition.vertex.distdy import PAPER, REFERENCE_BYTES, refine, sampling_rates
from freshet_graph.stream.partition.vertex.pair_totals import FRACTION

changes = st.dictionaries(st.integers(0, 11), st.integers(1, 4), max_size=6)
streams = st.lists(st.tuples(pair_lists(12), changes), min_size=1, max_size=5)


@settings(max_examples=150, deadline=None)
@given(
    streams,
    st.sampled_from([1, 2, 3, 64, 100]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([0, 8]),
    st.sampled_from(["stay", "paper"]),
    st.sampled_from([1.0, 1.2, 2.0, None]),
    st.sampled_from([None, 2_000, 6_000]),
    st.sampled_from([0.0, 1.0, None]),
    st.sampled_from([0, 4, 16]),
    st.sampled_from([1, 3, 300]),
    st.sampled_from([0.0, 0.5, 6.0]),
    st.sampled_from([1, 1, 2, 3]),
)
def test_every_owner_equals_the_plain_algorithm(
    stream, parts, window, width, reward, bound, capacity, sweep_all, cooling, sweeps, move_cost, layers
):
    fast = create(
        "distdy",
        parts=parts,
        window=window,
        fanout=2,
        reward=reward,
        max_imbalance=bound,
        capacity=capacity,
        sweep_all=sweep_all,
        cooling=cooling,
        sweeps=sweeps,
        move_cost=move_cost,
        layers=layers,
    )
    plain = PlainDistDy(
        parts,
        window=window,
        fanout=2,
        reward=reward,
        max_imbalance=bound,
        capacity=capacity and [capacity] * parts,
        sweep_all=sweep_all,
        cooling=cooling,
        sweeps=sweeps,
        move_cost=move_cost,
        layers=layers,
    )
    delta = None
    for tau, (pairs, features) in enumerate(stream):
        delta = snapshot(
            tau, 12, pairs, features if width else {}, width, 4, loops=[0], before=delta, touch=[]
        )
        try:
            owners = plain.update(delta)
        except CapacityError:
            with pytest.raises(CapacityError):
                fast.update(delta)
            return
        fast.update(delta)
        home = fast.home()
        assert {v: int(home[v]) for v in np.flatnonzero(home >= 0).tolist()} == owners


@pytest.mark.parametrize("sweep_all", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("touched", [35, 38])
def test_a_sweep_over_nine_tenths_counts_as_one_over_all(sweep_all, touched):
    """Of 40 nodes; the counter of touches is seen at a last snapshot that touches only six."""
    draws = np.random.default_rng(0)
    fast = create("distdy", parts=3, fanout=2, sweep_all=sweep_all)
    plain, delta = PlainDistDy(3, fanout=2, sweep_all=sweep_all), None
    pairs = [tuple(draws.choice(40, 2, replace=False)) for _ in range(120)]
    for tau, share in enumerate([40, touched, touched, 6, touched, 6]):
        inside = draws.permutation(40)[:share]
        for number, (a, b) in enumerate(pairs):
            if a in inside and b in inside and draws.random() < 0.4:
                pairs[number] = tuple(draws.choice(inside, 2, replace=False))
        delta = snapshot(tau, 40, pairs, loops=range(40), before=delta, touch=inside.tolist())
        assert len(delta.touched) == share
        owners = plain.update(delta)
        fast.update(delta)
        assert dict(enumerate(fast.home().tolist())) == owners


@settings(max_examples=150, deadline=None)
@given(streams, st.integers(1, 4), st.integers(3_000, 12_000), st.booleans())
def test_capacities_hold_in_every_window_or_the_error_says_what_is_missing(stream, parts, capacity, uneven):
    """Tight memory: bytes of the last w snapshots, counted from the owners alone, never pass D^k."""
    limits = [capacity * (1 + uneven * k) // parts for k in range(parts)]
    partitioner = create("distdy", parts=parts, window=3, capacity=limits)
    history, owners, delta = [], {}, None
    for tau, (pairs, features) in enumerate(stream):
        delta = snapshot(tau, 12, pairs, features, 32, 4, before=delta)
        try:
            partitioner.update(delta)
        except CapacityError as error:
            assert "each needs 136 bytes" in str(error)
            assert str(limits) in str(error)
            return
        home = partitioner.home()
        used = [0] * parts
        for v in delta.live.tolist():
            stays = owners.get(v) == home[v]
            used[home[v]] += 8 + 32 * features.get(v, 0) if stays else 136
        owners = {v: int(home[v]) for v in delta.live.tolist()}
        history.append(used)
        for k in range(parts):
            assert sum(a[k] for a in history[-3:]) <= limits[k]


def test_memory_that_cannot_hold_the_nodes_is_an_error_with_the_numbers():
    """The paper's listing would overcommit here: its lines 15 to 19 never check that C fits."""
    delta = snapshot(7, 5, [(0, 1), (2, 3), (3, 4)])
    with pytest.raises(
        CapacityError,
        match=r"cannot place 1 of 5 nodes of snapshot 7: each needs 136 bytes "
        r"and the 2 servers have \[8, 8\] bytes left of \[280, 280\]",
    ):
        create("distdy", parts=2, capacity=280).update(delta)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 1000), st.sampled_from([2, 3, 4, 8]), st.sampled_from([1.0, 1.2, 1.5]), st.booleans())
def test_no_server_holds_more_than_its_bound_whatever_comes_and_goes(seed, parts, bound, shrinks):
    """Dense graphs of any size, where the pull of the neighbours is far above the price of memory."""
    draws = np.random.default_rng(seed)
    partitioner, delta = create("distdy", parts=parts, max_imbalance=bound), None
    for tau in range(5):
        nodes = draws.permutation(30)[: draws.integers(2, 30)] if shrinks else np.arange(6 * (tau + 1))
        delta = snapshot(tau, 30, draws.choice(nodes, (6 * len(nodes), 2)).tolist(), before=delta)
        partitioner.update(delta)
        held = np.bincount(partitioner.home()[delta.live], minlength=parts)
        assert held.max(initial=0) <= bound * len(delta.live) / parts + 1


def test_communities_end_on_servers_of_their_own():
    """Two cliques joined by one pair, and servers that hold five nodes each: only that pair is cut.

    0─1   4─5
    │╳│   │╳│
    2─3 ─ 6─7
    """
    left, right = itertools.combinations([0, 1, 2, 3], 2), itertools.combinations([4, 5, 6, 7], 2)
    partitioner = create("distdy", parts=2, window=1, capacity=5 * 136)
    partitioner.update(snapshot(0, 8, [*left, *right, (3, 6)]))
    home = partitioner.home()
    assert home[:4].tolist() == [home[0]] * 4
    assert home[4:].tolist() == [1 - home[0]] * 4
    assert partitioner.quality().cut == 1 / 13


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"eta": 1.0}, "params of distdy: eta: must be above 1.35"),
        ({"reward": "often"}, "reward: must be 'stay' or 'paper', found 'often'"),
        ({"capacity": [1, 2]}, r"one capacity or 3, found \[1, 2\]"),
        ({"capacity": 0}, "capacity: must be at least 1"),
        ({"capacity": [5, 0, 5]}, "capacity"),
        ({"window": 0}, "window ≥ 1, found 0"),
    ],
)
def test_parameters_out_of_range_are_refused(params, message):
    with pytest.raises(PartitionError, match=message):
        create("distdy", parts=3, **params)


def samples(neighbours, fanout, layers):
    """How often each pair is sampled on average, if every node is embedded once: every possible sample is written out."""

    @cache
    def from_node(v, hops):
        count, size = Counter(), min(fanout, len(neighbours[v]))
        possible = list(itertools.combinations(neighbours[v], size))
        for u in itertools.chain.from_iterable(possible):
            count[min(u, v), max(u, v)] += 1 / len(possible)
            for pair, times in from_node(u, hops - 1).items() if hops > 1 else ():
                count[pair] += times / len(possible)
        return count

    return sum((from_node(v, layers) for v in range(len(neighbours))), Counter())


@settings(max_examples=100, deadline=None)
@given(pair_lists(6), st.integers(1, 4), st.integers(1, 3))
def test_a_pair_weighs_as_often_as_the_layers_sample_it(pairs, fanout, layers):
    """DistDy section 3.4, and its "similar" of several layers."""
    delta = snapshot(0, 6, pairs)
    rows, rates = delta.rows, sampling_rates(delta.rows, fanout, layers)
    sampled = samples([rows.indices[a:b].tolist() for a, b in zip(*rows[:2], strict=True)], fanout, layers)
    for (u, v), times in sampled.items():
        assert rates[u] + rates[v] == pytest.approx(times, rel=1e-4)
    partitioner = create("distdy", parts=2, fanout=fanout, layers=layers)
    partitioner.update(delta)
    home = partitioner.home()
    inside = sum(times for (u, v), times in sampled.items() if home[u] == home[v])
    if sampled:
        assert partitioner.quality().utility == pytest.approx(inside / sampled.total(), rel=1e-4)


@settings(max_examples=100, deadline=None)
@given(streams, st.integers(1, 4))
def test_the_preset_is_the_printed_algorithm(stream, parts):
    preset, plain, delta = create("distdy", parts=parts, preset="paper", capacity=10_000), None, None
    printed = {**PAPER, "capacity": [10_000] * parts}
    plain = PlainDistDy(parts, **printed)
    for tau, (pairs, features) in enumerate(stream):
        delta = snapshot(tau, 12, pairs, features, 8, 4, loops=[0], before=delta, touch=[])
        owners = plain.update(delta)
        preset.update(delta)
        assert {v: int(preset.home()[v]) for v in delta.live.tolist()} == owners


def best_utility(weights, sizes, capacity, window):
    """The largest Σ U of (3) under (3a), by trying all assignments of all snapshots.

    ``weights`` is {pair: W} of each snapshot, ``sizes`` (c of each node, C) of each, ``capacity`` D^k.
    """
    nodes, servers = len(sizes[0][0]), range(len(capacity))
    best = {((None,) * nodes, ()): 0.0}  # by the last assignment and the loads of the last w − 1 snapshots
    for pairs, (extra, full) in zip(weights, sizes, strict=True):
        further = {}
        for owner in itertools.product(servers, repeat=nodes):
            inside = sum(weight for (u, v), weight in pairs.items() if owner[u] == owner[v])
            for (before, loads), total in best.items():
                load = [0] * len(capacity)
                for v, k in enumerate(owner):
                    load[k] += extra[v] if before[v] == k else full
                window_loads = (*loads, tuple(load))
                if any(sum(each[k] for each in window_loads) > capacity[k] for k in servers):
                    continue
                state = owner, window_loads[-(window - 1) :]
                further[state] = max(further.get(state, 0.0), total + inside)
        best = further
    return max(best.values())


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([2, 3]), st.booleans())
def test_utility_is_within_the_competitive_ratio_of_the_offline_optimum(seed, parts, printed):
    """DistDy Theorem 4.2: 2·max(1, ln 2η), if at least 1/η of the memory is in use at every step."""
    draws, eta, nodes, window, full = np.random.default_rng(seed), 6.0, 4, 2, REFERENCE_BYTES + 128
    capacity = [int(draws.uniform(2.5, 5.0) * nodes / parts) * full for _ in range(parts)]
    settings_ = {"preset": "paper"} if printed else {}
    partitioner = create(
        "distdy", parts=parts, window=window, fanout=2, eta=eta, capacity=capacity, **settings_
    )
    weights, sizes, used, reached = [], [], [[0] * parts] * (window - 1), 0.0
    delta, owner = None, [-1] * nodes
    for tau in range(3):
        pairs = draws.integers(0, nodes, (draws.integers(2, 7), 2)).tolist()
        changed = dict(enumerate(draws.integers(2, 5, nodes).tolist()))
        delta = snapshot(tau, nodes, pairs, changed, 32, 4, loops=range(nodes), before=delta)
        try:
            partitioner.update(delta)
        except CapacityError:
            assume(False)
        before, owner = owner, partitioner.home()[:nodes].tolist()
        rates = sampling_rates(delta.rows, 2, 1)
        weights.append({(u, v): rates[u] + rates[v] for u, v in {tuple(sorted(p)) for p in pairs} if u != v})
        sizes.append(([REFERENCE_BYTES + 32 * changed[v] for v in range(nodes)], full))
        reached += sum(weight for (u, v), weight in weights[-1].items() if owner[u] == owner[v])
        load = [0] * parts
        for v, k in enumerate(owner):
            load[k] += sizes[-1][0][v] if before[v] == k else full
        used = [*used, load][-window:]
        assume(eta * sum(map(sum, used)) >= sum(capacity))
    bound = 2 * max(1.0, math.log(2 * eta))
    assert best_utility(weights, sizes, capacity, window) <= bound * reached + 1e-9


def payoff(owner, case):
    """Π of distdy.py's docstring, from scratch."""
    total = sum(case["weight"][p] for p in case["pairs"] if owner[p[0]] == owner[p[1]])
    for k in range(case["parts"]):
        n = sum(o == k for o in owner)
        total -= case["toll"][k] * n * (n + 1) / 2
    return total + sum(case["reward"][k] for k, b in zip(owner, case["before"], strict=True) if k == b)


@st.composite
def refinements(draw):
    n, parts = draw(st.integers(1, 6)), draw(st.integers(1, 3))
    delta = snapshot(0, n, draw(pair_lists(n)), loops=range(n))
    owners = st.lists(st.integers(0, parts - 1), min_size=n, max_size=n)
    tolls = st.lists(st.floats(0, 0.5), min_size=parts, max_size=parts)
    chance = np.rint(sampled_share(delta.rows, np.arange(n), 2) * FRACTION) / FRACTION
    pairs = [
        (u, int(v))
        for u in range(n)
        for v in delta.graph.indices[delta.graph.indptr[u] : delta.graph.indptr[u + 1]]
        if u < v
    ]
    return {
        "delta": delta,
        "parts": parts,
        "pairs": pairs,
        "chance": chance,
        "weight": {p: chance[p[0]] + chance[p[1]] for p in pairs},
        "before": draw(owners),
        "owner": draw(owners),
        "toll": draw(tolls),
        "reward": draw(st.lists(st.floats(-1, 1), min_size=parts, max_size=parts)),
        "room": draw(st.integers(0, 3)),
        "most": draw(st.integers(1, n)),
    }


def sweep(case, owner, free, sweeps=1, thresholds=()):
    """Servers in ``owner`` after so many sweeps; what they gained, who moved and from where."""
    delta = case["delta"]
    n = delta.num_nodes
    known = np.stack([owner, case["chance"] * FRACTION], axis=1).astype(np.int32)
    gained, moved, came_from = refine(
        delta.rows,
        delta.live,
        known,
        1.0,
        np.array(case["before"], np.int32),
        np.full(n, 1 - REFERENCE_BYTES, np.int64),
        2,
        free,
        np.bincount(owner, minlength=case["parts"]),
        *(np.array(case["reward"]),) * 2,
        np.array(case["toll"]),
        np.array(thresholds, np.float64),
        case["most"],
        sweeps,
        *(np.zeros(n, np.bool_) for _ in range(3)),
        np.full(n, -1, np.int32),
    )
    owner[:] = known[:, 0]
    return gained, moved, came_from


@settings(max_examples=300, deadline=None)
@given(refinements())
def test_no_sweep_worsens_the_payoff_and_the_end_is_a_local_optimum(case):
    owner = np.array(case["owner"], np.int32)
    free = np.full(case["parts"], case["room"], np.int64)
    held_at_start = np.bincount(owner, minlength=case["parts"])
    for _ in range(40):
        start = payoff(owner, case)
        _, moved, _ = sweep(case, owner, free)
        assert payoff(owner, case) >= start - 1e-9
        assert (free >= 0).all()
        held = np.bincount(owner, minlength=case["parts"])
        assert (held <= np.maximum(held_at_start, case["most"])).all()
        if not len(moved):
            break
    reached = payoff(owner, case)
    everything = [payoff(o, case) for o in itertools.product(range(case["parts"]), repeat=len(owner))]
    assert reached <= max(everything) + 1e-9
    for v, m in itertools.product(range(len(owner)), range(case["parts"])):
        size = 1 if case["before"][v] == m else 2
        other = owner.copy()
        other[v] = m
        if m != owner[v] and size <= free[m] and (owner == m).sum() < case["most"]:
            assert payoff(other, case) <= reached + 1e-9


@settings(max_examples=300, deadline=None)
@given(refinements(), st.lists(st.floats(0, 3), max_size=4))
def test_what_sweeps_with_thresholds_gain_or_lose_is_told_and_can_be_undone(case, thresholds):
    start = np.array(case["owner"], np.int32)
    owner, free = start.copy(), np.full(case["parts"], case["room"], np.int64)
    gained, moved, came_from = sweep(case, owner, free, 100, thresholds)
    assert abs(gained - (payoff(owner, case) - payoff(start, case))) < 1e-9
    assert (free >= 0).all()
    assert len(set(moved.tolist())) == len(moved)
    assert set(np.flatnonzero(owner != start).tolist()) <= set(moved.tolist())
    owner[moved] = came_from
    assert owner.tolist() == start.tolist()


def test_a_threshold_lets_a_node_leave_an_optimum_of_its_own():
    """Two squares, each with a pair on either server: no node gains alone, but from a loss of one a square comes together.

    0─1   4─5
    │ │   │ │
    3─2   7─6
    """
    squares = [(a + b, a + (b + 1) % 4) for a in (0, 4) for b in range(4)]
    delta = snapshot(0, 8, squares)
    case = {
        "delta": delta,
        "parts": 2,
        "chance": np.full(8, 0.5),
        "before": [-1] * 8,
        "toll": [0.01, 0.01],
        "reward": [0.0, 0.0],
        "most": 8,
    }
    start = [0, 0, 1, 1, 0, 0, 1, 1]
    owner, free = np.array(start, np.int32), np.full(2, 100, np.int64)
    gained, *_ = sweep(case, owner, free, 100)
    assert (gained, owner.tolist()) == (0, start)
    gained, *_ = sweep(case, owner, free, 100, [0.5])
    assert gained > 3
    assert len(set(owner[:4])) == len(set(owner[4:])) == 1
