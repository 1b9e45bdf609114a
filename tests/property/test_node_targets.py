"""Targets of nodes, and what is about to expire, against a plain dict of pairs."""

import numpy as np
from drawn_events import event_table
from hypothesis import given
from hypothesis import strategies as st

from freshet_graph.stream.snapshots.graph import LiveGraph
from freshet_graph.trainer.tasks.node_regression import NodeTargets, Target

IN_DEGREE, FEATURE = Target(), Target(next="feature", of=1)
WIDTH = 2

ends = st.integers(0, 6)
edges = st.tuples(st.sampled_from([1, 1, 1, -1]), ends, ends)
vectors = st.tuples(st.just(0), ends, st.integers(-9, 9))
streams = st.lists(st.tuples(st.integers(1, 3), st.lists(edges | vectors, max_size=10)), max_size=9)
lives = st.sampled_from([None, 1, 3])


def table(rows):
    """Edges, and vectors whose second feature is the number."""
    return event_table(
        [
            (op, node, other, 1.0, None, None) if op else (0, node, -1, 1.0, [0.0, float(other)], 0)
            for op, node, other in rows
        ]
    )


class Plain:
    """The same rules in the most obvious way: when each live pair was last seen."""

    def __init__(self, life):
        self.life, self.seen, self.feature, self.nodes = life, {}, {}, 0

    def ending(self, tau):
        return {pair for pair, then in self.seen.items() if self.life is not None and tau - then >= self.life}

    def apply(self, tau, rows):
        for pair in self.ending(tau):
            del self.seen[pair]
        for op, node, other in rows:
            self.nodes = max(self.nodes, node + 1, other + 1 if op else 0)
            if op == 1:
                self.seen[node, other] = tau
            elif op == -1:
                self.seen.pop((node, other), None)
            else:
                self.feature[node] = other

    def in_degrees(self, without=frozenset()):
        counts = np.zeros(self.nodes)
        for pair in self.seen.keys() - without:
            counts[pair[1]] += 1
        return np.log1p(counts).astype(np.float32)


@given(streams, lives, st.integers(0, 9), st.integers(1, 4))
def test_targets_and_pairs_that_end_are_those_of_a_plain_dict(stream, life, interrupted, ahead):
    plain = Plain(life)
    degrees = NodeTargets(IN_DEGREE, node_features=WIDTH, edge_life=life)
    features = NodeTargets(FEATURE, node_features=WIDTH, edge_life=life)
    graph, tau = LiveGraph(edge_life=life), 0
    for at, (step, rows) in enumerate(stream):
        tau += step
        if at == interrupted:
            for name, old in (("degrees", degrees), ("features", features)):
                fresh = NodeTargets(
                    IN_DEGREE if name == "degrees" else FEATURE, node_features=WIDTH, edge_life=life
                )
                fresh.restore({key: np.array(value) for key, value in old.state().items()})
                np.testing.assert_array_equal(fresh.values, old.values)
                degrees, features = (fresh, features) if name == "degrees" else (degrees, fresh)
            again = LiveGraph(edge_life=life)
            again.restore(graph.state())
            graph = again
        np.testing.assert_array_equal(degrees.without_ending(tau), plain.in_degrees(plain.ending(tau)))
        assert set(zip(*map(np.ndarray.tolist, graph.ending(tau)), strict=True)) == plain.ending(tau)
        plain.apply(tau, rows)
        for each in (degrees, features):
            each.take_in(tau, table(rows))
        graph.apply(tau, table([row for row in rows if row[0]]))
        np.testing.assert_array_equal(degrees.values, plain.in_degrees())
        wanted = [plain.feature.get(node, 0) for node in range(plain.nodes)]
        np.testing.assert_array_equal(features.values, wanted)
        np.testing.assert_array_equal(features.without_ending(tau + 9), features.values)
        later = tau + ahead
        src, dst = graph.ending(later)
        found = list(zip(src.tolist(), dst.tolist(), strict=True))
        assert len(found) == len(set(found)), "each pair once"
        assert set(found) == plain.ending(later)
        np.testing.assert_array_equal(degrees.without_ending(later), plain.in_degrees(plain.ending(later)))


def test_values_that_were_handed_out_stay_as_they_were():
    for target, rows in ((IN_DEGREE, [(1, 0, 1)]), (FEATURE, [(0, 0, 5)])):
        targets = NodeTargets(target, node_features=WIDTH, edge_life=None)
        targets.take_in(0, table([(1, 2, 2)]))
        before, ageing = targets.values, targets.without_ending(1)
        copies = before.copy(), ageing.copy()
        targets.take_in(1, table(rows))
        assert not np.array_equal(targets.values, before)
        np.testing.assert_array_equal(before, copies[0])
        np.testing.assert_array_equal(ageing, copies[1])
