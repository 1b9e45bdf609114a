"""SEP by centrality, online and in two passes, against plain Python, event by event; and the bounds that SPEED proves."""

import itertools
import math
from collections import defaultdict
from dataclasses import astuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sep_streams import batches, seal, snapshot, splitmix64, streams, tie_order

from freshet_graph.stream.partition.edge import base, sep
from freshet_graph.stream.partition.edge.load_planes import smallest_flipped
from freshet_graph.stream.partition.edge.sep import better_end
from freshet_graph.stream.partition.interface import PartitionError, Why, create


class PlainSep:
    """SPEED Alg. 1 with sets, a snapshot at a time."""

    def __init__(self, parts, seed, hubs, time_constant, balance_weight):
        self.P, self.seed, self.k, self.T, self.lam = parts, seed, hubs, time_constant, balance_weight
        self.A, self.home, self.cent = {}, {}, {}
        self.sizes, self.events, self.t0, self.all_nodes = [0] * parts, 0, None, None

    def pass_one(self, events):
        times = np.array([t for *_, t in events])
        weight = np.ones(len(events))
        if self.T is not None and events:
            self.t0 = times.max() if self.t0 is None else self.t0
            weight = np.exp((times * 1_000_000 - self.t0 * 1_000_000) / (self.T * 1_000_000))
        for (op, i, j, _), w in zip(events, weight, strict=True):
            for v in {i, j} if op > 0 else ():
                self.cent[v] = self.cent.get(v, 0.0) + w

    def update(self, events, num_nodes):
        if self.all_nodes is None:
            self.pass_one(events)
        nodes = range(self.all_nodes or num_nodes)
        budget = int(self.k * len(nodes))
        start = splitmix64(self.seed)
        hubs = set(sorted(nodes, key=lambda v: (-self.cent.get(v, 0.0), splitmix64(start ^ v)))[:budget])
        former = sorted(
            (v for v in self.A if len(self.A[v]) > 1 and v not in hubs), key=lambda v: (self.cent[v], v)
        )
        needing = {
            v
            for op, i, j, _ in events
            for v in (i, j)
            if op > 0
            and (i not in self.home or self.home[i] != self.home.get(j))
            and v in hubs
            and len(self.A.get(v, ())) < 2
        }
        shared = sum(len(parts) > 1 for parts in self.A.values())
        for v in former[: max(shared + len(needing) - budget, 0)]:
            self.A[v] = {self.home[v]}
        out = []
        for op, i, j, _ in events:
            order = tie_order(self.seed, self.events)
            self.events += 1
            out.append(-1 if op < 0 else self.assign(i, j, order, hubs))
        return out

    def assign(self, i, j, order, hubs):
        """Of equal scores in two classes, those of the class that comes first."""
        Ai, Aj = self.A.get(i, set()), self.A.get(j, set())
        if Ai and Aj and not (i in hubs and j in hubs):
            among = Ai & Aj
            if not among and (i in hubs) != (j in hubs):
                among = Aj if i in hubs else Ai
            if not among:
                return -1
        else:
            scores = {p: self.score(i, j, p) for p in range(self.P)}
            tied = {p for p in scores if scores[p] == max(scores.values())}
            among = tied & Ai & Aj or tied & Ai or tied & Aj or tied
        part = min(among, key=lambda p: (self.sizes[p], order(p)))
        self.sizes[part] += 1
        for v in (i, j):
            self.home.setdefault(v, part)
            self.A.setdefault(v, set()).add(part)
        return part

    def score(self, i, j, p):
        both = self.cent[i] + self.cent[j]
        theta = self.cent[i] / both if both > 0 else 0.5
        total = self.lam / (1.0 + max(self.sizes) - min(self.sizes)) * (max(self.sizes) - self.sizes[p])
        if p in self.A.get(i, ()):
            total += 2.0 - theta
        if p in self.A.get(j, ()):
            total += 1.0 + theta
        return total


