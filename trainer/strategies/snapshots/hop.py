"""One hop of a neighbour sample: targets and sources of a graph stage, over all snapshots of a window."""

from dataclasses import dataclass

import numpy as np
from numba import njit

from stream.arrays.kinds import Int64
from trainer.strategies.snapshots.past import Past


@dataclass(frozen=True, slots=True)
class Hop:
    """Targets and their drawn neighbours.

    Attributes:
        targets: int64 (t,), keys, ascending.
        sources: int64 (s,), keys, ascending: the targets and their neighbours.
        indptr: int64 (t + 1,).
        neighbours: int64 (indptr[-1],), places among the sources.
        own: int64 (t,), the targets' places among the sources.
    """

    targets: Int64
    sources: Int64
    indptr: Int64
    neighbours: Int64
    own: Int64

    @classmethod
    def drawn(cls, past: Past, targets: Int64, fanout: int | None, seed: int) -> "Hop":
        """Neighbours of sorted, distinct keys."""
        indptr, neighbours = past.sample(targets, fanout, seed)
        sources = np.unique(np.concatenate([targets, neighbours]))
        return cls(
            targets,
            sources,
            indptr,
            np.searchsorted(sources, neighbours),
            np.searchsorted(sources, targets),
        )

    def of(self, targets: Int64) -> tuple["Hop", Int64]:
        """The hop of some of the targets, sorted and distinct; and the places of its sources among those of this one."""
        chosen = np.searchsorted(self.targets, targets)
        indptr, neighbours, own, used = _restrict(
            self.indptr, self.neighbours, self.own, chosen, len(self.sources)
        )
        return Hop(targets, self.sources[used], indptr, neighbours, own), used


@njit(cache=True, nogil=True)
def _restrict(indptr, neighbours, own, chosen, num_sources):  # type: ignore[no-untyped-def]  # compiled
    starts = np.zeros(len(chosen) + 1, np.int64)
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
    kept = np.empty(starts[-1], np.int64)
    own_kept = np.empty(len(chosen), np.int64)
    for i in range(len(chosen)):
        own_kept[i] = place[own[chosen[i]]]
        first = indptr[chosen[i]]
        for j in range(starts[i + 1] - starts[i]):
            kept[starts[i] + j] = place[neighbours[first + j]]
    return starts, kept, own_kept, used
