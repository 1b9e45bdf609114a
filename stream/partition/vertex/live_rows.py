"""The live graph without rows of nodes that are not live, for libraries."""

import numpy as np

from stream.arrays.kinds import Int32, Int64
from stream.kernels import njit


@njit(cache=True, nogil=True)
def live_rows(indptr: Int64, indices: Int32, live: Int64) -> tuple[Int64, Int64]:
    """Adjacency among the live nodes, numbered by their place in ``live``.

    Args:
        indptr: int64 (N + 1,).
        indices: int32 (entries,); all of them live.
        live: int64 (n,), ascending.

    Returns:
        Row starts int64 (n + 1,) and neighbours int64 (entries,).
    """
    place = np.empty(len(indptr) - 1, np.int64)
    starts = np.zeros(len(live) + 1, np.int64)
    for i in range(len(live)):
        place[live[i]] = i
        starts[i + 1] = starts[i] + indptr[live[i] + 1] - indptr[live[i]]
    neighbours = np.empty(starts[-1], np.int64)
    for i in range(len(live)):
        entry = starts[i]
        for j in range(indptr[live[i]], indptr[live[i] + 1]):
            neighbours[entry] = place[indices[j]]
            entry += 1
    return starts, neighbours
