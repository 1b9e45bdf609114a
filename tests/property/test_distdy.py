"""DistDy against plain Python: the whole algorithm node by node, its capacities, its bound on nodes."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_distdy import PlainDistDy, pair_lists, snapshot

from stream.partition.interface import CapacityError, PartitionError, create
from stream.partition.vertex.distdy import DistDy

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
)
def test_every_owner_equals_the_plain_algorithm(
    stream, parts, window, width, reward, bound, capacity, sweep_all, cooling, sweeps, move_cost
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
        ({"eta": 1.0}, "eta > e/2, so that rewards are positive, found 1.0"),
        ({"reward": "often"}, "reward 'stay' or 'paper', found 'often'"),
        ({"fanout": 0}, "fanout ≥ 1, found 0"),
        ({"capacity": [1, 2]}, r"one capacity or 3, each at least 1 byte, found \[1, 2\]"),
        ({"max_imbalance": 0.9}, "max_imbalance ≥ 1, nodes on a server over their mean, or null, found 0.9"),
        ({"capacity": 0}, "each at least 1 byte, found 0"),
        ({"cooling": -1}, "cooling ≥ 0, sweeps with a threshold, found -1"),
        ({"move_cost": -1.0}, "move_cost ≥ 0, in mean weights of a pair, found -1.0"),
        ({"sweep_all": -1.0}, "sweep_all ≥ 0, nodes touched as a share of all, or null, found -1.0"),
    ],
)
def test_parameters_out_of_range_are_refused(params, message):
    with pytest.raises(PartitionError, match=message):
        DistDy(parts=3, **params)
