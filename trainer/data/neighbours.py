"""Uniform neighbour samples of a snapshot, drawn without replacement; random signatures of nodes: both need no storage."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from freshet_graph.stream.arrays.kinds import Bool, Float32, Float64, Int32, Int64, UInt64
from freshet_graph.stream.kernels import njit
from freshet_graph.stream.kernels.node_sets import locate

MAX_WIDTH = 64


def signatures(nodes: Int64, width: int, seed: int) -> Float32:
    """Pseudo-random ±1/√width vectors, a pure function of node and seed: the same on every rank.

    Distinct nodes have nearly orthogonal signatures, so a mean of neighbours' signatures identifies the neighbours (a
    random projection of the adjacency, as in Johnson and Lindenstrauss).

    Args:
        nodes: int64 (n,) dense ids.
        width: At most ``MAX_WIDTH``; 0 gives none.
        seed: Any non-negative integer.

    Returns:
        float32 (n, width).
    """
    bits = mix64_array(nodes.astype(np.uint64) ^ mix64_array(np.array([seed + 1], np.uint64)))
    size = np.float32(1) / np.float32(np.sqrt(max(width, 1)))
    octets = bits.astype("<u8", copy=False)[:, None].view(np.uint8)
    signs = np.unpackbits(octets, axis=1, count=width, bitorder="little").astype(np.float32)
    signs *= 2 * size
    signs -= size
    return signs


@dataclass(frozen=True, slots=True)
class NodeEdges:
    """Edges of some nodes.

    Attributes:
        nodes: int32 (n,), ascending.
        indptr: int32 (n + 1,), int64 if the edges need it.
        indices: int32 (indptr[-1],), neighbours of one node after the other.
    """

    nodes: Int32
    indptr: NDArray[np.signedinteger]
    indices: Int32

    @classmethod
    def of_degrees(cls, nodes: Int64 | Int32, degrees: Int64, indices: Int32) -> "NodeEdges":
        """From the degrees of nodes, int64 (n,)."""
        narrow = np.int32 if len(indices) < 1 << 31 else np.int64
        return cls(nodes.astype(np.int32), _ends(degrees).astype(narrow), indices)

    @classmethod
    def empty(cls) -> "NodeEdges":
        """Of no node."""
        return cls(np.empty(0, np.int32), np.zeros(1, np.int32), np.empty(0, np.int32))

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.nodes.nbytes + self.indptr.nbytes + self.indices.nbytes

    def find(self, nodes: Int64) -> tuple[Bool, Int64, Int64]:
        """Which nodes have edges here, bool (n,), and int64 (n,) each: where its edges begin, and how many it has, 0 for none."""
        place, known = locate(
            self.nodes, nodes.astype(np.int32)
        )  # otherwise all nodes would be copied as int64
        if not len(self.nodes):
            return known, place, place
        first = self.indptr[place].astype(np.int64)
        return known, first, (self.indptr[place + 1] - first) * known

    def merged(self, nodes: Int64, degree: Int64, neighbours: Int32) -> "NodeEdges":
        """With the edges of other nodes, int64 (m,), ascending; their degrees, int64 (m,), and neighbours."""
        place = np.searchsorted(self.nodes, nodes)
        indices = np.insert(self.indices, np.repeat(self.indptr[place], degree), neighbours)
        return NodeEdges.of_degrees(
            np.insert(self.nodes, place, nodes), np.insert(self._degrees, place, degree), indices
        )

    def sums(self, values: Float64) -> Float64:
        """Sums over each node's neighbours of values by dense id, float64; 0 for nodes without edges here."""
        ends = np.repeat(self.nodes, self._degrees)
        return np.bincount(ends, values[self.indices], len(values)).astype(np.float64, copy=False)

    def edges_of(self, nodes: Int64) -> "NodeEdges":
        """Of those among ``nodes``, int64, ascending."""
        chosen = np.isin(self.nodes, nodes, assume_unique=True)
        degrees = self._degrees
        return NodeEdges.of_degrees(
            self.nodes[chosen], degrees[chosen], self.indices[np.repeat(chosen, degrees)]
        )

    @property
    def _degrees(self) -> Int64:
        return np.diff(self.indptr).astype(np.int64)


def sample_neighbours(
    local: NodeEdges, foreign: NodeEdges, nodes: Int64, fanout: int | None, seed: int
) -> tuple[Int64, Int64]:
    """Draw at most ``fanout`` distinct neighbours of each node, every subset equally likely.

    The draw of a node depends on ``seed`` and the node alone, so any number of ranks sees the same sample.

    Args:
        local: Edges of this rank's nodes.
        foreign: Edges of other nodes.
        nodes: int64 (n,); a node of neither has no neighbours.
        fanout: Most neighbours per node; None takes all.
        seed: Any integer.

    Returns:
        indptr int64 (n + 1,) and the neighbours int64 (indptr[-1],), in the edges' order within a node.
    """
    _, first, degrees = local.find(nodes)
    other = np.zeros(len(nodes), np.bool_)
    if len(foreign.nodes):
        other, foreign_first, foreign_degrees = foreign.find(nodes)
        first, degrees = np.where(other, foreign_first, first), np.where(other, foreign_degrees, degrees)
    indptr = _ends(degrees if fanout is None else np.minimum(degrees, fanout))
    out = np.empty(indptr[-1], np.int64)
    indices = (local.indices, foreign.indices)
    _sample(nodes, first, degrees, other, indices, indptr, np.uint64(seed % (1 << 64)), out)
    return indptr, out


def runs(starts: NDArray[np.signedinteger], lengths: NDArray[np.signedinteger]) -> Int64:
    """Places start, start + 1 … of every run, one run after the other: int64 (Σ lengths,)."""
    ends = np.cumsum(lengths)
    places: Int64 = np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - ends + lengths, lengths)
    return places


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


def mix64_array(x: UInt64) -> UInt64:
    """``mix64`` of every element, each with SplitMix64's increment added."""
    mixed: UInt64 = mix64.py_func(x + np.uint64(0x9E3779B97F4A7C15))
    return mixed


@njit(cache=True, nogil=True)
def draw_positions(node, population, seed, chosen):  # type: ignore[no-untyped-def]  # compiled
    """Fill ``chosen`` int64 (k,) with distinct ascending positions below ``population``, which is at least k.

    Every subset is equally likely; the draw follows from ``seed``, a uint64, and the node alone.
    """
    golden = np.uint64(0x9E3779B97F4A7C15)
    state = mix64(seed ^ mix64(np.uint64(node) + golden))
    # Floyd's algorithm: each step admits one more position and draws one that is not yet taken
    for j in range(len(chosen)):
        limit = population - len(chosen) + j
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


@njit(cache=True, nogil=True)
def _sample(nodes, firsts, degrees, other, indices, indptr, seed, out):  # type: ignore[no-untyped-def]  # compiled
    for i in range(len(nodes)):
        drawn, first = out[indptr[i] : indptr[i + 1]], firsts[i]
        neighbours = indices[1] if other[i] else indices[0]
        if len(drawn) == degrees[i]:
            drawn[:] = neighbours[first : first + len(drawn)]
            continue
        draw_positions(nodes[i], degrees[i], seed, drawn)
        for j in range(len(drawn)):
            drawn[j] = neighbours[first + drawn[j]]
