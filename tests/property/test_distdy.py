"""DistDy against plain Python: the whole algorithm node by node, its payoff by brute force, its capacities."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream.partition.distdy import DistDy
from stream.partition.distdy_base import REFERENCE_BYTES, base_partition
from stream.partition.distdy_kernels import refine
from stream.partition.interface import CapacityError, PartitionError, create
from stream.partition.quality import sampled_share
from stream.snapshots.delta import Csr, delta_of


def snapshot(
    tau, num_nodes, pairs, features=(), node_features=0, segments=1, loops=(), before=None, touch=None
):
    """A delta with a given undirected graph and nodes whose segments changed, {node: how many}.

    ``before`` is the delta before it; it touches what changed since, and ``touch``: by default all nodes.
    """
    pairs = sorted({tuple(sorted(p)) for p in pairs if p[0] != p[1]})
    neighbours = [
        sorted([b for a, b in pairs if a == v] + [a for a, b in pairs if b == v]) for v in range(num_nodes)
    ]
    indptr = np.cumsum([0, *map(len, neighbours)])
    indices = np.array([u for row in neighbours for u in row], np.int32)
    live = sorted({v for p in pairs for v in p} | set(loops))
    changed = dict(features)
    was = set() if before is None else set(before.live.tolist())
    touched = set(live) | was if touch is None else set(touch) | set(changed) | set(live) ^ was
    for v in range(num_nodes if touch is not None and before is not None else 0):
        row = before.graph.indices[before.graph.indptr[v] : before.graph.indptr[v + 1]].tolist()
        touched |= {v} if row != neighbours[v] else set()
    none = np.empty(0, np.int64)
    return delta_of(
        tau=tau,
        num_nodes=num_nodes,
        op=np.empty(0, np.int8),
        src=none,
        dst=none,
        t=none,
        weight=np.empty(0, np.float32),
        graph=Csr(indptr, indices, np.ones(len(indices), np.float32)),
        live=np.array(live, np.int64),
        touched=np.array(sorted(touched), np.int64),
        before=before,
        feature_nodes=np.array(sorted(changed), np.int64),
        changed_segments=np.array([changed[v] for v in sorted(changed)], np.int32),
        segments=segments,
        node_features=node_features,
    )


class PlainDistDy:
    """Algs. 1 to 3 in the order of the paper's lines, with the readings of docs/partitioning.md."""

    def __init__(
        self,
        parts,
        window=4,
        fanout=10,
        batch=512,
        eta=6.0,
        sweeps=300,
        capacity=None,
        reward="stay",
        max_imbalance=1.2,
        sweep_all=1.0,
    ):
        self.bound, self.touched = max_imbalance, 0
        self.sweep_all = math.inf if sweep_all is None else sweep_all
        self.K, self.w, self.f, self.B, self.eta, self.M = parts, window, fanout, batch, eta, sweeps
        self.capacity, self.sign = capacity, 1 if reward == "stay" else -1
        self.owner, self.history, self.mu, self.least = (
            {},
            [[0] * parts] * (window - 1),
            [0.0] * parts,
            math.inf,
        )

    def update(self, delta):
        K, graph = self.K, delta.graph
        live = delta.live.tolist()
        before = {v: self.owner[v] for v in live if v in self.owner}
        row = {v: graph.indices[graph.indptr[v] : graph.indptr[v + 1]].tolist() for v in live}
        C = REFERENCE_BYTES + 4 * (delta.node_features or 32)
        changed = dict(zip(delta.feature_nodes.tolist(), delta.changed_segments.tolist(), strict=True))
        c = {
            v: REFERENCE_BYTES + 4 * (delta.node_features or 32) * changed.get(v, 0) // delta.segments
            for v in live
        }
        if not live:
            self.owner, self.history = {}, [*self.history, [0] * K][1:]
            return {}
        stored = [sum(a[k] for a in self.history) for k in range(K)]
        D = self.capacity or [int(4.0 * (sum(stored) + len(live) * C) / K) + C] * K
        free = [D[k] - stored[k] for k in range(K)]

        def size(v, k):
            return c[v] if before.get(v) == k else C

        most = len(live) if self.bound is None else min(math.floor(self.bound * len(live) / K + 1), len(live))

        def roomiest(below):
            """Most free memory, then the lower server."""
            held = list(owner.values())
            return max(
                (k for k in range(K) if held.count(k) < below and free[k] >= C),
                key=lambda k: (free[k], -k),
                default=None,
            )

        owner = {}  # Alg. 1
        for v in live:
            if v in before and c[v] <= free[before[v]]:
                owner[v] = before[v]
                free[owner[v]] -= c[v]
        for v in live:
            if v not in owner:
                k = roomiest(most)
                k = roomiest(len(live)) if k is None else k
                if k is None:
                    raise CapacityError
                owner[v] = k
                free[k] -= C
        for v in reversed(live):
            k = owner[v]
            if before.get(v) == k and list(owner.values()).count(k) > most:
                m = roomiest(most)
                if m is None:
                    break
                owner[v] = m
                free[k] += c[v]
                free[m] -= C

        chance = {v: float(np.float32(min(len(row[v]), self.f) / len(row[v]))) for v in live if row[v]}
        scale = C * self.B / len(live)

        def weight(u, v):
            return scale * (chance[u] + chance[v])

        def utility():
            """Every pair inside counts at both of its ends, in whole multiples of 2^-30."""
            total = 0
            for v in live:
                same = sum(owner[u] == owner[v] for u in row[v])
                total += int(min(len(row[v]), self.f) * same / len(row[v]) * 2**30 + 0.5) if row[v] else 0
            return scale * (total / 2**30)

        def load():
            return [sum(size(v, k) for v in live if owner[v] == k) for k in range(K)]

        def prices(extra, least):
            total = [0.0] * K
            for j in range(self.w):
                for k in range(K):
                    stays = sum(a[k] for a in self.history[j:]) + extra[k]
                    total[k] += least / (2 * self.eta) * math.exp(math.log(2 * self.eta) * stays / D[k])
            return total

        U, a = utility(), load()
        least = U / max(sum(stored) + sum(a), 1) if math.isinf(self.least) else self.least
        price = prices([0] * K, least)
        g = math.log(2 * self.eta) - 1
        toll = [(1 + g / len(live)) * price[k] * sum(a) / len(live) for k in range(K)]
        reward = [self.sign * x for x in self.mu]
        later_reward = [max(x, 0.0) for x in reward]
        count = [sum(owner[v] == k for v in live) for k in range(K)]
        touched = set(delta.touched.tolist()) & set(live)
        self.touched += len(touched)
        if self.touched >= self.sweep_all * len(live):
            due, self.touched = set(live), 0
        else:
            due = touched | {v for v in live if v not in before or before[v] != owner[v]}
        asked = due
        for _ in range(self.M):  # Alg. 2
            later, moved = set(), 0
            for v in sorted(due):
                inside = [0.0] * K
                for u in row[v]:
                    inside[owner[u]] += weight(u, v)
                k = owner[v]

                def score(m, v=v, k=k, inside=inside):
                    gain = inside[m] - toll[m] * (count[m] + (m != k))
                    own = (reward if v in asked else later_reward)[m]
                    return gain + own if before.get(v) == m else gain

                best = k
                for m in range(K):
                    if m != k and count[m] < most and score(m) > score(best) and size(v, m) <= free[m]:
                        best = m
                if best != k:
                    free[k] += size(v, k)
                    free[best] -= size(v, best)
                    count[k] -= 1
                    count[best] += 1
                    owner[v] = best
                    moved += 1
                    later |= {u for u in row[v] if owner[u] != best}
            if not moved:
                break
            due = later
        U, a = utility(), load()  # Alg. 3
        if U > 0:
            self.least = min(self.least, U / (sum(stored) + sum(a)))
        least = U / max(sum(stored) + sum(a), 1) if math.isinf(self.least) else self.least
        price = prices(a, least)
        self.mu = [max(g * (U / K - price[k] * a[k]) / len(live), 0.0) for k in range(K)]
        self.history = [*self.history, a][1:] if self.w > 1 else []
        self.owner = owner
        return owner


