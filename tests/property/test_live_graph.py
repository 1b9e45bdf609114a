"""The live graph against a plain dict: every snapshot, every rule of docs/semantics.md."""

from itertools import pairwise

import numpy as np
import pytest
from drawn_events import F, S, deletes, event_table, inserts, rows
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_graph.stream.snapshots.adjacency import build_adjacency
from freshet_graph.stream.snapshots.graph import LiveGraph
from freshet_graph.stream.snapshots.node_features import segment_bounds
from freshet_graph.stream.snapshots.pairs import Change


class DictGraph:
    """The same rules in the most obvious way."""

    def __init__(self, edge_life):
        self.life, self.pairs, self.features, self.missing = edge_life, {}, {}, 0

    def apply(self, tau, rows):
        before = dict(self.pairs)
        vectors = {v: x.copy() for v, x in self.features.items()}
        if self.life:
            self.pairs = {p: e for p, e in self.pairs.items() if tau - e[2] < self.life}
        inserted = set()
        for t, (op, src, dst, weight, features, offset) in enumerate(rows):
            if op == 0:
                vector = self.features.setdefault(src, np.zeros(F, np.float32))
                if features is not None:
                    vector[(offset or 0) : (offset or 0) + len(features)] = features
            elif op == 1:
                self.pairs[src, dst] = (np.float32(weight), t, tau)
                inserted.add((src, dst))
            elif self.pairs.pop((src, dst), None) is None:
                self.missing += 1
        change = {}
        for pair in sorted(before.keys() | self.pairs.keys()):
            if pair not in before:
                change[pair] = Change.ADDED
            elif pair not in self.pairs:
                change[pair] = Change.REMOVED
            elif pair in inserted:
                change[pair] = Change.REFRESHED
        bounds = segment_bounds(F, S)
        segments = {}
        for v, vector in self.features.items():
            old = vectors.get(v, np.zeros(F, np.float32))
            differ = [bool((vector[a:b] != old[a:b]).any()) for a, b in pairwise(bounds)]
            if any(differ):
                segments[v] = differ
        return change, segments

    def undirected(self):
        weights = {}
        for (u, v), (weight, *_) in self.pairs.items():
            if u != v:
                for pair in ((u, v), (v, u)):
                    weights[pair] = np.float32(weights.get(pair, np.float32(0)) + weight)
        return weights


class ListRows:
    """Rows that are appended to, and whose last entry fills the place of one that goes."""

    def __init__(self):
        self.rows, self.added, self.removed = {}, [], []

    def apply(self, before, after, change):
        """Pairs live before and after, and the changed ones in order."""
        ends = dict.fromkeys(tuple(sorted(pair)) for pair in sorted(change) if pair[0] != pair[1])
        was, lives = ({pair for u, v in pairs for pair in ((u, v), (v, u))} for pairs in (before, after))
        self.removed = [pair for pair in ends if pair in was - lives]
        self.added = [pair for pair in ends if pair in lives - was]
        for pair in self.removed:
            for v, u in (pair, pair[::-1]):
                row = self.rows[v]
                row[row.index(u)] = row[-1]
                row.pop()
        for pair in self.added:
            for v, u in (pair, pair[::-1]):
                self.rows.setdefault(v, []).append(u)


def rows_of(delta):
    """Rows as lists."""
    rows = delta.rows
    return [rows.indices[a:b].tolist() for a, b in zip(rows.start.tolist(), rows.end.tolist(), strict=True)]


snapshots = st.lists(st.tuples(st.integers(1, 3), rows), min_size=1, max_size=6)


def same_arrays(actual, expected):
    for name, a, b in zip(("indptr", "indices", "weights"), actual, expected, strict=True):
        np.testing.assert_array_equal(a, b, err_msg=name)


