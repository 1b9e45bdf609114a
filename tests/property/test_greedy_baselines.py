"""LDG and HDRF against what defines them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_graph.stream.kernels.mixing import mixed_part
from freshet_graph.stream.partition.interface import PartitionError, create
from freshet_graph.stream.partition.vertex.ldg import place_new
from freshet_graph.stream.snapshots.adjacency import build_adjacency
from freshet_graph.stream.snapshots.delta import Csr
from freshet_graph.stream.snapshots.pairs import pair_keys


def adjacency(pairs, num_nodes):
    keys = np.unique(pair_keys(*np.array(pairs, np.int64).reshape(-1, 2).T.copy()))
    return Csr(*build_adjacency(num_nodes, keys, np.ones(len(keys), np.float32))).rows


def plain_ldg(rows, live, owner, parts, capacity, seed):
    owner = list(owner)
    for v in live:
        if owner[v] >= 0:
            continue
        near = [owner[u] for u in rows.indices[rows.start[v] : rows.end[v]]]
        sizes = [sum(owner[u] == p for u in live) for p in range(parts)]
        first = mixed_part(seed, v, parts)

        def score(p, near=near, sizes=sizes):
            room = 1.0 - sizes[p] / capacity
            return near.count(p) * room if room > 0 else room - 1.0

        order = [(first + i) % parts for i in range(parts)]
        owner[v] = max(order, key=lambda p: (score(p), -sizes[p], -order.index(p)))
    return owner


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 14), st.integers(0, 14)), min_size=1, max_size=40),
    st.sampled_from([1, 2, 3, 64, 100]),
    st.lists(st.integers(-1, 0), min_size=15, max_size=15),
    st.sampled_from([1.0, 1.05, 2.0]),
    st.integers(0, 3),
)
def test_ldg_places_every_node_as_the_plain_rule(pairs, parts, before, slack, seed):
    rows = adjacency(pairs, 15)
    live = np.unique(np.array(pairs))
    owner = np.array(before, np.int32)
    capacity = slack * len(live) / parts
    expected = plain_ldg(rows, live.tolist(), owner, parts, capacity, seed)
    new, old = live[owner[live] < 0], live[owner[live] >= 0]
    held = np.bincount(owner[old], minlength=parts)
    placed = place_new(rows, new, owner, held, slack, seed)
    assert placed.tolist() == [expected[v] for v in new]
    assert owner.tolist() == np.array(before).tolist(), "it is left as it was"


def test_hdrf_takes_a_weight_of_balance_above_one_and_sep_does_not():
    create("hdrf", parts=2, balance_weight=4.0)
    with pytest.raises(PartitionError, match="found 4"):
        create("sep-centrality", parts=2, balance_weight=4.0)
