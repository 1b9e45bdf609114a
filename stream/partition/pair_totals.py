"""What a vertex partition cuts, kept current by what changed: pairs and their weights by owner."""

import numpy as np
from numba import njit

from stream.partition.node_arrays import grown
from stream.snapshots.delta import Int32, Int64, Rows

FRACTION = 2**30
"""Weights are summed as whole multiples of its inverse: sums don't depend on the order, and nothing drifts."""

_PAIRS, _WEIGHT, _INSIDE = range(3)
_ENDS, _SAME = range(2)


class PairTotals:
    """Sums over the live pairs under the owners of a snapshot.

    A pair weighs ``min(d_u, f)/d_u + min(d_v, f)/d_v`` (DistDy section 3.4, unscaled). Its two summands are each
    counted at the node that they are of: a node adds ``min(d, f)`` to the weight, and of that the share of its
    neighbours with its owner to what is inside. So a change costs the rows of the nodes that it concerns.

    Args:
        parts: K.
        fanout: f.
    """

    def __init__(self, parts: int, fanout: int) -> None:
        self.parts, self.fanout = parts, fanout
        # Owner, degree and neighbours with the same owner: one cache line a node.
        self._known: Int32 = np.empty((0, 3), np.int32)
        self._sums: Int64 = np.zeros(3, np.int64)
        self._by_part: Int64 = np.zeros((2, parts), np.int64)

    def advance(self, rows: Rows, home: Int32, due: Int64) -> None:
        """Take in what changed.

        Args:
            rows: The live graph.
            home: int32 (≥ N,) owners, −1 for nodes that are not live.
            due: int64, without repeats: all nodes whose row or owner, or whose neighbours' owners, changed.
        """
        self._known = grown(self._known, len(rows.start), 0)
        _advance(rows, home, due, self.fanout, self._known, self._sums, self._by_part)

    def weight_after(self, rows: Rows, changed: Int64) -> int:
        """Weight of all pairs once these rows, int64, have been taken in."""
        return int(self._sums[_WEIGHT]) + _weight_change(rows, changed, self.fanout, self._known)

    def begin(self, rows: Rows, home: Int32) -> None:
        """Forget everything and take in a whole graph."""
        self._known = np.zeros((len(rows.start), 3), np.int32)
        self._sums[:], self._by_part[:] = 0, 0
        self.advance(rows, home, np.arange(len(rows.start)))

    @property
    def pairs(self) -> int:
        """Undirected live pairs without self-loops."""
        return int(self._sums[_PAIRS]) // 2

    @property
    def cross(self) -> int:
        """Pairs with two owners."""
        return self.pairs - int(self._by_part[_SAME].sum()) // 2

    @property
    def weight(self) -> float:
        """Weight of all pairs."""
        return float(self._sums[_WEIGHT])

    @property
    def inside(self) -> float:
        """Weight of the pairs with one owner."""
        return float(self._sums[_INSIDE]) / FRACTION

    @property
    def stored(self) -> Int64:
        """Pairs with an end in each part, int64 (K,)."""
        stored: Int64 = self._by_part[_ENDS] - self._by_part[_SAME] // 2
        return stored


@njit(cache=True, nogil=True, inline="always")
def _share(degree: int, same: int, fanout: int) -> np.int64:
    """What a node adds to the weight inside, in fractions."""
    return np.int64(min(degree, fanout) * same / degree * FRACTION + 0.5)


@njit(cache=True, nogil=True)
def _weight_change(rows: Rows, changed: Int64, fanout: int, known: Int32) -> int:
    more = 0
    for v in changed:
        degree: int = rows.end[v] - rows.start[v]
        more += min(degree, fanout)
        if v < len(known) and known[v, 0] > 0:
            degree = int(known[v, 1])
            more -= min(degree, fanout)
    return more


@njit(cache=True, nogil=True)
def _advance(
    rows: Rows, home: Int32, due: Int64, fanout: int, known: Int32, sums: Int64, by_part: Int64
) -> None:
    """Take the nodes that are due out of the sums as they were known, and in again as they are."""
    pairs = weight = inside = np.int64(0)
    for v in due:
        if known[v, 0] > 0:  # parts are known as one more: 0 is none
            was, degree, same = int(known[v, 0]) - 1, int(known[v, 1]), int(known[v, 2])
            by_part[_ENDS, was] -= degree
            by_part[_SAME, was] -= same
            if degree > 0:
                pairs -= degree
                weight -= min(degree, fanout)
                inside -= _share(degree, same, fanout)
        owner = int(home[v])
        degree, same = int(rows.end[v] - rows.start[v]), 0
        if owner >= 0:
            for i in range(rows.start[v], rows.end[v]):
                same += home[rows.indices[i]] == owner
            by_part[_ENDS, owner] += degree
            by_part[_SAME, owner] += same
            if degree > 0:
                pairs += degree
                weight += min(degree, fanout)
                inside += _share(degree, same, fanout)
        known[v, 0], known[v, 1], known[v, 2] = owner + 1, degree, same
    sums[_PAIRS] += pairs
    sums[_WEIGHT] += weight
    sums[_INSIDE] += inside
