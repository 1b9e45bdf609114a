"""Kept inputs in small: which block of rows goes first."""

import numpy as np

from trainer.strategies.snapshots.row_cache import BLOCK, RowCache


def test_the_block_that_was_used_longest_ago_goes_first() -> None:
    cache, nodes = RowCache(1), np.arange(BLOCK)
    cache = RowCache(1, 2 * cache.block_bytes)
    for tau in (0, 1):
        cache.add(tau, nodes, np.full((BLOCK, 1), tau, np.float32))
    cache.find(0, nodes[:1])
    cache.add(2, nodes, np.full((BLOCK, 1), 2, np.float32))
    assert [int(cache.find(tau, nodes)[0].sum()) for tau in range(3)] == [BLOCK, 0, BLOCK]


def test_a_block_that_was_just_added_counts_as_used() -> None:
    cache, nodes = RowCache(1), np.arange(BLOCK)
    cache = RowCache(1, 2 * cache.block_bytes)
    for tau in range(4):
        cache.add(tau, nodes, np.full((BLOCK, 1), tau, np.float32))
        if tau == 1:
            cache.find(0, nodes[:1])
    assert [int(cache.find(tau, nodes)[0].sum()) for tau in range(4)] == [0, 0, BLOCK, BLOCK]
