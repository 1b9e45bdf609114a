"""DistDy's refinement: its payoff by brute force, sweeps that only gain, and thresholds."""

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_distdy import pair_lists, snapshot

from stream.partition.vertex.distdy_base import REFERENCE_BYTES
from stream.partition.vertex.distdy_kernels import refine
from stream.partition.vertex.pair_totals import FRACTION
from stream.partition.vertex.quality import sampled_share


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