@settings(max_examples=150, deadline=None)
@given(
    st.one_of(streams(1), streams(8), streams(20)),
    st.sampled_from([1, 2, 4, 63, 64, 100]),
    st.sampled_from([0.0, 0.1, 0.3, 1.0]),
    st.sampled_from([None, 3.0, 0.2]),
    st.sampled_from([1.0, 0.25]),
    st.integers(0, 3),
    st.booleans(),
    st.integers(0, 4),
)
def test_every_event_equals_the_plain_algorithm(
    stream, parts, hubs, constant, weight, seed, whole_file, restart
):
    params = {"parts": parts, "seed": seed, "hubs": hubs, "time_constant": constant, "balance_weight": weight}
    name = "sep-two-pass" if whole_file else "sep-centrality"
    fast, plain = create(name, **params), PlainSep(**params)
    nodes = max([0, *(max(i, j) + 1 for events in stream for _, i, j, _ in events)])
    if whole_file:
        inserts = [(i, j, t) for _, events in batches(stream) for op, i, j, t in events if op > 0]
        src, dst, t = np.array(inserts, np.int64).reshape(-1, 3).T
        fast.foresee(src.copy(), dst.copy(), t * 1_000_000, nodes)
        plain.pass_one([(1, *insert) for insert in inserts])
        plain.all_nodes = nodes
    seen = 0
    for tau, events in batches(stream):
        if tau == restart:
            state = fast.state()
            fast = create(name, **params)
            fast.restore(state)
        seen = max([seen, *(max(i, j) + 1 for _, i, j, _ in events)])
        before, homes = {v: set(parts_) for v, parts_ in plain.A.items()}, set(plain.home)
        assignment = fast.update(snapshot(tau, seen, events))
        assert assignment.event_part.tolist() == plain.update(events, seen)
        home = fast.home()
        assert {v: int(home[v]) for v in np.flatnonzero(home >= 0).tolist()} == plain.home

        seal(before, assignment)
        assert before == plain.A
        new = assignment.why == Why.NEW
        first_homes = [
            node not in homes and home[node] == part
            for node, part in zip(assignment.node.tolist(), assignment.part.tolist(), strict=True)
        ]
        assert new.tolist() == first_homes

        quality = fast.quality()
        copies = sum(len(parts_) for parts_ in plain.A.values())
        of = max(seen, nodes if whole_file else 0)
        shared = sum(len(parts_) > 1 for parts_ in plain.A.values())
        assert shared <= math.floor(hubs * of)
        if of:
            factor = (copies + of - len(plain.A)) / of
            assert math.isclose(quality.replication_factor, factor)
            assert factor <= hubs * parts + (1 - hubs) + 1e-12
            assert quality.shared_share <= hubs
            assert math.isclose(quality.training_replication_factor, 1 + shared / of * (parts - 1))


@settings(max_examples=25, deadline=None)
@given(streams(12), st.sampled_from([0.1, 0.5]))
def test_nodes_that_were_never_hubs_stay_in_one_part_for_ever(stream, hubs):
    partitioner = create("sep-centrality", parts=4, hubs=hubs, time_constant=5.0)
    first, copied = {}, set()
    for tau, events in batches(stream):
        a = partitioner.update(snapshot(tau, 12, events))
        for node, part, why in zip(a.node.tolist(), a.part.tolist(), a.why, strict=True):
            if why == Why.NEW:
                assert node not in first
                first[node] = part
            elif why == Why.REPLICATED:
                copied.add(node)
    home = partitioner.home()
    assert all(home[v] == part for v, part in first.items())
    assert len(copied) <= len(stream) * int(hubs * 12)


def test_former_hubs_give_up_their_parts_only_when_a_hub_may_need_the_room():
    """k allows one shared node of ten: node 0 is it, until node 1 is the hub and joins a part of its own.

    parts: 0 {0 2 4 …}  1 {1 3 5 …}; the pair (1, 2) makes node 1 a hub with an edge to the other part.
    """
    partitioner = create("sep-centrality", parts=2, hubs=0.1, time_constant=1.0, seed=1)
    partitioner.update(snapshot(0, 10, [(1, v, v, 0) for v in range(10)]))  # a home for each
    home = partitioner.home().copy()
    assert sorted(np.bincount(home).tolist()) == [5, 5]
    here = np.flatnonzero(home == 0)
    there = np.flatnonzero(home == 1)
    hub, next_hub = here[0], here[1]
    star = partitioner.update(snapshot(1, 10, [(1, hub, v, 10) for v in there]))
    assert star.event_part.tolist() == [1] * 5
    assert (star.node.tolist(), star.part.tolist(), star.why.tolist()) == ([hub], [1], [Why.REPLICATED])

    still = partitioner.update(snapshot(2, 10, [(1, next_hub, here[2], 20)] * 9))
    assert len(still.node) == 0, "nothing needs the former hub's room yet"
    taken = partitioner.update(snapshot(3, 10, [(1, next_hub, there[0], 30)]))
    assert dict(zip(taken.node.tolist(), taken.why.tolist(), strict=True)) == {
        hub: Why.DEMOTED,
        next_hub: Why.REPLICATED,
    }
    assert partitioner.quality().shared_share == 0.1


def test_decay_moves_its_origin_and_keeps_the_order():
    """Ten thousand time constants pass; without a new origin e^x would overflow."""
    partitioner = create("sep-centrality", parts=2, hubs=0.5, time_constant=1.0)
    for tau in range(10):
        partitioner.update(snapshot(tau, 4, [(1, tau % 4, (tau + 1) % 4, 1000 * tau)]))
        assert np.isfinite(partitioner.centrality).all()
    assert set(np.argsort(partitioner.centrality)[-2:].tolist()) == {9 % 4, 10 % 4}


