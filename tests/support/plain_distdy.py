"""DistDy in plain Python, node by node in the order of the paper's lines, and deltas of graphs written down as pairs."""

import math

import numpy as np
from hypothesis import strategies as st

from freshet_graph.stream.partition.interface import CapacityError
from freshet_graph.stream.partition.vertex.distdy import REFERENCE_BYTES
from freshet_graph.stream.snapshots.delta import Csr, delta_of


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
        cooling=16,
        move_cost=0.0,
        layers=1,
    ):
        self.move_cost, self.layers = move_cost, layers
        self.cooling, self.charges = cooling, reward == "paper"
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

        rate = plain_rates(row, self.f, self.layers)
        largest = max(rate.values(), default=1.0) if self.layers > 1 else 1.0
        chance = {v: round(rate[v] / largest * 2**30) for v in live if row[v]}
        scale = C * self.B / len(live) * largest

        def utility():
            """Every pair inside counts at both of its ends, in whole multiples of 2^-30."""
            total = 0
            for v in filter(row.get, live):
                same = sum(owner[u] == owner[v] for u in row[v])
                if self.layers > 1:
                    total += chance[v] * same
                else:
                    total += int(min(len(row[v]), self.f) * same / len(row[v]) * 2**30 + 0.5)
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
        count = [sum(owner[v] == k for v in live) for k in range(K)]
        start = owner
        touched = set(delta.touched.tolist()) & set(live)
        self.touched += len(touched)
        placed = {v for v in live if v not in before or before[v] != owner[v]}
        due = touched | placed
        if self.sweep_all and 10 * len(touched) >= 9 * len(live):
            self.touched = 0
        elif self.touched >= self.sweep_all * len(live):
            due, self.touched = set(live), 0
        pairs = sum(map(len, row.values())) // 2
        weight = sum(min(len(row[v]), self.f) for v in live)
        if self.layers > 1:
            weight = sum(chance[v] * len(row[v]) for v in chance) / 2**30
        pair = scale * weight / max(pairs, 1)
        reward = [self.sign * x + self.move_cost * pair for x in self.mu]
        later_reward = [max(self.sign * x, 0.0) + self.move_cost * pair for x in self.mu]
        drops, top = (self.cooling, 2.0 * pair) if len(due) == len(live) else (self.cooling // 4, 1.0 * pair)
        drops = 0 if self.charges and before else min(drops, self.M - 1)
        thresholds = [top * (1 - i / drops) for i in range(drops)]

        def refined(owner, free, count, thresholds):
            """Owners after Alg. 2, and what the payoff rose by."""
            owner, free, count, gained = dict(owner), list(free), list(count), 0.0
            look, later = due, set()
            for sweep in range(self.M):
                again = sweep < len(thresholds)
                for v in sorted(look):
                    inside = [0] * K
                    for u in row[v]:
                        inside[owner[u]] += chance[u] + chance[v]
                    k = owner[v]

                    def score(m, v=v, k=k, inside=inside):
                        gain = scale / 2**30 * inside[m] - toll[m] * (count[m] + (m != k))
                        own = (reward if v in due else later_reward)[m]
                        return gain + own if before.get(v) == m else gain

                    best, reached = k, score(k) - (thresholds[sweep] if again else 0.0)
                    for m in range(K):
                        if m != k and count[m] < most and score(m) > reached and size(v, m) <= free[m]:
                            best, reached = m, score(m)
                    if best != k:
                        gained += reached - score(k)
                        free[k] += size(v, k)
                        free[best] -= size(v, best)
                        count[k] -= 1
                        count[best] += 1
                        owner[v] = best
                        later |= {u for u in row[v] if owner[u] != best and not (again and u in due)}
                if not again:
                    look, later = later, set()
                if not look:
                    break
            return owner, gained

        owner, gained = refined(start, free, count, thresholds)  # Alg. 2
        if gained < 0:
            owner, _ = refined(start, free, count, [])
        U, a = utility(), load()  # Alg. 3
        if U > 0:
            self.least = min(self.least, U / (sum(stored) + sum(a)))
        least = U / max(sum(stored) + sum(a), 1) if math.isinf(self.least) else self.least
        price = prices(a, least)
        self.mu = [max(g * (U / K - price[k] * a[k]) / len(live), 0.0) for k in range(K)]
        self.history = [*self.history, a][1:] if self.w > 1 else []
        self.owner = owner
        return owner


def plain_rates(row, fanout, layers):
    """How often each node with neighbours samples one of them, if every node is embedded once by so many layers."""
    share = {v: min(len(row[v]), fanout) / len(row[v]) for v in row if row[v]}
    reached = total = dict.fromkeys(share, 1.0)
    for _ in range(layers - 1):
        sent = {v: round(2**20 * reached[v] * share[v]) for v in share}
        reached = {v: sum(sent[u] for u in row[v]) / 2**20 for v in share}
        total = {v: total[v] + reached[v] for v in share}
    return {v: share[v] * total[v] for v in share}


def pair_lists(n):
    """Pairs of n nodes, repeats and self-loops among them."""
    return st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=2 * n)
