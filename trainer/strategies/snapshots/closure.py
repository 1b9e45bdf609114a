"""The reach of a few nodes, hop by hop: exactly the edges and rows that an L-layer network needs for them.

Rows are numbered as they are found: a level's targets first if it has one set of rows for all snapshots. Kernels release
the interpreter's lock, so another thread can make the next batch during training.
"""

from dataclasses import dataclass

import numpy as np

from stream.arrays.kinds import Float32, Float64, Int32, Int64
from stream.kernels import njit


@dataclass(frozen=True, slots=True)
class HostGraph:
    """One snapshot's undirected adjacency on the host, over dense ids, without self-loops.

    Attributes:
        tau: Interval index.
        num_nodes: Dense ids in use.
        starts: int64 (k + 1,), k at most ``num_nodes``: nodes from k on have no edge.
        neighbours: int32 (edges,), ascending within a row; every pair occurs in both directions.
        values: float32 (edges,); None: all are 1.
        scale: float32 (k + 1,), 1 / √(1 + strength); the last one, 1, is that of every node from k on.
    """

    tau: int
    num_nodes: int
    starts: Int64
    neighbours: Int32
    values: Float32 | None
    scale: Float32

    @classmethod
    def of_pairs(
        cls, tau: int, num_nodes: int, low: Int64, high: Int64, values: Float32 | None
    ) -> "HostGraph":
        """From pairs of two nodes, each once."""
        ends = np.concatenate([low, high])
        others = np.concatenate([high, low])
        size = int(ends.max(initial=-1)) + 1
        order = np.lexsort((others, ends))
        starts = np.zeros(size + 1, np.int64)
        np.cumsum(np.bincount(ends, minlength=size), out=starts[1:])
        both = None if values is None else np.tile(values, 2)
        strength = np.diff(starts) if both is None else np.bincount(ends, both, size)
        scale = ((np.append(strength, 0).astype(np.float32) + np.float32(1)) ** np.float32(-0.5)).astype(
            np.float32
        )
        return cls(
            tau,
            num_nodes,
            starts,
            others[order].astype(np.int32),
            None if both is None else both[order],
            scale,
        )

    def degrees(self, nodes: Int64) -> Int64:
        """Edges of nodes, int64 (n,)."""
        found: Int64 = self.starts.take(nodes + 1, mode="clip") - self.starts.take(nodes, mode="clip")
        return found

    def scales(self, nodes: Int64) -> Float32:
        """``scale`` of nodes, float32 (n,)."""
        return self.scale.take(nodes, mode="clip")

    def loads(self, hops: int) -> Float64:
        """Σ_{l ≤ hops} Σ_{j ≤ l} (walks of length j from a node), float64 (k,): DynaHB's definition 2."""
        return walk_loads(self.starts, self.neighbours, hops)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        values = 0 if self.values is None else self.values.nbytes
        return self.starts.nbytes + self.neighbours.nbytes + self.scale.nbytes + values


@njit(cache=True, nogil=True)
def walk_loads(starts, neighbours, hops):  # type: ignore[no-untyped-def]  # compiled
    """See ``HostGraph.loads``."""
    n = len(starts) - 1
    walks, total = np.ones(n), np.full(n, float(hops + 1))
    for hop in range(1, hops + 1):
        longer = np.zeros(n)
        for i in range(n):
            for j in range(starts[i], starts[i + 1]):
                longer[i] += walks[neighbours[j]]
        for i in range(n):  # a walk of length j counts in every l from j on
            total[i] += longer[i] * (hops + 1 - hop)
        walks = longer
    return total


@njit(cache=True, nogil=True)
def enter(nodes, place, order, count):  # type: ignore[no-untyped-def]  # compiled
    """Number new nodes from ``count`` on; returns the number of numbered nodes.

    Args:
        nodes: int64 (n,).
        place: int32, number by node; −1: none.
        order: int64, node by number.
        count: Numbers that are given.
    """
    for node in nodes:
        if place[node] < 0:
            place[node] = count
            order[count] = node
            count += 1
    return count


@njit(cache=True, nogil=True)
def expand(starts, neighbours, targets, place, order, count):  # type: ignore[no-untyped-def]  # compiled
    """The neighbours of targets in one snapshot, numbered as they are found.

    Args:
        starts: Of the snapshot.
        neighbours: Of the snapshot.
        targets: int64 (n,).
        place: See ``enter``.
        order: See ``enter``.
        count: See ``enter``.

    Returns:
        int32 (n + 1,) the first edge of each target, int32 the number of each edge's source, int64 the place of each edge in
        the snapshot, and the number of numbered nodes.
    """
    known = len(starts) - 1
    begins = np.zeros(len(targets) + 1, np.int32)
    for i in range(len(targets)):
        node = targets[i]
        begins[i + 1] = begins[i]
        if node < known:
            begins[i + 1] += starts[node + 1] - starts[node]
    sources = np.empty(begins[-1], np.int32)
    edges = np.empty(begins[-1], np.int64)
    for i in range(len(targets)):
        if begins[i + 1] == begins[i]:
            continue
        first = starts[targets[i]] - begins[i]
        for j in range(begins[i], begins[i + 1]):
            other = neighbours[first + j]
            if place[other] < 0:
                place[other] = count
                order[count] = other
                count += 1
            sources[j] = place[other]
            edges[j] = first + j
    return begins, sources, edges, count


@njit(cache=True, nogil=True)
def turned(starts, sources, num_sources):  # type: ignore[no-untyped-def]  # compiled
    """The transpose of a block of edges, by counting.

    Args:
        starts: int32 (n + 1,).
        sources: int32 (edges,).
        num_sources: m.

    Returns:
        int32 (m + 1,) the first edge of each source, int32 (edges,) their targets, ascending, and int64 their former places.
    """
    begins = np.zeros(num_sources + 1, np.int32)
    for source in sources:
        begins[source + 1] += 1
    for i in range(num_sources):
        begins[i + 1] += begins[i]
    at = begins[:-1].copy()
    targets = np.empty(len(sources), np.int32)
    stood = np.empty(len(sources), np.int64)
    for i in range(len(starts) - 1):
        for j in range(starts[i], starts[i + 1]):
            source = sources[j]
            targets[at[source]] = i
            stood[at[source]] = j
            at[source] += 1
    return begins, targets, stood


@njit(cache=True, nogil=True)
def scaled(starts, sources, of_targets, of_sources, values):  # type: ignore[no-untyped-def]  # compiled
    """Values of D^−½ A D^−½, float32 (edges,).

    Args:
        starts: int32 (n + 1,).
        sources: int32 (edges,).
        of_targets: float32 (n,), 1 / √(1 + strength) in the whole graph.
        of_sources: float32 (m,), the same.
        values: float32 (edges,), or (0,): all are 1.
    """
    found = np.empty(len(sources), np.float32)
    for i in range(len(starts) - 1):
        for j in range(starts[i], starts[i + 1]):
            found[j] = of_targets[i] * of_sources[sources[j]]
            if len(values):
                found[j] *= values[j]
    return found