def test_ties_vary_with_the_event_and_with_the_seed():
    """Parts of equal size and nothing else to choose by: the first edges don't all go to part 0."""
    firsts = []
    for seed in range(20):
        a = create("sep-centrality", parts=4, seed=seed).update(snapshot(0, 2, [(1, 0, 1, 0)]))
        firsts.append(a.event_part[0])
    assert set(firsts) == {0, 1, 2, 3}


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.one_of(st.sampled_from([0.0, 1.0, 2.0]), st.floats(0.0, 1e300), st.floats(1e-300, 1e-290)),
        min_size=1,
        max_size=60,
    ),
    st.floats(0.0, 1.0),
)
def test_hubs_are_the_most_central_nodes_and_equal_ones_are_drawn(centrality, share):
    count = int(share * len(centrality))
    start = splitmix64(3)
    order = sorted(range(len(centrality)), key=lambda v: (-centrality[v], splitmix64(start ^ v)))
    hub = sep.most_central(np.array(centrality), count, 3)
    assert set(np.flatnonzero(hub).tolist()) == set(order[:count])


@pytest.mark.parametrize("parts", [5, 63, 64])
def test_a_file_may_be_given_in_pieces_and_a_snapshot_cut_anywhere(parts, monkeypatch):
    """The same parts and placements as in one piece, also with a state in between."""
    draws = np.random.default_rng(0)
    src, dst = draws.integers(0, 50, (2, 400))
    t = np.arange(400) * 1_000_000
    events = [(1, int(i), int(j), s) for s, (i, j) in enumerate(zip(src, dst, strict=True))]
    snapshots = [snapshot(0, 50, events[:200]), snapshot(1, 50, events[200:])]
    params = {"parts": parts, "hubs": 0.2, "time_constant": 100.0}
    whole, pieces = create("sep-two-pass", **params), create("sep-two-pass", **params)
    whole.foresee(src, dst, t, 50)
    expected = [whole.update(delta) for delta in snapshots]
    monkeypatch.setattr(base, "_CHUNK", 7)
    monkeypatch.setattr(sep, "_WEIGHED", 11)
    for rows in (slice(0, 150), slice(150, 399), slice(399, 400)):
        pieces.foresee(src[rows], dst[rows], t[rows], 50)
    # Forward decay weighs by the first piece's end: the order of centralities is the same, their scale is not.
    for delta, one in zip(snapshots, expected, strict=True):
        again = create("sep-two-pass", **params)
        again.restore(pieces.state())
        pieces = again
        other = pieces.update(delta)
        for a, b in zip(astuple(one), astuple(other), strict=True):
            assert b.tolist() == a.tolist()


def test_state_packs_the_sets_of_parts():
    """100 parts take two words a node, and the state survives an Arrow file."""
    partitioner = create("sep-centrality", parts=100, hubs=0.5)
    partitioner.update(snapshot(0, 50, [(1, v, (7 * v) % 50, v) for v in range(50)]))
    state = partitioner.state()
    assert len(state["masks"][0]) == 50 * 2
    assert isinstance(state, pa.Table)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"hubs": 1.5}, r"params of sep-centrality: hubs: must be at most 1, found 1.5"),
        (
            {"balance_weight": 1.01},
            r"\(λ\) must be in \(0, 1\], found 1.01: above 1, nodes that are no hubs would be copied",
        ),
    ],
)
def test_parameters_out_of_range_are_refused(params, message):
    with pytest.raises(PartitionError, match=message):
        create("sep-centrality", parts=2, **params)


