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
        # One more than the owner, degree and neighbours with the same owner: one cache line a node.
        self._known: Int32 = np.empty((0, 3), np.int32)
        self._sums: Int64 = np.zeros(3, np.int64)
        self._by_part: Int64 = np.zeros((2, parts), np.int64)

    def advance(self, rows: Rows, owner: Int32, touched: Int64, placed: Int64) -> None:
        """Take in what changed: at the cost of the rows of these nodes.

        Args:
            rows: The live graph.
            owner: int32 (≥ N,), −1 for nodes that are not live.
            touched: int64, without repeats: all nodes whose row changed.
            placed: int64, without repeats: all nodes whose owner may have changed.
        """
        nodes = len(rows.start)
        self._known = grown(self._known, nodes)
        if 2 * (len(touched) + len(placed)) > nodes:
            touched, placed = np.arange(nodes), placed[:0]
        _move(rows, owner, placed, self.fanout, self._known, self._sums, self._by_part)
        _count_again(rows, owner, touched, self.fanout, self._known, self._sums, self._by_part)

    def weight_after(self, rows: Rows, changed: Int64) -> int:
        """Weight of all pairs once these rows, int64, have been taken in."""
        return int(self._sums[_WEIGHT]) + _weight_change(rows, changed, self.fanout, self._known)

    def begin(self, rows: Rows, owner: Int32) -> None:
        """Forget everything and take in a whole graph."""
        self._known = np.zeros((len(rows.start), 3), np.int32)
        self._sums[:], self._by_part[:] = 0, 0
        self.advance(rows, owner, np.arange(len(rows.start)), np.empty(0, np.int64))

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
def _move(
    rows: Rows, owner: Int32, placed: Int64, fanout: int, known: Int32, sums: Int64, by_part: Int64
) -> None:
    """Tell neighbours of nodes with another owner than is known, one such node after the other.

    What this makes of nodes whose row changed is made good when they are counted again.
    """
    for v in placed:
        was, now = known[v, 0], owner[v] + 1
        if was == now:
            continue
        _add(v, -1, fanout, known, sums, by_part)
        known[v, 0], known[v, 2] = now, 0
        for i in range(rows.start[v], rows.end[v]):
            u = rows.indices[i]
            more = 0
            if known[u, 0] == now:
                more = 1
                known[v, 2] += now > 0
            elif known[u, 0] == was:
                more = -1
            if more != 0:
                _add(u, -1, fanout, known, sums, by_part)
                known[u, 2] += more
                _add(u, 1, fanout, known, sums, by_part)
        _add(v, 1, fanout, known, sums, by_part)


@njit(cache=True, nogil=True)
def _count_again(
    rows: Rows, owner: Int32, touched: Int64, fanout: int, known: Int32, sums: Int64, by_part: Int64
) -> None:
    for v in touched:
        _add(v, -1, fanout, known, sums, by_part)
        k = owner[v]
        degree, same = 0, 0
        if k >= 0:
            degree = rows.end[v] - rows.start[v]
            for i in range(rows.start[v], rows.end[v]):
                same += owner[rows.indices[i]] == k
        known[v, 0], known[v, 1], known[v, 2] = k + 1, degree, same
        _add(v, 1, fanout, known, sums, by_part)


@njit(cache=True, nogil=True, inline="always")
def _add(v: int, sign: int, fanout: int, known: Int32, sums: Int64, by_part: Int64) -> None:
    """Put what is known of a node into the sums, or take it out of them."""
    if known[v, 0] == 0:
        return
    part, degree, same = int(known[v, 0]) - 1, int(known[v, 1]), int(known[v, 2])
    by_part[_ENDS, part] += sign * degree
    by_part[_SAME, part] += sign * same
    if degree > 0:
        sums[_PAIRS] += sign * degree
        sums[_WEIGHT] += sign * min(degree, fanout)
        sums[_INSIDE] += sign * _share(degree, same, fanout)
