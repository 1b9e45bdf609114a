"""The cut of a vertex partition, updated by changes: pairs and their weights by owner."""

import numpy as np

from freshet_graph.stream.arrays.growing import with_room
from freshet_graph.stream.arrays.kinds import Int32, Int64
from freshet_graph.stream.kernels import njit
from freshet_graph.stream.snapshots.delta import NeighbourRows, SnapshotDelta
from freshet_graph.stream.snapshots.pairs import split_keys
from freshet_graph.stream.snapshots.prefetch import AHEAD, ENTRIES, NODES_AHEAD, prefetch

FRACTION = 2**30
"""Weights are summed as whole multiples of its inverse, so that sums don't depend on the order and nothing drifts."""

_PAIRS, _CROSS, _WEIGHT, _INSIDE = range(4)
_OWNER, _DEGREE, _SAME = range(3)


class PairTotals:
    """Sums over the live pairs under the owners of a snapshot.

    A pair weighs ``min(d_u, f)/d_u + min(d_v, f)/d_v`` (DistDy section 3.4, unscaled). Each summand is counted at its node: a
    node adds ``min(d, f)`` to the weight, and to the weight inside the share of its neighbours with its owner. So a new or gone
    pair costs its two ends, and a node that moves its row; no other row is looked at, however many nodes a snapshot touched.

    Args:
        parts: K.
        fanout: f.

    Attributes:
        rates: int64 (N,), weights of nodes in fractions: a pair weighs the sum of its ends'. None: min(d, f)/d. They
            are set in every snapshot or never.
    """

    def __init__(self, parts: int, fanout: int) -> None:
        self.parts, self.fanout = parts, fanout
        # Owner plus one, degree, and neighbours with the same owner: one cache line per node.
        self._known: Int32 = np.empty((0, 3), np.int32)
        self._sums: Int64 = np.zeros(4, np.int64)
        self._stored: Int64 = np.zeros(parts, np.int64)
        self._tau: int | None = None  # the snapshot whose pairs are counted
        self.rates: Int64 | None = None

    def advance(self, delta: SnapshotDelta, home: Int32, placed: Int64) -> None:
        """Apply changes; repeatable within a snapshot, as owners change.

        Args:
            delta: The snapshot.
            home: int32 (≥ N,) owners, −1 for nodes that are not live.
            placed: int64, nodes whose owner may have changed, without those that left.
        """
        self._known = with_room(self._known, delta.num_nodes, 0)
        sums = self._known, self._sums, self._stored
        if self._tau != delta.tau:
            _take_pairs(delta.removed, -1, self.fanout, *sums)
            _take_pairs(delta.added, 1, self.fanout, *sums)
            self._tau = delta.tau
        for nodes in (delta.left, placed):
            _take_owners(delta.rows, nodes, home, self.fanout, *sums)

    def weight_after(self, rows: NeighbourRows, changed: Int64) -> int:
        """Weight of all pairs after these rows, int64, have changed."""
        degree = rows.end[changed] - rows.start[changed]
        before = self._known[changed[changed < len(self._known)], _DEGREE].astype(np.int64)
        more = np.minimum(degree, self.fanout).sum() - np.minimum(before, self.fanout).sum()
        return int(self._sums[_WEIGHT] + more)

    def begin(self, delta: SnapshotDelta, home: Int32) -> None:
        """Start from a whole graph, after a snapshot, with the owners from before it."""
        self._known = np.zeros((delta.num_nodes, 3), np.int32)
        self._known[:, _OWNER] = home[: delta.num_nodes] + 1
        self._sums[:], self._stored[:] = 0, 0
        pairs = np.stack(split_keys(delta.graph.pair_keys()), axis=1)
        _take_pairs(pairs, 1, self.fanout, self._known, self._sums, self._stored)
        self._tau = delta.tau

    @property
    def pairs(self) -> int:
        """Undirected live pairs without self-loops."""
        return int(self._sums[_PAIRS])

    @property
    def cross(self) -> int:
        """Pairs with two owners."""
        return int(self._sums[_CROSS])

    @property
    def weight(self) -> float:
        """Weight of all pairs."""
        return float(self._sums[_WEIGHT]) if self.rates is None else self._rated(self.rates, _DEGREE)

    @property
    def inside(self) -> float:
        """Weight of the pairs with one owner."""
        return float(self._sums[_INSIDE]) / FRACTION if self.rates is None else self._rated(self.rates, _SAME)

    def _rated(self, rates: Int64, column: int) -> float:
        """Σ of nodes' rates times a column of counts."""
        return float(rates @ self._known[: len(rates), column].astype(np.int64)) / FRACTION

    @property
    def stored(self) -> Int64:
        """Pairs with an end in each part, int64 (K,)."""
        return self._stored.copy()


