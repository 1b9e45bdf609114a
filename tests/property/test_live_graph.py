"""The live graph against a plain dict: every snapshot, every rule of docs/semantics.md."""

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.events import log_event_schema
from stream.snapshots.adjacency import build_adjacency
from stream.snapshots.graph import LiveGraph
from stream.snapshots.node_features import segment_bounds
from stream.snapshots.pairs import Change

F, S, EDGE_F = 5, 3, 2


def event_table(rows):
    """Rows (op, src, dst, weight, features, feature_offset) as a sealed snapshot; t counts up."""
    columns = list(zip(*rows, strict=True)) if rows else [[]] * 6
    op, src, dst, weight, features, offset = map(list, columns)
    return pa.table(
        {
            "op": op,
            "src": src,
            "dst": [None if d < 0 else d for d in dst],
            "t": list(range(len(rows))),
            "weight": weight,
            "features": features,
            "feature_offset": offset,
            "label": [None] * len(rows),
            "event_id": [None] * len(rows),
            "src_node": src,
            "dst_node": dst,
        },
        schema=log_event_schema("int"),
    )


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
                edge = np.zeros(EDGE_F, np.float32) if features is None else np.float32(features)
                self.pairs[src, dst] = (np.float32(weight), t, tau, tuple(edge))
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


ids = st.integers(0, 6)
weights = st.sampled_from([1.0, 0.5, 0.1, -2.0])
values = st.sampled_from([0.0, 1.0, -0.25])
inserts = st.tuples(
    st.just(1), ids, ids, weights, st.none() | st.lists(values, min_size=EDGE_F, max_size=EDGE_F), st.none()
)
deletes = st.tuples(st.just(-1), ids, ids, st.just(1.0), st.none(), st.none())
full_vectors = st.tuples(
    st.just(0), ids, st.just(-1), st.just(1.0), st.lists(values, min_size=F, max_size=F), st.none()
)
sparse_vectors = st.integers(0, F - 1).flatmap(
    lambda offset: st.tuples(
        st.just(0),
        ids,
        st.just(-1),
        st.just(1.0),
        st.lists(values, min_size=1, max_size=F - offset),
        st.just(offset),
    )
)
rows = st.lists(inserts | inserts | deletes | full_vectors | sparse_vectors, max_size=12)
snapshots = st.lists(st.tuples(st.integers(1, 3), rows), min_size=1, max_size=6)


def same_arrays(actual, expected):
    for name, a, b in zip(("indptr", "indices", "weights"), actual, expected, strict=True):
        np.testing.assert_array_equal(a, b, err_msg=name)


@settings(max_examples=300, deadline=None)
@given(snapshots, st.sampled_from([None, 1, 2, 3]), st.integers(0, 5))
def test_every_snapshot_equals_the_plain_dict(stream, edge_life, restart_at):
    graph = LiveGraph(node_features=F, edge_features=EDGE_F, segments=S, edge_life=edge_life)
    plain = DictGraph(edge_life)
    tau, seen = 0, 0
    for step, (gap, snapshot_rows) in enumerate(stream):
        if step == restart_at:
            state = graph.state()
            graph = LiveGraph(node_features=F, edge_features=EDGE_F, segments=S, edge_life=edge_life)
            graph.restore(state)
        tau += gap
        delta = graph.apply(tau, event_table(snapshot_rows))
        change, segments = plain.apply(tau, snapshot_rows)
        seen = max([seen, *(max(src, dst) + 1 for _, src, dst, *_ in snapshot_rows)])

        pairs = graph.pairs()
        found = {
            (int(u), int(v)): (w, int(t), int(last), tuple(x))
            for u, v, w, t, last, x in zip(
                pairs.src, pairs.dst, pairs.weight, pairs.t, pairs.last_tau, pairs.features, strict=True
            )
        }
        assert found == plain.pairs
        assert list(found) == sorted(found)
        assert graph.missing_deletes == plain.missing
        assert graph.num_edges == len(plain.pairs)
        assert delta.num_nodes == graph.num_nodes == seen

        changes = graph.changed()
        told = dict(
            zip(zip(changes.src.tolist(), changes.dst.tolist(), strict=True), changes.change, strict=True)
        )
        assert told == change
        edge_rows = [row for row in snapshot_rows if row[0] != 0]
        for i, pair in enumerate(told):
            row = changes.event_row[i]
            if told[pair] != Change.REMOVED:
                assert edge_rows[row][:3] == (1, *pair)
                assert not any(r[:3] == (1, *pair) for r in edge_rows[row + 1 :])
                assert (changes.weight[i], changes.t[i]) == plain.pairs[pair][:2]
                assert tuple(changes.features[i]) == plain.pairs[pair][3]
            elif row >= 0:
                assert edge_rows[row][:3] == (-1, *pair)

        weights = plain.undirected()
        indptr = np.zeros(seen + 1, np.int64)
        for u, _ in weights:
            indptr[u + 1 :] += 1
        order = sorted(weights)
        np.testing.assert_array_equal(delta.graph.indptr, indptr)
        assert delta.graph.indices.tolist() == [v for _, v in order]
        np.testing.assert_array_equal(delta.graph.weights, np.float32([weights[p] for p in order]))

        ends = {v for pair in plain.pairs for v in pair}
        assert delta.live.tolist() == sorted(ends)
        assert delta.touched.tolist() == sorted({v for pair in change for v in pair} | set(segments))
        assert delta.feature_nodes.tolist() == sorted(segments)
        assert delta.changed_segments.tolist() == [sum(segments[v]) for v in sorted(segments)]
        assert graph.segment_changes().changed.tolist() == [segments[v] for v in sorted(segments)]
        for v in range(seen):
            expected = plain.features.get(v, np.zeros(F, np.float32))
            np.testing.assert_array_equal(graph.features(np.array([v]))[0], expected)
        assert delta.op.tolist() == [row[0] for row in edge_rows]


@settings(max_examples=100, deadline=None)
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


def test_feature_vectors_of_a_wrong_width_are_refused_with_both_numbers():
    graph = LiveGraph(node_features=F, edge_features=EDGE_F, segments=S)
    with pytest.raises(ValueError, match=r"node 3 got 2 feature values from position 4 on.* width 5"):
        graph.apply(0, event_table([(0, 3, -1, 1.0, [1.0, 2.0], 4)]))
    with pytest.raises(ValueError, match=r"3 feature values.* width 2"):
        graph.apply(1, event_table([(1, 3, 4, 1.0, [1.0, 2.0, 3.0], None)]))


def test_deltas_stay_as_they_were_when_the_graph_moves_on():
    graph = LiveGraph()
    first = graph.apply(0, event_table([(1, 0, 1, 1.0, None, None), (1, 1, 2, 1.0, None, None)]))
    copies = [np.copy(a) for a in (first.graph.indptr, first.graph.indices, first.graph.weights, first.live)]
    graph.apply(1, event_table([(-1, 0, 1, 1.0, None, None), (1, 3, 0, 9.0, None, None)]))
    same_arrays((first.graph.indptr, first.graph.indices, first.graph.weights), copies[:3])
    np.testing.assert_array_equal(first.live, copies[3])
