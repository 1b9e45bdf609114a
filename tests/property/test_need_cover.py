"""The sealed-snapshot need cover against plain Python, event by event; and the bounds that no rule of SEP may break."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sep_streams import batches, first_draw, seal, snapshot, streams, tie_order

from freshet_graph.stream.partition.interface import PartitionError, Why, create

f32 = np.float32


class PlainCover:
    """Sets and dictionaries, a snapshot at a time; every load is counted from the start."""

    def __init__(self, parts, seed, hubs, time_constant, past_weight):
        self.P, self.seed, self.k, self.T, self.past = parts, seed, hubs, time_constant, f32(past_weight)
        self.home, self.A, self.shared = {}, {}, []
        self.need, self.at_home, self.other, self.at_other = {}, {}, {}, {}
        self.sizes, self.events, self.unit, self.latest = [0] * parts, 0, 1.0, None

    def update(self, events, num_nodes):
        self.decay(events)
        inserts = [(i, j) for op, i, j, _ in events if op > 0]
        nodes = list(dict.fromkeys(v for edge in inserts for v in edge))
        near = {v: [] for v in nodes}
        for i, j in inserts:
            if i != j:
                near[i].append(j)
                near[j].append(i)
        now = {
            v: [f32(x.get(v, f32(0))) / f32(self.unit) for x in (self.need, self.at_home, self.at_other)]
            for v in nodes
        }
        before = dict(self.home)
        budget, kept_shared = int(self.k * num_nodes), self.shared
        self.place(nodes, near, inserts, now, before, sum(self.sizes) + len(inserts))
        self.shared = list(self.select(nodes, near, now, budget, kept_shared))
        self.place(nodes, near, inserts, now, before, None)
        for v in nodes:
            if v in before and before[v] != self.home[v]:
                stays = now[v][2] if self.other.get(v) == self.home[v] else f32(0)
                now[v][1:], self.other[v] = [stays, now[v][1]], before[v]
        self.shared = kept_shared
        picked = self.select(nodes, near, now, budget, kept_shared)
        for v in {*self.shared, *nodes}:
            if v in picked:
                self.A[v] = {*self.A.get(v, ()), self.home[v]} if v in self.shared else {self.home[v]}
            else:
                self.A[v] = {self.home[v]}
        out = self.assign(events, len(inserts), picked)
        for v in nodes:
            self.learn(v, near[v], now[v], picked)
        self.shared = [v for v in nodes if v in picked] + [
            v for v in self.shared if v in picked and v not in near
        ]
        self.events += len(events)
        return out

    def decay(self, events):
        if self.T is None or not events:
            return
        latest = max(t for *_, t in events) * 1_000_000
        if self.latest is not None and latest > self.latest:
            fading = math.exp(-(latest - self.latest) / 1_000_000 / self.T)
            if fading * 1e15 < self.unit:
                for weights in (self.need, self.at_home, self.at_other):
                    for v in weights:
                        weights[v] = weights[v] * f32(fading / self.unit)
                self.unit = 1.0
            else:
                self.unit /= fading
        self.latest = latest if self.latest is None else max(latest, self.latest)

    def loads(self, inserts, without):
        """Edges a part: those assigned, and what placing has decided of this snapshot, but for what goes with a node."""
        load, homes = list(self.sizes), [0] * self.P
        for v, p in self.home.items():
            homes[p] += v != without
        for i, j in inserts:
            if without in (i, j) and without not in self.shared:
                continue
            at = [self.home.get(v) for v in (i, j) if v not in self.shared]
            if at and at[0] is not None and at[0] == at[-1]:
                load[at[0]] += 1
        return load, homes

    def place(self, nodes, near, inserts, now, before, edges):
        edges = edges or sum(self.loads(inserts, None)[0])
        placed = len({*self.home, *nodes})
        take, keep = 1.04 * edges / self.P + 4.0, 1.08 * edges / self.P + 4.0
        cap = 1.3 * placed / self.P + 2.0
        for v in nodes:
            around = [self.home.get(u) for u in near[v] if u not in self.shared]
            old, here = before.get(v), self.home.get(v)
            weight = {}
            if old is not None:
                weight[old] = float(around.count(old)) + float(now[v][1])
                other = self.other.get(v)
                if other is not None and other != old:
                    weight[other] = float(around.count(other)) + float(now[v][2])
            for p in around:
                if p is not None:
                    weight.setdefault(p, float(around.count(p)))
            load, homes = self.loads(inserts, v)
            score = {p: w * (1.0 - homes[p] / (2.0 * cap)) for p, w in weight.items()}
            fit = [
                p
                for p in score
                if score[p] > 0 and (load[p] <= keep if p == here else load[p] <= take and homes[p] <= cap)
            ]
            if fit:
                self.home[v] = max(fit, key=lambda p: (score[p], p == here, -load[p]))
            elif here is None or load[here] > keep:
                start = first_draw(self.seed, v, self.P)
                order = [(start + p) % self.P for p in range(self.P)]
                roomy = [p for p in order if load[p] <= take and homes[p] <= cap]
                self.home[v] = min(roomy or order, key=lambda p: load[p])

    def select(self, nodes, near, now, budget, was_shared):
        waiting = [v for v in was_shared if v not in near]
        everyone = nodes + waiting
        key = {v: now[v][0] * self.past for v in nodes}
        for v in nodes:
            key[v] = key[v] + f32(sum(self.home[u] != self.home[v] for u in near[v]))
        for v in waiting:
            key[v] = self.need[v] / f32(self.unit) * self.past
        buckets = {}
        by_turn = everyone[::-1]  # stacks: the last one in is the first one out
        for v in sorted(by_turn, key=lambda v: v in was_shared):
            if key[v] > 0:
                buckets.setdefault(int(key[v].view(np.int32)) >> 20, []).append(v)
        picked = {}
        while buckets and len(picked) < budget:
            largest = max(buckets)
            v = buckets[largest].pop()
            if not buckets[largest]:
                del buckets[largest]
            of = int(key[v].view(np.int32)) >> 20
            if not key[v] > 0:
                continue
            if of < largest:
                buckets.setdefault(of, []).append(v)
                continue
            picked[v] = len(picked)
            for u in near.get(v, ()):
                if self.home[u] != self.home[v]:
                    key[u] = key[u] - f32(1)
        return picked

    def assign(self, events, inserts, picked):
        most = 1.02 * (sum(self.sizes) + inserts) / self.P
        out = []
        for e, (op, i, j, _) in enumerate(events):
            part = -1
            if op > 0 and i in picked and j in picked:
                order, every = tie_order(self.seed, self.events + e), set(range(self.P))
                light = {p for p in every if self.sizes[p] <= most}
                among = self.A[i] & self.A[j] & light or (self.A[i] | self.A[j]) & light or every
                part = min(among, key=lambda p: (self.sizes[p], order(p)))
            elif op > 0 and (i in picked or j in picked or self.home[i] == self.home[j]):
                part = self.home[j] if i in picked else self.home[i]
            out.append(part)
            if part >= 0:
                self.sizes[part] += 1
                for v in {i, j} & set(picked):
                    self.A[v].add(part)
        return out

    def learn(self, v, near, now, picked):
        needed, inside, votes = now
        part = self.other.get(v)
        for u in near:
            if self.home[u] != self.home[v] and picked.get(v, math.inf) <= picked.get(u, math.inf):
                needed = needed + f32(1)
            if u in picked:
                continue
            if self.home[u] == self.home[v]:
                inside = inside + f32(1)
            elif self.home[u] == part:
                votes = votes + f32(1)
            else:
                votes = votes - f32(1)
                if votes < 0:
                    part, votes = self.home[u], -votes
        self.other[v] = part
        self.need[v], self.at_home[v], self.at_other[v] = (
            x * f32(self.unit) for x in (needed, inside, votes)
        )


@settings(max_examples=300, deadline=None)
@given(
    st.one_of(streams(1), streams(8), streams(20), streams(60)),
    st.sampled_from([1, 2, 4, 64, 100]),
    st.sampled_from([0.0, 0.1, 0.3, 1.0]),
    st.sampled_from([None, 30.0, 3.0, 0.2]),
    st.sampled_from([0.0, 0.25, 1.0]),
    st.integers(0, 3),
    st.integers(0, 4),
)
def test_every_event_equals_the_plain_algorithm(stream, parts, hubs, constant, past, seed, restart):
    params = {"parts": parts, "seed": seed, "hubs": hubs, "time_constant": constant, "past_weight": past}
    fast, plain = create("sep", **params), PlainCover(**params)
    seen = 0
    for tau, events in batches(stream):
        if tau == restart:
            state = fast.state()
            fast = create("sep", **params)
            fast.restore(state)
        seen = max([seen, *(max(i, j) + 1 for _, i, j, _ in events)])
        before, homes = {v: set(held) for v, held in plain.A.items()}, dict(plain.home)
        assignment = fast.update(snapshot(tau, seen, events))
        assert assignment.event_part.tolist() == plain.update(events, seen)
        home = fast.home()
        assert {v: int(home[v]) for v in np.flatnonzero(home >= 0).tolist()} == plain.home
        seal(before, assignment)
        assert before == plain.A
        for node, part, why in zip(
            assignment.node.tolist(), assignment.part.tolist(), assignment.why.tolist(), strict=True
        ):
            rehomed = plain.home[node] == part and homes.get(node) != part
            assert (why in (Why.NEW, Why.MOVED)) == rehomed
            assert (why == Why.NEW) == (rehomed and node not in homes)

        quality = fast.quality()
        shared = sum(len(held) > 1 for held in plain.A.values())
        assert shared <= math.floor(hubs * seen)
        assert all(held == {plain.home[v]} for v, held in plain.A.items() if v not in plain.shared)
        if seen:
            factor = (sum(map(len, plain.A.values())) + seen - len(plain.A)) / seen
            assert math.isclose(quality.replication_factor, factor)
            assert factor <= hubs * parts + (1 - hubs) + 1e-12
            assert quality.shared_share <= hubs


@pytest.mark.parametrize(("name", "nodes", "edges"), [("sep", 300, 400), ("sep-centrality", 60, 80)])
@pytest.mark.parametrize("hubs", [0.02, 0.05, 0.2])
@pytest.mark.parametrize("constant", [None, 20.0, 3.0])
def test_both_ends_of_every_assigned_insert_are_in_its_part_and_the_budget_holds_at_every_snapshot(
    name, nodes, edges, hubs, constant
):
    """Hubs that change from snapshot to snapshot, so that former ones give up parts all the time."""
    demoted = moved = 0
    for seed in range(10):
        draws = np.random.default_rng(seed)
        parts = int(draws.integers(2, 9))
        partitioner, parts_of = create(name, parts=parts, hubs=hubs, time_constant=constant, seed=seed), {}
        for tau in range(12):
            around = draws.integers(0, nodes, nodes // 40 + 3)
            src = np.where(
                draws.random(edges) < 0.5, draws.choice(around, edges), draws.integers(0, nodes, edges)
            )
            ends = zip(src.tolist(), draws.integers(0, nodes, edges).tolist(), strict=True)
            events = [(1, i, j, 10 * tau) for i, j in ends]
            assignment = partitioner.update(snapshot(tau, nodes, events))
            seal(parts_of, assignment)
            demoted += int((assignment.why == Why.DEMOTED).sum())
            moved += int((assignment.why == Why.MOVED).sum())
            for (_, i, j, _), part in zip(events, assignment.event_part.tolist(), strict=True):
                assert part < 0 or (part in parts_of[i] and part in parts_of[j])
            assert sum(len(held) > 1 for held in parts_of.values()) <= math.floor(hubs * nodes)
            assert sum(map(len, parts_of.values())) <= nodes * (hubs * parts + 1 - hubs) + 1e-9
        assert name != "sep" or partitioner.quality().edge_balance < 1.1
    assert demoted, "the streams must have shared nodes that are demoted"
    assert bool(moved) == (name == "sep"), "and nodes that move, where the rule moves any"


def test_a_node_is_shared_for_the_edges_that_this_saves_and_not_for_its_degree():
    """Two stars, each in a part of its own, and one node that both know: the bridge is shared, not the centres."""
    partitioner = create("sep", parts=2, hubs=0.05, seed=1)
    stars = [(1, centre, leaf, 0) for centre in (0, 20) for leaf in range(centre + 1, centre + 20)]
    partitioner.update(snapshot(0, 41, stars))
    assert len(set(partitioner.home()[:20])) == len(set(partitioner.home()[20:40])) == 1
    assert partitioner.home()[0] != partitioner.home()[20]
    bridges = [(1, 40, v, 1) for v in (1, 2, 3, 21, 22, 23)]
    assignment = partitioner.update(snapshot(1, 41, bridges))
    assert (assignment.event_part >= 0).all()
    copied = assignment.node[assignment.why == Why.REPLICATED]
    assert copied.tolist() == [40]


def test_a_steady_past_keeps_its_shared_node_only_with_past_weight():
    """Node 40 needed its copies for long; another needs the one place in the budget a little more, once."""
    kept = {}
    for past in (0.0, 1.0):
        partitioner = create("sep", parts=2, hubs=0.025, seed=1, past_weight=past)
        stars = [(1, centre, leaf, 0) for centre in (0, 20) for leaf in range(centre + 1, centre + 20)]
        partitioner.update(snapshot(0, 42, stars))
        for tau in range(1, 5):
            partitioner.update(snapshot(tau, 42, [(1, 40, v, tau) for v in (1, 2, 21, 22)]))
        partitioner.update(snapshot(5, 42, [(1, 41, v, 5) for v in (1, 2, 3, 21, 22, 23)]))
        kept[past] = set(partitioner.shared.tolist())
    assert kept == {0.0: {41}, 1.0: {40}}


def test_forward_decay_brings_its_unit_back_before_anything_overflows():
    partitioner = create("sep", parts=2, hubs=0.5, time_constant=1.0)
    for tau in range(12):
        partitioner.update(snapshot(tau, 4, [(1, tau % 4, (tau + 1) % 4, 8 * tau)]))
        assert 1.0 <= partitioner.unit <= 1e15
        assert all(
            np.isfinite(x).all()
            for x in (partitioner.nodes[name] for name in ("need", "at_home", "at_other"))
        )
    assert partitioner.latest == 88_000_000


def test_states_of_another_partitioner_are_refused_with_what_to_do():
    former, new = create("sep-centrality", parts=2), create("sep", parts=2)
    with pytest.raises(
        PartitionError, match=r"not a state of sep as of this release, it has no shared. Remove the"
    ):
        new.restore(former.state())
    with pytest.raises(
        PartitionError, match="not a state of sep-centrality as of this release, it has no cent"
    ):
        former.restore(new.state())
