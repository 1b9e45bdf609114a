"""Temporal neighbours strictly before a time, the most recent or uniform ones, over distinct nodes."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from stream.arrays.kinds import Int32, Int64
from stream.kernels import njit
from trainer.data.neighbours import mix64
from trainer.data.temporal_graph import NODE_BITS, TemporalGraph

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_LOWER, _HALF = np.uint64((1 << 32) - 1), np.uint64(32)

# Row by row, each step would wait for the one before, and numbers stored one by one would be read back in one piece, which
# stalls. Step by step for all rows nothing waits: k positions are compared and sorted for eight rows at once.


@njit(cache=True, nogil=True)
def draw_positions(nodes, seen, seed, drawn):  # type: ignore[no-untyped-def]  # compiled
    """Fill the first n columns of ``drawn`` int64 (k, ≥ n) with distinct positions below ``seen`` of each of n nodes, descending.

    If fewer than k exist, all are drawn, followed by negative numbers in the column. Every subset is equally likely; the
    draw follows from ``seed`` and the node alone.

    Args:
        nodes: int64 (n,).
        seen: int64 (n,).
        seed: uint64.
        drawn: Contiguous, so that eight numbers are loaded at once.
    """
    k, n = len(drawn), len(nodes)
    state, taken = np.empty(n, np.uint64), np.empty(n, np.int64)
    for i in range(n):
        state[i] = mix64(seed ^ mix64(np.uint64(nodes[i]) + _GOLDEN))
    for step in range(k):
        _draw(seen, k - step, state, drawn[step][:n])
        taken[:] = 0
        for other in range(step):
            _compare(drawn[other][:n], drawn[step][:n], taken)
        _settle(seen, k - step, taken, drawn[step][:n])
    for end in range(k - 1, 0, -1):
        for first in range(end):
            _exchange(drawn[first][:n], drawn[first + 1][:n])
    for step in range(k):
        _take_all(seen, k, step, drawn[step][:n])


@njit(cache=True, nogil=True)
def _draw(seen, left, state, drawn):  # type: ignore[no-untyped-def]  # compiled
    """Draw one of the positions 0 … seen − left each: the upper 64 bits of word · size, without a division."""
    for i in range(len(drawn)):
        state[i] += _GOLDEN
        word = mix64(state[i])
        size = np.uint64(seen[i] - left + 1)
        drawn[i] = np.int64(((word >> _HALF) * size + (((word & _LOWER) * size) >> _HALF)) >> _HALF)


@njit(cache=True, nogil=True)
def _compare(other, drawn, taken):  # type: ignore[no-untyped-def]  # compiled
    for i in range(len(drawn)):
        taken[i] |= np.int64(other[i] == drawn[i])


@njit(cache=True, nogil=True)
def _settle(seen, left, taken, drawn):  # type: ignore[no-untyped-def]  # compiled
    """Each step admits one more position, and takes that one if its draw is already taken."""
    for i in range(len(drawn)):
        drawn[i] = seen[i] - left if taken[i] else drawn[i]


@njit(cache=True, nogil=True)
def _exchange(one, other):  # type: ignore[no-untyped-def]  # compiled
    for i in range(len(one)):
        larger, smaller = max(one[i], other[i]), min(one[i], other[i])
        one[i] = larger
        other[i] = smaller


@njit(cache=True, nogil=True)
def _take_all(seen, k, step, drawn):  # type: ignore[no-untyped-def]  # compiled
    for i in range(len(drawn)):
        drawn[i] = drawn[i] if seen[i] > k else seen[i] - 1 - step


How = Literal["recent", "uniform"]

HOWS: tuple[How, ...] = ("recent", "uniform")

BLOCK = 512
"""Queries processed together; their data fit into the second-level cache."""
LINE = 4
"""Entries per cache line."""


@dataclass(frozen=True, slots=True)
class Neighbours:
    """At most k interactions of each of R rows, newest first.

    Attributes:
        node: int32 (R, k), the other end; −1 if a row has fewer than k.
        event: int64 (R, k), as in ``TemporalGraph.entry``; then −1.
        time_us: int64 (R, k); then 0.
        count: int64 (R,), interactions of each row.
    """

    node: Int32
    event: Int64
    time_us: Int64
    count: Int64


@dataclass(frozen=True, slots=True)
class SampledLayer:
    """Neighbours of distinct nodes, as places among the distinct nodes of the layer below.

    Attributes:
        nodes: int64 (n,), distinct.
        sampled: Their neighbours, (n, k).
        own_place: int64 (n,), place of each node in the layer below.
        place: int64 (n, k), place of each neighbour in the layer below; 0 for missing ones.
    """

    nodes: Int64
    sampled: Neighbours
    own_place: Int64
    place: Int64


def sample_before(
    graph: TemporalGraph, nodes: Int64, before_us: Int64 | int, k: int, how: How = "recent", seed: int = 0
) -> Neighbours:
    """At most ``k`` interactions of each node strictly before a time.

    ``recent`` takes the last ones, by order of appends within equal times. ``uniform`` draws without replacement, every
    subset equally likely; the draw depends on ``seed`` and the node alone.

    Args:
        graph: The interactions.
        nodes: int64 (R,), repeats allowed; a node beyond the graph's rows has none.
        before_us: int64 (R,) or one for all, microseconds.
        k: At least 1.
        how: ``recent`` or ``uniform``.
        seed: Any integer, of ``uniform``.
    """
    shape = (len(nodes), k)
    event, time_us = np.empty(shape, np.int64), np.empty(shape, np.int64)
    neighbours = Neighbours(np.empty(shape, np.int32), event, time_us, np.empty(len(nodes), np.int64))
    before = np.broadcast_to(np.asarray(before_us, np.int64), len(nodes))
    _sample(
        (graph.row, graph.entry),
        (nodes, before),
        (how == "uniform", np.uint64(seed % (1 << 64))),
        (neighbours.node, neighbours.event, neighbours.time_us, neighbours.count),
    )
    return neighbours


class TemporalSampler:
    """Samples layer by layer, each node of a layer once.

    Args:
        graph: The interactions; may grow between calls.
        k: Interactions per node.
        how: ``recent`` or ``uniform``.
        seed: Of uniform draws.
    """

    def __init__(self, graph: TemporalGraph, k: int, how: How = "recent", seed: int = 0) -> None:
        if how not in HOWS:
            raise ValueError(f"neighbours must be sampled {' or '.join(HOWS)}, found {how!r}")
        self.graph = graph
        self._k = k
        self._how: How = how
        self._seed = seed
        self._place: Int32 = np.empty(0, np.int32)  # −1 between calls, the last element 0

    def distinct(self, *ids: NDArray[np.signedinteger]) -> tuple[Int64, list[Int64]]:
        """Distinct ids in order of first appearance, and the place of every id among them.

        Args:
            ids: Integer arrays of any shape; negative entries are missing and get place 0.

        Returns:
            int64 (n,), and for each array its places, int64 of its shape.
        """
        flat = [array.ravel() for array in ids]
        highest = max((int(array.max(initial=-1)) for array in flat), default=-1)
        if highest >= len(self._place) - 1:
            nodes = max(highest + 1, len(self._place) * 5 // 4, self.graph.num_nodes)
            self._place = np.full(nodes + 1, -1, np.int32)
            self._place[-1] = 0
        # one more, because a step writes an id before it knows whether the id is new
        distinct_ids: Int64 = np.empty(sum(len(array) for array in flat) + 1, np.int64)
        places = [np.empty(len(array), np.int64) for array in flat]
        size = 0
        for array, place in zip(flat, places, strict=True):
            size = _distinct(array, self._place, distinct_ids, size, place)
        _forget(distinct_ids, size, self._place)
        return distinct_ids[:size], [
            place.reshape(array.shape) for place, array in zip(places, ids, strict=True)
        ]

    def layers(self, nodes: Int64, before_us: Int64 | int, layers: int, draw: int = 0) -> list[SampledLayer]:
        """Sample ``layers`` deep, all strictly before one time.

        Args:
            nodes: int64 (n,), distinct unless they have times of their own: targets of the first layer.
            before_us: Microseconds; for a single layer also int64 (n,), a time for each.
            layers: At least 1.
            draw: Distinguishes uniform draws.

        Returns:
            From the targets down. The nodes below the last layer, whose inputs are needed, are in ``below``.
        """
        sampled_layers = []
        for depth in range(layers):
            sampled = sample_before(
                self.graph, nodes, before_us, self._k, self._how, self._seed + 7919 * draw + depth
            )
            below, (own_place, place) = self.distinct(nodes, sampled.node)
            sampled_layers.append(SampledLayer(nodes, sampled, own_place, place))
            nodes = below
        self.below = nodes
        return sampled_layers


# Rows, entries and places lie anywhere in memory. A loop node by node would wait for one cache miss after the other, with
# an unpredictable branch on each value. So every step is made for a whole block before the next: its loads do not wait for
# each other, and steps with branches find their data in the cache. Indices are unsigned where possible: a signed one is
# checked for being negative at every access.


@njit(cache=True, nogil=True)
def _sample(graph, queries, draw, out):  # type: ignore[no-untyped-def]  # compiled
    row, entry = graph
    nodes, before = queries
    uniform, seed = draw
    out_count = out[3]
    k = out[0].shape[1]
    first = np.empty(BLOCK, np.int64)
    seen = np.empty(BLOCK, np.int64)
    # the extra line lets its rows fall into different sets of the cache
    drawn = np.empty((k if uniform else 0, BLOCK + LINE), np.int64)
    touched = np.int64(0)
    for begin in range(0, len(nodes), BLOCK):
        size = min(BLOCK, len(nodes) - begin)
        for i in range(size):
            node = nodes[begin + i]
            known = node < len(row)
            node_row = np.uint64(node if known else 0)
            first[i] = max(row[node_row, 0], 0) if known else 0
            seen[i] = row[node_row, 1] if known else 0
        _count_before(entry, first[:size], seen[:size], before[begin : begin + size])
        for i in range(size):
            out_count[begin + i] = min(seen[i], k)
        if uniform:
            draw_positions(nodes[begin : begin + size], seen[:size], seed, drawn)
            for j in range(k if len(entry) else 0):
                touched += _touch(entry, first[:size], drawn[j])
            _copy_drawn(entry, (first, seen, drawn, begin, size), out)
            continue
        for i in range(size):
            count = min(seen[i], k)
            if count > 0:
                newest = first[i] + seen[i] - 1
                for j in range(0, count, LINE):
                    touched += entry[np.uint64(newest - j), 0]
                touched += entry[np.uint64(newest + 1 - count), 0]
        _copy(entry, (first, seen, begin, size), out)
    return touched  # otherwise the compiler would drop the loads


@njit(cache=True, nogil=True)
def _touch(entry, first, drawn):  # type: ignore[no-untyped-def]  # compiled
    touched = np.int64(0)
    for i in range(len(first)):
        touched += entry[np.uint64(first[i] + max(drawn[i], 0)), 0]
    return touched


@njit(cache=True, nogil=True)
def _count_before(entry, first, seen, before):  # type: ignore[no-untyped-def]  # compiled
    """Set ``seen`` to the number of entries strictly before, by binary search without branches."""
    for i in range(len(first)):
        begin, left, limit = first[i], seen[i], before[i]
        if left == 0 or entry[np.uint64(begin + left - 1), 0] < limit:
            continue
        low = begin
        while left > 1:
            half = left >> 1
            low += half if entry[np.uint64(low + half - 1), 0] < limit else 0
            left -= half
        seen[i] = low - begin + (entry[np.uint64(low), 0] < limit)


@njit(cache=True, nogil=True, inline="always")
def _put(entry, source, out, row, k):  # type: ignore[no-untyped-def]  # compiled
    """Fill column ``k`` of a row from an entry."""
    node, event, time, _ = out
    node[row, k] = entry[source, 1] & ((np.int64(1) << NODE_BITS) - 1)
    event[row, k] = entry[source, 1] >> NODE_BITS
    time[row, k] = entry[source, 0]


@njit(cache=True, nogil=True, inline="always")
def _clear(out, row, count):  # type: ignore[no-untyped-def]  # compiled
    """Mark the columns of a row from ``count`` on as empty."""
    node, event, time, _ = out
    node[row, count:] = -1
    event[row, count:] = -1
    time[row, count:] = 0


@njit(cache=True, nogil=True)
def _copy(entry, block, out):  # type: ignore[no-untyped-def]  # compiled
    first, seen, begin, size = block
    for i in range(size):
        count = min(seen[i], out[0].shape[1])
        newest = first[i] + seen[i] - 1
        for k in range(count):
            _put(entry, np.uint64(newest - k), out, begin + i, k)
        _clear(out, begin + i, count)


@njit(cache=True, nogil=True)
def _copy_drawn(entry, block, out):  # type: ignore[no-untyped-def]  # compiled
    first, seen, drawn, begin, size = block
    for i in range(size):
        count = min(seen[i], out[0].shape[1])
        for k in range(count):
            _put(entry, np.uint64(first[i] + drawn[k, np.uint64(i)]), out, begin + i, k)
        _clear(out, begin + i, count)


@njit(cache=True, nogil=True)
def _distinct(ids, place, distinct_ids, size, out):  # type: ignore[no-untyped-def]  # compiled
    """Give new ids the next places, in order of first appearance; returns the number of places.

    ``place`` is −1 for new ids; its last element, 0, stands for all negative ids.
    """
    nothing = np.uint32(len(place) - 1)  # as unsigned numbers negative ids are larger than all others
    for i in range(len(ids) - 1, -1, -1):
        slot = min(np.uint32(ids[np.uint64(i)]), nothing)
        old = place[slot]
        place[slot] = old if old >= 0 else np.int32(-2 - i)  # in the end that of the first appearance
    begin = size
    for i in range(len(ids)):
        slot = min(np.uint32(ids[i]), nothing)
        distinct_ids[np.uint64(size)] = ids[i]
        size += place[slot] == np.int32(-2 - i)
    for new in range(begin, size):
        place[np.uint64(distinct_ids[new])] = new
    for i in range(len(ids)):
        out[i] = place[min(np.uint32(ids[i]), nothing)]
    return size


@njit(cache=True, nogil=True)
def _forget(distinct_ids, size, place):  # type: ignore[no-untyped-def]  # compiled
    for i in range(size):
        place[np.uint64(distinct_ids[i])] = -1