@settings(max_examples=150, deadline=None)
@given(snapshots, st.sampled_from([None, 1, 2, 3]), st.integers(0, 5))
def test_every_snapshot_equals_the_plain_dict(stream, edge_life, restart_at):
    graph = LiveGraph(node_features=F, segments=S, edge_life=edge_life)
    plain, plain_rows = DictGraph(edge_life), ListRows()
    tau, seen = 0, 0
    for step, (gap, snapshot_rows) in enumerate(stream):
        if step == restart_at:
            state = graph.state()
            graph = LiveGraph(node_features=F, segments=S, edge_life=edge_life)
            graph.restore(state)
        tau += gap
        before = dict(plain.pairs)
        delta = graph.apply(tau, event_table(snapshot_rows))
        change, segments = plain.apply(tau, snapshot_rows)
        seen = max([seen, *(max(src, dst) + 1 for _, src, dst, *_ in snapshot_rows)])

        pairs = graph.pairs()
        found = dict(zip(zip(pairs.src.tolist(), pairs.dst.tolist(), strict=True), pairs.weight, strict=True))
        assert found == {pair: weight for pair, (weight, *_) in plain.pairs.items()}
        assert list(found) == sorted(found)
        assert graph.missing_deletes == plain.missing
        assert graph.num_edges == len(plain.pairs)
        assert delta.num_nodes == graph.num_nodes == seen

        changes = graph.changed()
        told = dict(
            zip(zip(changes.src.tolist(), changes.dst.tolist(), strict=True), changes.change, strict=True)
        )
        assert told == change
        row_t = [t for t, row in enumerate(snapshot_rows) if row[0] != 0]
        edge_rows = [snapshot_rows[t] for t in row_t]
        for i, pair in enumerate(told):
            row = changes.event_row[i]
            if told[pair] != Change.REMOVED:
                assert edge_rows[row][:3] == (1, *pair)
                assert not any(r[:3] == (1, *pair) for r in edge_rows[row + 1 :])
                assert (changes.weight[i], row_t[row]) == plain.pairs[pair][:2]
            else:
                assert changes.weight[i] == before[pair][0]
                if row >= 0:
                    assert edge_rows[row][:3] == (-1, *pair)
            assert changes.weight_before[i] == before.get(pair, (0,))[0]

        weights = plain.undirected()
        indptr = np.zeros(seen + 1, np.int64)
        for u, _ in weights:
            indptr[u + 1 :] += 1
        order = sorted(weights)
        np.testing.assert_array_equal(delta.graph.indptr, indptr)
        assert delta.graph.indices.tolist() == [v for _, v in order]
        np.testing.assert_array_equal(delta.graph.weights, np.float32([weights[p] for p in order]))

        ends, was = ({v for pair in pairs for v in pair} for pairs in (plain.pairs, before))
        assert delta.entered.tolist() == sorted(ends - was)
        assert delta.left.tolist() == sorted(was - ends)
        assert (delta.num_live, delta.num_pairs) == (len(ends), len(weights) // 2)
        plain_rows.apply(before, plain.pairs, change)
        assert sorted(map(tuple, delta.added.tolist())) == sorted(plain_rows.added)
        assert sorted(map(tuple, delta.removed.tolist())) == sorted(plain_rows.removed)
        assert rows_of(delta) == [plain_rows.rows.get(v, []) for v in range(seen)]
        assert delta.live.tolist() == sorted(ends)
        assert delta.touched.tolist() == sorted({v for pair in change for v in pair} | set(segments))
        assert delta.feature_nodes.tolist() == sorted(segments)
        assert delta.changed_segments.tolist() == [sum(segments[v]) for v in sorted(segments)]
        assert graph.segment_changes().changed.tolist() == [segments[v] for v in sorted(segments)]
        for v in range(seen):
            expected = plain.features.get(v, np.zeros(F, np.float32))
            np.testing.assert_array_equal(graph.features(np.array([v]))[0], expected)
        assert delta.op.tolist() == [row[0] for row in edge_rows]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(inserts | deletes, max_size=6), min_size=30, max_size=40))