@pytest.mark.parametrize("parts", [4, 64])
@pytest.mark.parametrize("later_seed", [1, 2])
def test_pass_one_is_over_the_training_part_and_no_later_event_changes_what_it_placed(parts, later_seed):
    """The training part ends at second 299, within snapshot 2; nodes from 40 on come after it."""
    draws, later = np.random.default_rng(0), np.random.default_rng(later_seed)
    ends = np.minimum(draws.integers(0, 40, (300, 2)), draws.integers(0, 40, (300, 2)))
    ends = np.concatenate([[[0, 39]], ends[1:], later.integers(0, 60, (300, 2))])
    events = [(1, int(i), int(j), t) for t, (i, j) in enumerate(ends)]
    params = {"parts": parts, "seed": 3, "hubs": 0.2, "time_constant": 50.0}
    fast = create("sep-two-pass", **params, training_until=299.0)
    for rows in (slice(0, 200), slice(200, 600)):
        fast.foresee(ends[rows, 0].copy(), ends[rows, 1].copy(), np.arange(600)[rows] * 1_000_000, 60)
    plain = PlainSep(**params, balance_weight=1.0)
    plain.pass_one(events[:300])
    plain.all_nodes = 40
    plain.cent = defaultdict(float, plain.cent)  # nodes that come later have none
    placed = []
    for tau, begin in enumerate(range(0, 600, 120)):
        here = events[begin : begin + 120]
        if tau == 4:
            state, fast = fast.state(), create("sep-two-pass", **params, training_until=299.0)
            fast.restore(state)
        seen = max(max(i, j) for _, i, j, _ in events[: begin + 120]) + 1
        parts_of_events = fast.update(snapshot(tau, seen, here)).event_part.tolist()
        assert parts_of_events == plain.update(here, seen)
        placed += parts_of_events
    alone = create("sep-two-pass", **params)
    alone.foresee(ends[:300, 0].copy(), ends[:300, 1].copy(), np.arange(300) * 1_000_000, 40)
    assert placed[:300] == alone.update(snapshot(0, 40, events[:300])).event_part.tolist()
    assert fast.quality().shared_share <= 0.2
    assert all(len(plain.A[v]) == 1 for v in range(40, 60) if v in plain.A)


def test_two_passes_without_the_first_are_refused():
    partitioner = create("sep-two-pass", parts=2)
    with pytest.raises(PartitionError, match="needs the file or its training part before its first snapshot"):
        partitioner.update(snapshot(0, 2, [(1, 0, 1, 0)]))


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from([1, 2, 3, 4, 5, 8, 9, 16, 17, 32, 33, 63, 64]),
    st.integers(1, 2**64 - 1),
    st.integers(0, 63),
)
def test_ties_go_to_the_part_whose_number_is_nearest_to_the_draw(parts, among, draw):
    among &= (1 << parts) - 1
    if among:
        bit = int(smallest_flipped(np.uint64(among), np.uint64(draw), parts))
        members = [part for part in range(parts) if among >> part & 1]
        assert bit == 1 << min(members, key=lambda part: part ^ draw)


@pytest.mark.parametrize(("parts", "apart"), [(4, 3), (4, 12), (32, 9), (63, 500)])
@pytest.mark.parametrize("name", ["sep-centrality", "sep-two-pass"])
@pytest.mark.parametrize("weight", [1.0, 0.5])
def test_loads_within_the_levels_and_beyond_give_the_same_parts(name, parts, apart, weight):
    """From loads that are some edges apart, levels saturate, are built again, go down, and parts catch up."""
    draws = np.random.default_rng(parts + apart)
    sizes = draws.integers(0, apart + 1, parts)
    params = {"parts": parts, "seed": 2, "hubs": 0.6, "time_constant": None, "balance_weight": weight}
    fast, plain = create(name, **params), PlainSep(**params)
    fast.sizes[:] = plain.sizes[:] = sizes.tolist()
    ends = np.minimum(draws.integers(0, 120, (1600, 2)), draws.integers(0, 120, (1600, 2)))
    if name == "sep-two-pass":
        fast.foresee(ends[:, 0].copy(), ends[:, 1].copy(), np.zeros(1600, np.int64), 120)
        plain.pass_one([(1, int(i), int(j), 0) for i, j in ends])
        plain.all_nodes = 120
    for tau in range(4):
        events = [(1, int(i), int(j), tau) for i, j in ends[400 * tau : 400 * tau + 400]]
        assert fast.update(snapshot(tau, 120, events)).event_part.tolist() == plain.update(events, 120)
    assert fast.sizes.tolist() == plain.sizes


@pytest.mark.parametrize("weight", [1.0, 0.5, 0.3])
def test_scores_that_only_rounding_tells_apart_are_those_of_the_loads(weight):
    """Levels may count from below the smallest load; scores round as with the loads themselves."""
    everywhere, in_a, in_b = (np.uint64(parts) for parts in (0b111111, 0b000011, 0b001100))
    for lowest, span in itertools.product(range(3), range(1, 4)):
        for room_a, room_b in itertools.product(range(span + 1), repeat=2):
            loads = lowest + np.array([span - room_a, span, span - room_b, span, 0, span])
            planes = tuple(
                np.uint64(sum((int(x) >> k & 1) << p for p, x in enumerate(loads))) for k in range(3)
            )
            scale = weight / (1.0 + span)
            theta = (1.0 - scale * (room_b - room_a)) / 2
            first = 2.0 - theta + scale * room_a >= 1.0 + theta + scale * room_b
            chosen = better_end(planes, loads, in_a, in_b, everywhere, theta, weight)
            assert chosen == (in_a if first else in_b)