@njit(cache=True, nogil=True)
def _share(degree: int, same: int, fanout: int) -> np.int64:
    """Contribution of a node to the weight inside, in fractions."""
    if degree == 0:
        return np.int64(0)
    return np.int64(min(degree, fanout) * same / degree * FRACTION + 0.5)


@njit(cache=True, nogil=True)
def _change(v: int, degree: int, same: int, fanout: int, known: Int32, sums: Int64) -> None:
    """Change a node's degree, and its number of neighbours with its owner, by these amounts."""
    had, had_same = np.int64(known[v, _DEGREE]), np.int64(known[v, _SAME])
    has, has_same = had + np.int64(degree), had_same + np.int64(same)
    known[v, _DEGREE], known[v, _SAME] = has, has_same
    most = np.int64(fanout)
    sums[_WEIGHT] += np.int64(min(has, most)) - np.int64(min(had, most))
    sums[_INSIDE] += _share(has, has_same, fanout) - _share(had, had_same, fanout)


@njit(cache=True, nogil=True)
def _take_pairs(pairs: Int64, sign: int, fanout: int, known: Int32, sums: Int64, stored: Int64) -> None:
    """Add (+1) or remove (−1) pairs between the known owners."""
    flat = known.reshape(-1)
    for i in range(len(pairs)):
        if i + AHEAD < len(pairs):
            prefetch(flat, 3 * pairs[i + AHEAD, 0])
            prefetch(flat, 3 * pairs[i + AHEAD, 1])
        u, v = pairs[i, 0], pairs[i, 1]
        a, b = known[u, _OWNER], known[v, _OWNER]
        same = sign if a == b else 0
        _change(u, sign, same, fanout, known, sums)
        _change(v, sign, same, fanout, known, sums)
        sums[_PAIRS] += sign
        sums[_CROSS] += sign - same
        if a > 0:
            stored[a - 1] += sign
        if b > 0 and b != a:
            stored[b - 1] += sign


@njit(cache=True, nogil=True)
def _take_owners(
    rows: NeighbourRows, nodes: Int64, home: Int32, fanout: int, known: Int32, sums: Int64, stored: Int64
) -> None:
    """Give nodes the owners of ``home``, one after the other."""
    flat = known.reshape(-1)
    for j in range(len(nodes)):
        if j + 2 * NODES_AHEAD < len(nodes):
            prefetch(rows.indices, rows.start[nodes[j + 2 * NODES_AHEAD]])
        if j + NODES_AHEAD < len(nodes):
            w = nodes[j + NODES_AHEAD]
            for i in range(rows.start[w], min(rows.end[w], rows.start[w] + ENTRIES)):
                prefetch(flat, 3 * rows.indices[i])
        v = nodes[j]
        was, now = known[v, _OWNER], home[v] + 1
        if was == now:
            continue
        lost = gained = 0
        for i in range(rows.start[v], rows.end[v]):
            u = rows.indices[i]
            owner = known[u, _OWNER]
            if owner == was:
                lost += 1
                _change(u, 0, -1, fanout, known, sums)
            elif owner == now:
                gained += 1
                _change(u, 0, 1, fanout, known, sums)
        known[v, _OWNER] = now
        _change(v, 0, gained - lost, fanout, known, sums)
        sums[_CROSS] += lost - gained
        degree = rows.end[v] - rows.start[v]
        # A pair with another owner at its other end is stored with both.
        if was > 0:
            stored[was - 1] -= degree - lost
        if now > 0:
            stored[now - 1] += degree - gained
