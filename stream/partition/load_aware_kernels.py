"""Loops of ``load-aware``: loads by label propagation, kept current by deltas, and dealing anew what is too much."""

import numpy as np
from numba import njit
from numpy.typing import NDArray

from stream.snapshots.delta import Float64, Int32, Int64


@njit(cache=True, nogil=True)
def advance_labels(indptr: Int64, indices: Int32, touched: Int64, labels: Float64) -> Int64:
    """Bring label sums up to date after a delta: ``labels[l, v] = Σ labels[l − 1, u]`` over v's neighbours u.

    Only nodes whose neighbourhood changed, and neighbours of nodes whose label changed one layer below, are summed
    again (DynaHB Alg. 1 lines 3 to 7, for what a delta changes).

    Args:
        indptr: int64 (N + 1,).
        indices: int32 (entries,).
        touched: int64, every node whose row changed.
        labels: float64 (L + 1, N), labels[0] all 1; written to. Whole numbers.

    Returns:
        Nodes with a label that may have changed, int64, without repeats.
    """
    due = np.zeros(len(indptr) - 1, np.bool_)
    due_nodes = np.empty(len(indptr) - 1, np.int64)
    size = 0
    for v in touched:
        if not due[v]:
            due[v] = True
            due_nodes[size] = v
            size += 1
    for layer in range(1, len(labels)):
        now = size  # what becomes due here is summed from the next layer on
        for i in range(now):
            v = due_nodes[i]
            total = 0.0
            for j in range(indptr[v], indptr[v + 1]):
                total += labels[layer - 1, indices[j]]
            if total == labels[layer, v]:
                continue
            labels[layer, v] = total
            if layer + 1 == len(labels):
                continue
            for j in range(indptr[v], indptr[v + 1]):
                u = indices[j]
                if not due[u]:
                    due[u] = True
                    due_nodes[size] = u
                    size += 1
    return due_nodes[:size].copy()


@njit(cache=True, nogil=True)
def deal_again(
    order: Int64,
    load: Float64,
    owner: Int32,
    part_load: Float64,
    count: Int64,
    heavy: NDArray[np.bool_],
    mean: float,
    most_nodes: int,
) -> int:
    """Take from parts what they hold too much of, and deal it to the lightest parts.

    A heavy part gives up nodes, the heaviest first, each only if it leaves the part at the mean or above. Then a part
    above ``most_nodes`` gives up its lightest. What was given up is dealt heaviest first, each node to the part of the
    least load (then the lower) that holds fewer than ``most_nodes``.

    Args:
        order: int64 (n,) live nodes, heaviest first.
        load: float64 (N,).
        owner: int32 (N,); written to.
        part_load: float64 (K,); written to.
        count: int64 (K,) nodes a part; written to.
        heavy: bool (K,).
        mean: Of the parts' loads.
        most_nodes: K·most_nodes ≥ n.

    Returns:
        Nodes given up.
    """
    given = np.zeros(len(order), np.bool_)
    total = 0
    for i in range(len(order)):
        v = order[i]
        k = owner[v]
        if heavy[k] and load[v] > 0.0 and part_load[k] - load[v] >= mean:
            given[i] = True
            part_load[k] -= load[v]
            count[k] -= 1
            total += 1
    for i in range(len(order) - 1, -1, -1):
        k = owner[order[i]]
        if not given[i] and count[k] > most_nodes:
            given[i] = True
            part_load[k] -= load[order[i]]
            count[k] -= 1
            total += 1
    for i in range(len(order)):
        if not given[i]:
            continue
        best = -1
        for p in range(len(count)):
            if count[p] < most_nodes and (best < 0 or part_load[p] < part_load[best]):
                best = p
        owner[order[i]] = best
        part_load[best] += load[order[i]]
        count[best] += 1
    return total
