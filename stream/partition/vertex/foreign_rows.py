"""Σ λ of a vertex partition, of a snapshot or updated by changes: the rows that ranks fetch of a snapshot, each once."""

import math

import numpy as np

from freshet_graph.stream.arrays.growing import with_room
from freshet_graph.stream.arrays.kinds import Int32, Int64
from freshet_graph.stream.kernels import njit
from freshet_graph.stream.snapshots.delta import NeighbourRows, SnapshotDelta

_TOTAL, _LINKED = range(2)


@njit(cache=True, nogil=True)
def foreign_parts(rows: NeighbourRows, home: Int32, parts: int) -> int:
    """Sum over nodes of λ, the number of parts other than a node's own with a neighbour of it. O(pairs).

    A vertex partition sends this many rows for one convolution of the snapshot, each row once to each part that needs it: km1
    of the hypergraph whose nets are nodes with their neighbours (ESDG section 4.1).

    Args:
        rows: Neighbours of every node.
        home: int32 (≥ nodes,) owners; −1 only for nodes without a row.
        parts: K.
    """
    total = 0
    seen_by = np.full(parts, -1, np.int64)
    for v in range(len(rows.start)):
        owner = home[v]
        for i in range(rows.start[v], rows.end[v]):
            part = home[rows.indices[i]]
            if part != owner and seen_by[part] != v:
                seen_by[part] = v
                total += 1
    return total


class ForeignRows:
    """For each node, the number of parts other than its own with a neighbour of it, and the sum of these.

    A snapshot costs the rows of the nodes it touched, of moved nodes and of their neighbours.

    Args:
        parts: K.
    """

    def __init__(self, parts: int) -> None:
        self._parts = parts
        self._of: Int32 = np.empty(0, np.int32)  # −1: a node without a neighbour
        self._sums: Int64 = np.zeros(2, np.int64)
        self._begun = False

    def advance(self, delta: SnapshotDelta, home: Int32, moved: Int64) -> None:
        """Add a snapshot; the first one as a whole.

        Args:
            delta: The snapshot.
            home: int32 (N,) owners after it, −1 for nodes that are not live.
            moved: int64, nodes that had another owner before.
        """
        self._of = with_room(self._of, delta.num_nodes, -1)
        touched = delta.touched if self._begun else np.arange(delta.num_nodes)
        _recount(delta.rows, home, self._parts, touched, moved, self._of, self._sums)
        self._begun = True

    @property
    def mean(self) -> float:
        """Mean λ of the nodes with a neighbour, NaN without any."""
        total, linked = self._sums.tolist()
        return total / linked if linked else math.nan


@njit(cache=True, nogil=True)
def _recount(
    rows: NeighbourRows, home: Int32, parts: int, touched: Int64, moved: Int64, of: Int32, sums: Int64
) -> None:
    done = np.zeros(len(of), np.bool_)
    seen_by = np.full(parts, -1, np.int64)
    for v in touched:
        _count(v, rows, home, done, seen_by, of, sums)
    for v in moved:
        _count(v, rows, home, done, seen_by, of, sums)
        for i in range(rows.start[v], rows.end[v]):
            _count(rows.indices[i], rows, home, done, seen_by, of, sums)


@njit(cache=True, nogil=True)
def _count(v, rows, home, done, seen_by, of, sums):  # type: ignore[no-untyped-def]  # compiled
    if done[v]:
        return
    done[v] = True
    if of[v] >= 0:
        sums[_TOTAL] -= of[v]
        sums[_LINKED] -= 1
    of[v] = -1
    if rows.start[v] == rows.end[v]:
        return
    foreign = 0
    for i in range(rows.start[v], rows.end[v]):
        part = home[rows.indices[i]]
        if part != home[v] and seen_by[part] != v:
            seen_by[part] = v
            foreign += 1
    of[v] = foreign
    sums[_TOTAL] += foreign
    sums[_LINKED] += 1
