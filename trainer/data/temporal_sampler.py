"""Temporal neighbours: the most recent, or uniform ones, strictly before a time; nodes named once."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numba import njit
from numpy.typing import NDArray

from trainer.data.neighbours import mix64
from trainer.data.temporal_graph import NODE_BITS, TemporalGraph

Int64 = NDArray[np.int64]
Int32 = NDArray[np.int32]
How = Literal["recent", "uniform"]

HOWS: tuple[How, ...] = ("recent", "uniform")


@dataclass(frozen=True, slots=True)
class Neighbours:
    """At most k interactions of each of R rows, newest first.

    Attributes:
        node: int32 (R, k), the other end; −1 where a row has fewer than k.
        event: int64 (R, k), as ``TemporalGraph.event``; −1 likewise.
        time_us: int64 (R, k); 0 likewise.
        count: int64 (R,), interactions of each row.
    """

    node: Int32
    event: Int64
    time_us: Int64
    count: Int64


@dataclass(frozen=True, slots=True)
class Layer:
    """Neighbours of distinct nodes, as places among the distinct nodes of the layer below.

    Attributes:
        nodes: int64 (n,), distinct.
        sampled: Their neighbours, (n, k).
        own: int64 (n,), place of each node in the layer below.
        place: int64 (n, k), place of each neighbour in the layer below; 0 where there is none.
    """

    nodes: Int64
    sampled: Neighbours
    own: Int64
    place: Int64


def sample_before(
    graph: TemporalGraph, nodes: Int64, before_us: Int64 | int, k: int, how: How = "recent", seed: int = 0
) -> Neighbours:
    """At most ``k`` interactions of each node strictly before a time.

    ``recent`` takes the last ones, of equal times those appended last. ``uniform`` draws without replacement, every
    subset equally likely; the draw depends on ``seed`` and the node alone.

    Args:
        graph: The interactions.
        nodes: int64 (R,), repeats allowed; a node beyond the graph's rows has none.
        before_us: int64 (R,) or one for all, microseconds.
        k: At least 1.
        how: Which interactions.
        seed: Any integer; ``recent`` needs none.
    """
    shape = (len(nodes), k)
    found = Neighbours(
        np.empty(shape, np.int32),
        np.empty(shape, np.int64),
        np.empty(shape, np.int64),
        np.empty(shape[0], np.int64),
    )
    before = np.broadcast_to(np.asarray(before_us, np.int64), len(nodes))
    _sample(
        (graph.row, graph.entry),
        (nodes, before),
        (how == "uniform", np.uint64(seed % (1 << 64))),
        (found.node, found.event, found.time_us, found.count),
    )
    return found


class TemporalSampler:
    """Samples layer by layer, each node of a layer once.

    Args:
        graph: The interactions; may grow between calls.
        k: Interactions a node.
        how: Which.
        seed: Of uniform draws.
    """

    def __init__(self, graph: TemporalGraph, k: int, how: How = "recent", seed: int = 0) -> None:
        if how not in HOWS:
            raise ValueError(f"neighbours must be sampled {' or '.join(HOWS)}, found {how!r}")
        self.graph = graph
        self._k = k
        self._how: How = how
        self._seed = seed
        self._place: Int32 = np.empty(0, np.int32)  # −1 between calls

    def distinct(self, *ids: NDArray[np.signedinteger]) -> tuple[Int64, list[Int64]]:
        """Distinct ids in order of first appearance, and the place of every id among them.

        Args:
            ids: Integer arrays of any shape; negative entries stand for nothing and get place 0.

        Returns:
            int64 (n,), and for each array its places, int64 of its shape.
        """
        flat = [array.ravel() for array in ids]
        highest = max((int(array.max(initial=-1)) for array in flat), default=-1)
        if highest >= len(self._place):
            self._place = np.full(
                max(highest + 1, len(self._place) * 5 // 4, self.graph.num_nodes), -1, np.int32
            )
        found: Int64 = np.empty(sum(len(array) for array in flat), np.int64)
        places = [np.empty(len(array), np.int64) for array in flat]
        size = 0
        for array, place in zip(flat, places, strict=True):
            size = _distinct(array, self._place, found, size, place)
        _forget(found, size, self._place)
        return found[:size], [place.reshape(array.shape) for place, array in zip(places, ids, strict=True)]

    def layers(self, nodes: Int64, before_us: int, layers: int, draw: int = 0) -> list[Layer]:
        """Sample ``layers`` deep, all strictly before one time.

        Args:
            nodes: int64 (n,), distinct: targets of the first layer.
            before_us: Microseconds.
            layers: At least 1.
            draw: Distinguishes uniform draws.

        Returns:
            From the targets down. The nodes whose inputs are needed are those of ``distinct`` below the last, as
            ``below`` gives them.
        """
        found = []
        for depth in range(layers):
            sampled = sample_before(
                self.graph, nodes, before_us, self._k, self._how, self._seed + 7919 * draw + depth
            )
            below, (own, place) = self.distinct(nodes, sampled.node)
            found.append(Layer(nodes, sampled, own, place))
            nodes = below
        self.below = nodes
        return found


@njit(cache=True, nogil=True)
def _sample(graph, queries, draw, out):  # type: ignore[no-untyped-def]  # compiled
    row, entry = graph
    nodes, before = queries
    uniform, seed = draw
    out_node, out_event, out_time, out_count = out
    k = out_node.shape[1]
    rest = (np.int64(1) << NODE_BITS) - 1
    # Rows lie anywhere in memory. Loads that don't wait for each other are fetched side by side: first all rows, then
    # all newest times; a single loop would wait for two misses a node, one after the other.
    first = np.empty(len(nodes), np.int64)
    newest = np.empty(len(nodes), np.int64)
    for i in range(len(nodes)):
        node = nodes[i]
        first[i] = row[node, 0] if node < len(row) else 0
        out_count[i] = row[node, 1] if node < len(row) else 0
    for i in range(len(nodes)):
        newest[i] = entry[first[i] + out_count[i] - 1, 0] if out_count[i] > 0 else 0
    chosen = np.empty(k, np.int64)
    for i in range(len(nodes)):
        begin, seen = first[i], out_count[i]
        if seen > 0 and newest[i] >= before[i]:
            low, high = np.int64(0), seen - 1  # entry ``high`` is not before
            while low < high:
                middle = (low + high) >> 1
                if entry[begin + middle, 0] < before[i]:
                    low = middle + 1
                else:
                    high = middle
            seen = low
        count = min(seen, k)
        out_count[i] = count
        drawn = uniform and seen > k
        if drawn:
            _floyd(nodes[i], seen, seed, chosen)
        for j in range(count):
            at = begin + (chosen[j] if drawn else seen - 1 - j)
            word = entry[at, 1]
            out_node[i, j] = word & rest
            out_event[i, j] = word >> NODE_BITS
            out_time[i, j] = entry[at, 0]
        for j in range(count, k):
            out_node[i, j] = -1
            out_event[i, j] = -1
            out_time[i, j] = 0


@njit(cache=True, nogil=True)
def _floyd(node, population, seed, chosen):  # type: ignore[no-untyped-def]  # compiled
    """Fill ``chosen`` with distinct positions below ``population``, descending (Floyd's algorithm)."""
    golden = np.uint64(0x9E3779B97F4A7C15)
    state = mix64(seed ^ mix64(np.uint64(node) + golden))
    k = len(chosen)
    for j in range(k):
        limit = population - k + j
        state += golden
        drawn = np.int64(mix64(state) >> np.uint64(1)) % (limit + 1)
        for other in range(j):  # each step admits one more position and draws one that is not yet taken
            if chosen[other] == drawn:
                drawn = limit
                break
        place = j
        while place > 0 and chosen[place - 1] < drawn:
            chosen[place] = chosen[place - 1]
            place -= 1
        chosen[place] = drawn


@njit(cache=True, nogil=True)
def _distinct(ids, place, found, size, out):  # type: ignore[no-untyped-def]  # compiled
    for i in range(len(ids)):
        node = ids[i]
        if node < 0:
            out[i] = 0
            continue
        at = place[node]
        if at < 0:
            at = size
            place[node] = at
            found[size] = node
            size += 1
        out[i] = at
    return size


@njit(cache=True, nogil=True)
def _forget(found, size, place):  # type: ignore[no-untyped-def]  # compiled
    for i in range(size):
        place[found[i]] = -1
