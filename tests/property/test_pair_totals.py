"""Totals of pairs advanced by deltas equal those counted from the whole graph."""

import numpy as np
import pytest
from edge_events import edge_events
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_graph.stream.partition.interface import create
from freshet_graph.stream.snapshots.graph import LiveGraph

ends = st.integers(0, 9)
events = st.lists(st.tuples(st.sampled_from([1, 1, -1]), ends, ends), max_size=15)
FANOUT = 2


def plain_totals(delta, home, parts):
    """Pairs, cut pairs, weight of all and of those inside, and pairs with an end in each part."""
    row = [delta.rows.indices[s:e].tolist() for s, e in zip(delta.rows.start, delta.rows.end, strict=True)]
    chance = [min(len(r), FANOUT) / len(r) if r else 0.0 for r in row]
    pairs = [(u, v) for u in range(len(row)) for v in row[u] if u < v]
    inside = [(u, v) for u, v in pairs if home[u] == home[v]]
    return (
        len(pairs),
        len(pairs) - len(inside),
        sum(chance[u] + chance[v] for u, v in pairs),
        sum(chance[u] + chance[v] for u, v in inside),
        *[sum(k in (home[u], home[v]) for u, v in pairs) for k in range(parts)],
    )


@settings(max_examples=100, deadline=None)
@given(
    st.lists(events, min_size=1, max_size=6),
    st.sampled_from(["distdy", "byte-lp", "load-aware", "ldg", "metis-layer"]),
    st.sampled_from([1, 3]),
    st.sampled_from([None, 1, 2]),
    st.sampled_from([None, 0, 2]),
)
def test_totals_kept_by_deltas_are_those_of_the_whole_graph(snapshots, algorithm, parts, edge_life, restart):
    """Nodes come, go, move and come back; once the partitioner goes on from its state in between."""
    graph = LiveGraph(edge_life=edge_life)
    partitioner = create(algorithm, parts=parts, fanout=FANOUT)
    for tau, rows in enumerate(snapshots):
        delta = graph.apply(tau, edge_events(rows))
        partitioner.update(delta)
        totals = partitioner.totals
        found = (totals.pairs, totals.cross, totals.weight, totals.inside, *totals.stored.tolist())
        assert found == pytest.approx(plain_totals(delta, partitioner.home(), parts))
        home = partitioner.home()
        assert partitioner._nodes_per_part.tolist() == np.bincount(home[home >= 0], minlength=parts).tolist()
        if tau == restart:
            state = partitioner.state()
            partitioner = create(algorithm, parts=parts, fanout=FANOUT)
            partitioner.restore(state)
