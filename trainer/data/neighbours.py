"""Uniform neighbour samples of a snapshot's adjacency, drawn without replacement."""

import numpy as np

from stream.arrays.kinds import Int64
from stream.kernels import njit
from stream.snapshots.delta import Rows


def sample_neighbours(graph: Rows, nodes: Int64, fanout: int | None, seed: int) -> tuple[Int64, Int64]:
    """Draw at most ``fanout`` distinct neighbours of each node, every subset equally likely.

    The draw of a node depends on ``seed`` and the node alone, so any number of ranks sees the same sample.

    Args:
        graph: Adjacency over dense ids.
        nodes: int64 (n,); a node beyond the graph's rows has no neighbours.
        fanout: Most neighbours per node; None takes all.
        seed: Any integer.

    Returns:
        indptr int64 (n + 1,) and the neighbours int64 (indptr[-1],), in the graph's order within a node.
    """
    inside = nodes < len(graph.start)
    rows = np.where(inside, nodes, 0)
    degrees = np.where(inside, graph.end[rows] - graph.start[rows], 0)
    taken = degrees if fanout is None else np.minimum(degrees, fanout)
    indptr = np.zeros(len(nodes) + 1, np.int64)
    np.cumsum(taken, out=indptr[1:])
    out = np.empty(indptr[-1], np.int64)
    _sample(graph.start, graph.indices, rows, degrees, indptr, np.uint64(seed % (1 << 64)), out)
    return indptr, out


@njit(cache=True, nogil=True, inline="always")
def mix64(x):  # type: ignore[no-untyped-def]  # compiled
    """SplitMix64's finaliser (Steele et al. 2014): one well-mixed uint64 of another."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@njit(cache=True, nogil=True)
def mix64_array(x):  # type: ignore[no-untyped-def]  # compiled
    """``mix64`` of every element of a uint64 array."""
    out = np.empty_like(x)
    for i in range(len(x)):
        out[i] = mix64(x[i] + np.uint64(0x9E3779B97F4A7C15))
    return out


@njit(cache=True, nogil=True)
def _sample(starts, indices, nodes, degrees, indptr, seed, out):  # type: ignore[no-untyped-def]  # compiled
    golden = np.uint64(0x9E3779B97F4A7C15)
    chosen = np.empty(0, np.int64)
    for i in range(len(nodes)):
        begin, count = indptr[i], indptr[i + 1] - indptr[i]
        first, degree = starts[nodes[i]], degrees[i]
        if count == degree:
            for j in range(count):
                out[begin + j] = indices[first + j]
            continue
        if len(chosen) < count:
            chosen = np.empty(count, np.int64)
        state = mix64(seed ^ mix64(np.uint64(nodes[i]) + golden))
        # Floyd's algorithm: each step admits one more position and draws one that is not yet taken
        for j in range(count):
            limit = degree - count + j
            state += golden
            draw = np.int64(mix64(state) % np.uint64(limit + 1))
            for k in range(j):
                if chosen[k] == draw:
                    draw = limit
                    break
            k = j
            while k > 0 and chosen[k - 1] > draw:
                chosen[k] = chosen[k - 1]
                k -= 1
            chosen[k] = draw
        for j in range(count):
            out[begin + j] = indices[first + chosen[j]]
