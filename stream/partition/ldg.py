"""LDG: new nodes go where most of their neighbours are, and stay (Stanton and Kliot 2012)."""

from typing import Any, ClassVar

import numpy as np
from numba import njit
from numpy.typing import NDArray

from stream.partition.interface import PartitionError, register
from stream.partition.mixing import mixed_part
from stream.partition.vertex import VertexPartitioner
from stream.snapshots.delta import Int32, Int64, SnapshotDelta


@register
class Ldg(VertexPartitioner):
    """Linear deterministic greedy: neighbours in a part, times how much of its share of nodes is free.

    Args:
        slack: Nodes that a part may have over the mean of the snapshot: capacity is slack·n/K.
        shared: parts, seed, window and fanout of all vertex partitioners.
    """

    name: ClassVar[str] = "ldg"

    def __init__(self, *, slack: float = 1.05, **shared: Any) -> None:
        super().__init__(**shared)
        if not slack >= 1:
            raise PartitionError(f"ldg takes slack ≥ 1, found {slack}")
        self.slack = slack

    def _place(self, delta: SnapshotDelta) -> Int32:
        owner = self._home.copy()
        capacity = self.slack * len(delta.live) / self.parts
        place_new(delta.graph.indptr, delta.graph.indices, delta.live, owner, self.parts, capacity, self.seed)
        placed: NDArray[np.int32] = owner[delta.live]
        return placed


@njit(cache=True, nogil=True)
def place_new(
    indptr: Int64, indices: Int32, live: Int64, owner: Int32, parts: int, capacity: float, seed: int
) -> None:
    """Give each live node without an owner the part of the largest ``neighbours·(1 − size/capacity)``.

    A part at or over its capacity is taken by no node while another has room; of equal parts the smallest,
    then the next from a draw of the node's own.

    Args:
        indptr: int64 (N + 1,).
        indices: int32 (entries,).
        live: int64 (n,), in the order of placement.
        owner: int32 (N,), −1 for none; written to.
        parts: K.
        capacity: Nodes a part.
        seed: Of the draws.
    """
    sizes = np.zeros(parts, np.int64)
    for v in live:
        if owner[v] >= 0:
            sizes[owner[v]] += 1
    near = np.zeros(parts, np.int64)
    for v in live:
        if owner[v] >= 0:
            continue
        near[:] = 0
        for i in range(indptr[v], indptr[v + 1]):
            if owner[indices[i]] >= 0:
                near[owner[indices[i]]] += 1
        p = mixed_part(seed, v, parts)
        best, best_score = -1, 0.0
        for _ in range(parts):
            room = 1.0 - sizes[p] / capacity
            score = near[p] * room if room > 0.0 else room - 1.0
            if best < 0 or score > best_score or (score == best_score and sizes[p] < sizes[best]):
                best, best_score = p, score
            p += 1
            if p == parts:
                p = 0
        owner[v] = best
        sizes[best] += 1
