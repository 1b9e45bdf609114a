"""One hop of a neighbour sample: targets and sources of a graph stage, over all snapshots of a window."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stream.arrays.kinds import Int32, Int64
from stream.kernels import njit
from trainer.strategies.snapshots.past import STRIDE, Past


@dataclass(frozen=True, slots=True)
class Hop:
    """Targets and their drawn neighbours.

    Attributes:
        targets: int64 (t,), keys, ascending.
        sources: int64 (s,), keys, ascending: the targets and their neighbours.
        indptr: int32 (t + 1,).
        neighbours: int32 (indptr[-1],), places among the sources.
        own: int32 (t,), the targets' places among the sources.
        degrees: (s,), neighbours of each source in its whole snapshot; None: no stage asks.
    """

    targets: Int64
    sources: Int64
    indptr: Int32
    neighbours: Int32
    own: Int32
    degrees: NDArray[np.generic] | None = None

    @classmethod
    def drawn(cls, past: Past, targets: Int64, fanout: int | None, seed: int) -> "Hop":
        """Neighbours of sorted, distinct keys."""
        indptr, neighbours = past.sample(targets, fanout, seed)
        here = max((len(snapshot.home) for snapshot in past.snapshots), default=0)
        nodes = max(
            here, int((targets % STRIDE).max(initial=-1)) + 1
        )  # targets that have not come have no neighbour
        sources, places, own = _numbered(targets, indptr, neighbours, nodes, STRIDE)
        return cls(targets, sources, indptr.astype(np.int32), places, own)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        columns = (self.targets, self.sources, self.indptr, self.neighbours, self.own, self.degrees)
        return sum(column.nbytes for column in columns if column is not None)

    def spread(self, past: Past) -> "Hop":
        """The same with every source in all snapshots, as a time stage below wants it; degrees are not kept."""
        snapshot, node = np.divmod(self.sources, STRIDE)
        marks = np.zeros(int(node.max(initial=-1)) + 1, np.bool_)
        marks[node] = True
        nodes = np.flatnonzero(marks)
        place = (snapshot * len(nodes) + np.cumsum(marks)[node] - 1).astype(np.int32)
        sources = past.keys(nodes).ravel()
        return Hop(self.targets, sources, self.indptr, place[self.neighbours], place[self.own])

    def between(self, first: int, end: int) -> "Hop":
        """Of the snapshots at places from ``first`` to before ``end`` only, with places among their sources."""
        rows, below = (
            slice(*np.searchsorted(keys, [first * STRIDE, end * STRIDE]))
            for keys in (self.targets, self.sources)
        )
        edges = slice(self.indptr[rows.start], self.indptr[rows.stop])
        return Hop(
            self.targets[rows],
            self.sources[below],
            self.indptr[rows.start : rows.stop + 1] - self.indptr[rows.start],
            self.neighbours[edges] - np.int32(below.start),
            self.own[rows] - np.int32(below.start),
            None if self.degrees is None else self.degrees[below],
        )

    def of(self, chosen: Int64) -> tuple["Hop", Int64]:
        """The same for some of the targets, by their places, ascending; and where its sources stand among these."""
        indptr, neighbours, own, used = _restrict(
            self.indptr, self.neighbours, self.own, chosen, len(self.sources)
        )
        return Hop(self.targets[chosen], self.sources[used], indptr, neighbours, own), used


@njit(cache=True, nogil=True)
def _restrict(indptr, neighbours, own, chosen, num_sources):  # type: ignore[no-untyped-def]  # compiled
    starts = np.zeros(len(chosen) + 1, np.int32)
    for i in range(len(chosen)):
        starts[i + 1] = starts[i] + indptr[chosen[i] + 1] - indptr[chosen[i]]
    place = np.full(num_sources, -1, np.int64)
    for i in range(len(chosen)):
        place[own[chosen[i]]] = 0
        for j in range(indptr[chosen[i]], indptr[chosen[i] + 1]):
            place[neighbours[j]] = 0
    used = np.flatnonzero(place == 0)
    for i in range(len(used)):
        place[used[i]] = i
    kept = np.empty(starts[-1], np.int32)
    own_kept = np.empty(len(chosen), np.int32)
    for i in range(len(chosen)):
        own_kept[i] = place[own[chosen[i]]]
        first = indptr[chosen[i]]
        for j in range(starts[i + 1] - starts[i]):
            kept[starts[i] + j] = place[neighbours[first + j]]
    return starts, kept, own_kept, used


@njit(cache=True, nogil=True)
def _numbered(targets, indptr, neighbours, nodes, stride):  # type: ignore[no-untyped-def]  # compiled
    """Sources of a hop, ascending, and where its neighbours and its targets stand among them; snapshot by snapshot.

    Args:
        targets: int64 (t,), keys, ascending.
        indptr: int64 (t + 1,).
        neighbours: int64 (indptr[-1],), keys.
        nodes: More than any node of a key.
        stride: Of keys.
    """
    place = np.full(nodes, -1, np.int64)
    sources = np.empty(len(targets) + len(neighbours), np.int64)
    places, own = np.empty(len(neighbours), np.int32), np.empty(len(targets), np.int32)
    found = begin = 0
    while begin < len(targets):
        base = targets[begin] // stride * stride
        end, first = begin, found
        while end < len(targets) and targets[end] < base + stride:
            end += 1
        for keys in (targets[begin:end], neighbours[indptr[begin] : indptr[end]]):
            for key in keys:
                if place[key - base] < 0:
                    place[key - base] = 0
                    sources[found] = key
                    found += 1
        if nodes < 16 * (found - first):  # looking at all is less than sorting
            found = first
            for node in range(nodes):
                if place[node] == 0:
                    sources[found] = base + node
                    found += 1
        else:
            sources[first:found].sort()
        for i in range(first, found):
            place[sources[i] - base] = i
        for i in range(begin, end):
            own[i] = place[targets[i] - base]
        for i in range(indptr[begin], indptr[end]):
            places[i] = place[neighbours[i] - base]
        for i in range(first, found):
            place[sources[i] - base] = -1
        begin = end
    return sources[:found].copy(), places, own
