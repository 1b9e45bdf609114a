"""What a halo keeps, in small: which block of rows goes first, and which rows of edges are the same."""

import numpy as np

from trainer.strategies.snapshots.held_edges import HeldEdges, Rows, _equal_rows
from trainer.strategies.snapshots.past import PastSnapshot
from trainer.strategies.snapshots.row_cache import BLOCK, RowCache


def test_the_block_that_was_used_longest_ago_goes_first() -> None:
    cache, nodes = RowCache(1), np.arange(BLOCK)
    cache = RowCache(1, 2 * cache.block_bytes)
    for tau in (0, 1):
        cache.add(tau, nodes, np.full((BLOCK, 1), tau, np.float32), np.zeros(BLOCK, np.int64))
    cache.find(0, nodes[:1])
    cache.add(2, nodes, np.full((BLOCK, 1), 2, np.float32), np.zeros(BLOCK, np.int64))
    assert [int(cache.find(tau, nodes)[0].sum()) for tau in range(3)] == [BLOCK, 0, BLOCK]


def test_a_block_that_was_just_added_counts_as_used() -> None:
    cache, nodes = RowCache(1), np.arange(BLOCK)
    cache = RowCache(1, 2 * cache.block_bytes)
    for tau in range(4):
        cache.add(tau, nodes, np.full((BLOCK, 1), tau, np.float32), np.zeros(BLOCK, np.int64))
        if tau == 1:
            cache.find(0, nodes[:1])
    assert [int(cache.find(tau, nodes)[0].sum()) for tau in range(4)] == [0, 0, BLOCK, BLOCK]


def test_edges_that_left_the_closure_leave_memory() -> None:
    nodes, none = 100, np.empty(0, np.int64)
    zeros, home = np.zeros(nodes, np.int64), np.repeat([0, 1], nodes // 2).astype(np.int32)
    held = HeldEdges(PastSnapshot(7, 7, Rows(zeros, zeros, np.empty(0, np.int32)), home, none), rank=0)
    empty, foreign = held.held_bytes, np.arange(nodes // 2, nodes)
    held.add(foreign, np.full(len(foreign), 3), np.arange(3 * len(foreign), dtype=np.int32), born=7)
    held.settle(foreign, none)
    assert held.held_bytes == empty + 4 * 3 * len(foreign)
    held.settle(foreign[:20], none)
    assert held.held_bytes == empty + 4 * 3 * 20
    graph = held.alone.graph
    assert graph.indices[graph.start[foreign[19]] : graph.end[foreign[19]]].tolist() == [57, 58, 59]
    assert np.flatnonzero(held.held).tolist() == foreign[:20].tolist()


def test_rows_of_edges_are_the_same_if_every_neighbour_is() -> None:
    starts, ends = np.array([0, 2, 2]), np.array([2, 2, 4])
    one = Rows(starts, ends, np.array([5, 6, 7, 8], np.int32))
    other = Rows(starts, ends, np.array([5, 6, 7, 9], np.int32))
    np.testing.assert_array_equal(_equal_rows(one, other, np.arange(3)), [True, True, False])
