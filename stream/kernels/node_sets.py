"""Sets of nodes at a cost proportional to their number, not to that of all nodes.

``marks`` is bool, a row per node; all False between two calls.
"""

import numpy as np
from numpy.typing import NDArray

from stream.arrays.kinds import Bool, Int32, Int64
from stream.kernels import njit


@njit(cache=True, nogil=True)
def ascending(nodes: Int64, size: int, marks: Bool) -> Int64:
    """The first ``size`` of ``nodes``, all of them marked, as an ascending copy: by a scan of all marks if many, else a sort."""
    if size * 16 < len(marks):
        return np.sort(nodes[:size])
    out = np.empty(size, np.int64)
    n = 0
    for v in range(len(marks)):
        if marks[v]:
            out[n] = v
            n += 1
    return out


@njit(cache=True, nogil=True)
def union(some: Int64, others: Int64, marks: Bool) -> Int64:
    """Nodes of either, int64, ascending and distinct."""
    members = np.empty(len(some) + len(others), np.int64)
    size = 0
    for nodes in (some, others):
        for v in nodes:
            if not marks[v]:
                marks[v] = True
                members[size] = v
                size += 1
    ordered = ascending(members, size, marks)
    for v in ordered:
        marks[v] = False
    return ordered


@njit(cache=True, nogil=True)
def nodes_of(home: Int32, chosen: Bool) -> Int64:
    """Nodes whose part is chosen, int64, ascending; ``home`` int32 (N,), −1 for none, ``chosen`` bool (K,)."""
    size = 0
    for v in range(len(home)):
        size += home[v] >= 0 and chosen[home[v]]
    nodes = np.empty(size, np.int64)
    size = 0
    for v in range(len(home)):
        if home[v] >= 0 and chosen[home[v]]:
            nodes[size] = v
            size += 1
    return nodes


def distinct(*ids: Int64) -> Int64:
    """The distinct ids of any number of arrays, ascending; a sort is ten times as fast as the hash table of ``numpy.unique``."""
    merged = np.concatenate(ids) if ids else np.empty(0, np.int64)
    merged.sort()
    first = np.ones(len(merged), np.bool_)
    np.not_equal(merged[1:], merged[:-1], out=first[1:])
    return merged[first]


def locate(known: NDArray[np.signedinteger], keys: NDArray[np.signedinteger]) -> tuple[Int64, Bool]:
    """Places, int64 (n,), of keys among ascending known ones, and whether each is there, bool (n,).

    The place of a key that is not there is within bounds, but means nothing.
    """
    if not len(known):
        return np.zeros(len(keys), np.int64), np.zeros(len(keys), np.bool_)
    places = np.minimum(np.searchsorted(known, keys), len(known) - 1)
    return places, known[places] == keys