def pair_lists(n):
    return st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=2 * n)


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
)
def test_every_owner_equals_the_plain_algorithm(
    stream, parts, window, width, reward, bound, capacity, sweep_all
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
    )
    plain = PlainDistDy(
        parts,
        window=window,
        fanout=2,
        reward=reward,
        max_imbalance=bound,
        capacity=capacity and [capacity] * parts,
        sweep_all=sweep_all,
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
    chance = sampled_share(delta.rows, np.arange(n), 2).astype(np.float32).astype(np.float64)
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


def one_sweep(case, owner, free, sweeps=1):
    delta = case["delta"]
    n = delta.num_nodes
    known = np.stack([owner, case["chance"]], axis=1).astype(np.float32)
    made, moves, _ = refine(
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
        case["most"],
        sweeps,
        *(np.zeros(n, np.bool_) for _ in range(3)),
    )
    owner[:] = known[:, 0]
    return made, moves


@settings(max_examples=300, deadline=None)
@given(refinements())
def test_no_sweep_worsens_the_payoff_and_the_end_is_a_local_optimum(case):
    owner = np.array(case["owner"], np.int32)
    free = np.full(case["parts"], case["room"], np.int64)
    held_at_start = np.bincount(owner, minlength=case["parts"])
    for _ in range(40):
        start = payoff(owner, case)
        _, moved = one_sweep(case, owner, free)
        assert payoff(owner, case) >= start - 1e-9
        assert (free >= 0).all()
        held = np.bincount(owner, minlength=case["parts"])
        assert (held <= np.maximum(held_at_start, case["most"])).all()
        if not moved:
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


def base(before, stay_bytes, free, most):
    """Owners, free bytes and nodes without a place after Alg. 1; a whole vector is 20 bytes."""
    before, stay = np.array(before, np.int32), np.array(stay_bytes, np.int64)
    known, free = np.stack([before, before], axis=1).astype(np.float32), np.array(free, np.int64)
    old = before >= 0
    _, without = base_partition(
        np.flatnonzero(~old),
        before,
        known,
        stay - REFERENCE_BYTES,
        np.bincount(before[old], stay[old], len(free)).astype(np.int64),
        20,
        free,
        np.bincount(before[old], minlength=len(free)),
        most,
    )
    return known[:, 0].tolist(), free.tolist(), without


def test_the_base_partition_keeps_what_fits_and_spreads_the_rest():
    """Server 0 has no room for node 2's change, so node 2 goes like a new node to the emptiest server."""
    assert base([0, 1, 0, -1], [6, 1, 5, 1], [10, 30, 29], 4) == ([0, 1, 1, 2], [4, 9, 9], 0)


def test_the_base_partition_fills_no_server_past_the_bound_while_memory_allows():
    """Two nodes a server: of the three on server 0 the youngest leaves, and the new one goes past the roomy server 0.

    server 1 is left with room for one whole node, server 2 with room for none.
    """
    owner, _, without = base([0, 0, 0, -1, -1], [1] * 5, [100, 30, 10], 2)
    assert without == 0
    assert owner == [0, 0, 0, 1, 0], "memory goes before balance"
    assert base([0, 0, 0, -1], [1] * 4, [100, 60, 10], 2) == ([0, 0, 1, 1], [98, 20, 10], 0)


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
        ({"sweep_all": -1.0}, "sweep_all ≥ 0, nodes touched as a share of all, or null, found -1.0"),
    ],
)
def test_parameters_out_of_range_are_refused(params, message):
    with pytest.raises(PartitionError, match=message):
        DistDy(parts=3, **params)
