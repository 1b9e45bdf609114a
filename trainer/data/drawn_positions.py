"""Positions drawn without replacement for many rows at once (Floyd's algorithm): one SIMD lane per row."""

import numpy as np

from stream.kernels import njit
from trainer.data.neighbours import mix64

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_LOWER, _HALF = np.uint64((1 << 32) - 1), np.uint64(32)

# Row by row, each step would wait for the one before, and numbers stored one by one would be read back in one piece, which
# stalls. Step by step for all rows nothing waits: k positions are compared and sorted for eight rows at once.


@njit(cache=True, nogil=True)
def draw_positions(nodes, seen, seed, drawn):  # type: ignore[no-untyped-def]  # compiled
    """Fill the first n columns of ``drawn`` int64 (k, ≥ n) with distinct positions below ``seen`` of each of n nodes, descending.

    If fewer than k exist, all are drawn, followed by negative numbers in the column. Every subset is equally likely; the
    draw follows from ``seed`` and the node alone.

    Args:
        nodes: int64 (n,).
        seen: int64 (n,).
        seed: uint64.
        drawn: Contiguous, so that eight numbers are loaded at once.
    """
    k, n = len(drawn), len(nodes)
    state, taken = np.empty(n, np.uint64), np.empty(n, np.int64)
    for i in range(n):
        state[i] = mix64(seed ^ mix64(np.uint64(nodes[i]) + _GOLDEN))
    for step in range(k):
        _draw(seen, k - step, state, drawn[step][:n])
        taken[:] = 0
        for other in range(step):
            _compare(drawn[other][:n], drawn[step][:n], taken)
        _settle(seen, k - step, taken, drawn[step][:n])
    for end in range(k - 1, 0, -1):
        for first in range(end):
            _exchange(drawn[first][:n], drawn[first + 1][:n])
    for step in range(k):
        _take_all(seen, k, step, drawn[step][:n])


@njit(cache=True, nogil=True)
def _draw(seen, left, state, drawn):  # type: ignore[no-untyped-def]  # compiled
    """Draw one of the positions 0 … seen − left each: the upper 64 bits of word · size, without a division."""
    for i in range(len(drawn)):
        state[i] += _GOLDEN
        word = mix64(state[i])
        size = np.uint64(seen[i] - left + 1)
        drawn[i] = np.int64(((word >> _HALF) * size + (((word & _LOWER) * size) >> _HALF)) >> _HALF)


@njit(cache=True, nogil=True)
def _compare(other, drawn, taken):  # type: ignore[no-untyped-def]  # compiled
    for i in range(len(drawn)):
        taken[i] |= np.int64(other[i] == drawn[i])


@njit(cache=True, nogil=True)
def _settle(seen, left, taken, drawn):  # type: ignore[no-untyped-def]  # compiled
    """Each step admits one more position, and takes that one if its draw is already taken."""
    for i in range(len(drawn)):
        drawn[i] = seen[i] - left if taken[i] else drawn[i]


@njit(cache=True, nogil=True)
def _exchange(one, other):  # type: ignore[no-untyped-def]  # compiled
    for i in range(len(one)):
        larger, smaller = max(one[i], other[i]), min(one[i], other[i])
        one[i] = larger
        other[i] = smaller


@njit(cache=True, nogil=True)
def _take_all(seen, k, step, drawn):  # type: ignore[no-untyped-def]  # compiled
    for i in range(len(drawn)):
        drawn[i] = drawn[i] if seen[i] > k else seen[i] - 1 - step
