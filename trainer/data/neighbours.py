"""Uniform neighbour samples of a snapshot's adjacency, drawn without replacement."""

from dataclasses import dataclass

import numpy as np

from stream.arrays.kinds import Int32, Int64
from stream.kernels import njit
from stream.snapshots.delta import Rows


@dataclass(frozen=True, slots=True)
class NodeEdges:
    """Edges of some nodes.

    Attributes:
        nodes: int64 (n,), ascending.
        indptr: int64 (n + 1,).
        indices: int32 (indptr[-1],), neighbours of one node after the other.
    """

    nodes: Int64
    indptr: Int64
    indices: Int32

    @classmethod
    def empty(cls) -> "NodeEdges":
        """Of no node."""
        return cls(np.empty(0, np.int64), np.zeros(1, np.int64), np.empty(0, np.int32))

    def merged(self, nodes: Int64, degree: Int64, neighbours: Int32) -> "NodeEdges":
        """With the edges of other nodes, int64 (m,), ascending; their degrees, int64 (m,), and neighbours."""
        at = np.searchsorted(self.nodes, nodes)
        degrees = np.insert(np.diff(self.indptr), at, degree)
        indices = np.insert(self.indices, np.repeat(self.indptr[at], degree), neighbours)
        return NodeEdges(np.insert(self.nodes, at, nodes), _ends(degrees), indices)

    def of(self, nodes: Int64) -> "NodeEdges":
        """Of those among ``nodes``, int64, ascending."""
        kept = np.isin(self.nodes, nodes, assume_unique=True)
        degrees = np.diff(self.indptr)
        return NodeEdges(self.nodes[kept], _ends(degrees[kept]), self.indices[np.repeat(kept, degrees)])


def sample_neighbours(
    graph: Rows, nodes: Int64, fanout: int | None, seed: int, beside: NodeEdges | None = None
) -> tuple[Int64, Int64]:
    """Draw at most ``fanout`` distinct neighbours of each node, every subset equally likely.

    The draw of a node depends on ``seed`` and the node alone, so any number of ranks sees the same sample.

    Args:
        graph: Adjacency over dense ids.
        nodes: int64 (n,); a node beyond the graph's rows has no neighbours.
        fanout: Most neighbours per node; None takes all.
        seed: Any integer.
        beside: Edges of nodes that the graph does not have, or not in full.

    Returns:
        indptr int64 (n + 1,) and the neighbours int64 (indptr[-1],), in the graph's order within a node.
    """
    inside = nodes < len(graph.start)
    rows = np.where(inside, nodes, 0)
    first = np.where(inside, graph.start[rows], 0)
    degrees = np.where(inside, graph.end[rows], 0) - first
    other = np.zeros(len(nodes), np.bool_)
    if beside is not None and len(beside.nodes):
        at = np.minimum(np.searchsorted(beside.nodes, nodes), len(beside.nodes) - 1)
        other = beside.nodes[at] == nodes
        first = np.where(other, beside.indptr[at], first)
        degrees = np.where(other, beside.indptr[at + 1] - beside.indptr[at], degrees)
    taken = degrees if fanout is None else np.minimum(degrees, fanout)
    indptr = _ends(taken)
    out = np.empty(indptr[-1], np.int64)
    indices = (graph.indices, graph.indices if beside is None else beside.indices)
    _sample(nodes, first, degrees, other, indices, indptr, np.uint64(seed % (1 << 64)), out)
    return indptr, out


def _ends(lengths: Int64) -> Int64:
    indptr = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=indptr[1:])
    return indptr


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
def _sample(nodes, firsts, degrees, other, indices, indptr, seed, out):  # type: ignore[no-untyped-def]  # compiled
    golden = np.uint64(0x9E3779B97F4A7C15)
    chosen = np.empty(0, np.int64)
    for i in range(len(nodes)):
        begin, count = indptr[i], indptr[i + 1] - indptr[i]
        first, degree = firsts[i], degrees[i]
        neighbours = indices[1] if other[i] else indices[0]
        if count == degree:
            for j in range(count):
                out[begin + j] = neighbours[first + j]
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
            out[begin + j] = neighbours[first + chosen[j]]