def test_advancing_the_adjacency_equals_building_it(stream):
    """Long enough that most snapshots change few of the pairs and take the incremental path."""
    graph = LiveGraph()
    graph.apply(0, event_table([(1, u, v, 0.1 * (u + 1), None, None) for u in range(7) for v in range(u, 7)]))
    for tau, snapshot_rows in enumerate(stream, start=1):
        delta = graph.apply(tau, event_table(snapshot_rows))
        pairs = graph.pairs()
        built = build_adjacency(graph.num_nodes, (pairs.src << 32) | pairs.dst, pairs.weight)
        same_arrays((delta.graph.indptr, delta.graph.indices, delta.graph.weights), built)


def test_snapshots_out_of_order_are_refused():
    graph = LiveGraph()
    graph.apply(5, event_table([(1, 0, 1, 1.0, None, None)]))
    with pytest.raises(ValueError, match="5 came after 5"):
        graph.apply(5, event_table([]))


def test_feature_vectors_of_a_wrong_width_are_refused():
    graph = LiveGraph(node_features=F, segments=S)
    with pytest.raises(ValueError, match=r"node 3 got 2 feature values from position 4 on.* width 5"):
        graph.apply(0, event_table([(0, 3, -1, 1.0, [1.0, 2.0], 4)]))


def test_a_delta_that_is_kept_stays_as_it_was_and_others_say_that_they_are_gone():
    graph = LiveGraph()
    first = graph.apply(0, event_table([(1, 0, 1, 1.0, None, None), (1, 1, 2, 1.0, None, None)]))
    kept = first.detached()
    arrays = (kept.graph.indptr, kept.graph.indices, kept.graph.weights, kept.live, *kept.rows)
    copies = [np.copy(a) for a in arrays]
    graph.apply(1, event_table([(-1, 0, 1, 1.0, None, None), (1, 3, 0, 9.0, None, None)]))
    for array, copy in zip(arrays, copies, strict=True):
        np.testing.assert_array_equal(array, copy)
    assert rows_of(kept) == [[1], [0, 2], [1]]
    for ask in (lambda: first.rows, lambda: first.graph, lambda: first.live, first.detached):
        with pytest.raises(RuntimeError, match="this delta has expired"):
            ask()


@pytest.mark.parametrize("edge_life", [None, 4])
def test_long_rows_come_and_go_in_bounded_room(edge_life):
    """Hubs that take turns: blocks left behind are used again, records too, and a restart changes no row."""
    graph, room = LiveGraph(edge_life=edge_life), []
    plain, plain_rows = DictGraph(edge_life), ListRows()
    for tau in range(60):
        hub = tau % 5
        rows = [(1, hub, 10 + (7 * i + tau) % 200, 1.0, None, None) for i in range(120)]
        rows += [(-1, (tau - 4) % 5, 10 + (7 * i + tau - 4) % 200, 1.0, None, None) for i in range(120)]
        before = dict(plain.pairs)
        if tau in (20, 41):
            state = graph.state()
            graph = LiveGraph(edge_life=edge_life)
            graph.restore(state)
        delta = graph.apply(tau, event_table(rows))
        change, _ = plain.apply(tau, rows)
        plain_rows.apply(before, plain.pairs, change)
        assert rows_of(delta) == [plain_rows.rows.get(v, []) for v in range(graph.num_nodes)]
        assert graph.state().equals(graph.state())
        room.append(graph.nbytes)
    assert max(room[45:]) <= 1.5 * max(room[21:30])


@settings(max_examples=25, deadline=None)
@given(snapshots, st.sampled_from([None, 2]), st.data())
def test_a_restart_changes_no_byte_of_the_next_state(stream, edge_life, data):
    """Rows stay in their order, whatever numbers pairs have inside."""
    graphs = [LiveGraph(node_features=F, segments=S, edge_life=edge_life) for _ in range(2)]
    tau = 0
    for gap, snapshot_rows in stream:
        tau += gap
        if data.draw(st.booleans()):
            state = graphs[1].state()
            graphs[1] = LiveGraph(node_features=F, segments=S, edge_life=edge_life)
            graphs[1].restore(state)
        deltas = [graph.apply(tau, event_table(snapshot_rows)) for graph in graphs]
        assert rows_of(deltas[0]) == rows_of(deltas[1])
        assert graphs[0].state().equals(graphs[1].state())
