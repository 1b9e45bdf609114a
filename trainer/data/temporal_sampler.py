"""Temporal neighbours strictly before a time, the most recent or uniform ones, over distinct nodes."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from freshet_graph.stream.arrays.kinds import Bool, Int32, Int64
from freshet_graph.stream.kernels import njit
from freshet_graph.trainer.data.neighbours import draw_positions
from freshet_graph.trainer.data.temporal_graph import NODE_BITS, TemporalGraph

How = Literal["recent", "uniform"]

HOWS: tuple[How, ...] = ("recent", "uniform")


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
        (neighbours.node, event, time_us, neighbours.count),
    )
    return neighbours


class TemporalSampler:
    """Samples layer by layer, each node of a layer once.

    Args:
        graph: The interactions; may grow between calls.
        k: Interactions per node.
        how: ``recent`` or ``uniform``.
        seed: Of uniform draws.

    Attributes:
        among: bool (nodes,), nodes that may be neighbours, as on one of several ranks; None: all.
        reach: If only some may be, how many times k interactions are looked through.
    """

    def __init__(self, graph: TemporalGraph, k: int, how: How = "recent", seed: int = 0) -> None:
        if how not in HOWS:
            raise ValueError(f"neighbours must be sampled {' or '.join(HOWS)}, found {how!r}")
        self.graph = graph
        self._k = k
        self._how: How = how
        self._seed = seed
        self.among: Bool | None = None
        self.reach = 1
        self._place: Int32 = np.empty(0, np.int32)  # −1 between calls

    def distinct(self, *ids: NDArray[np.signedinteger]) -> tuple[Int64, list[Int64]]:
        """Distinct ids in order of first appearance, and the place of every id among them.

        Args:
            ids: Integer arrays of any shape; negative entries are missing and get place 0.

        Returns:
            int64 (n,), and for each array its places, int64 of its shape.
        """
        flat = np.concatenate([array.ravel() for array in ids])
        highest = int(flat.max(initial=-1))
        if highest >= len(self._place):
            self._place = np.full(max(highest + 1, len(self._place) * 5 // 4), -1, np.int32)
        distinct_ids, places = _distinct(flat, self._place)
        self._place[distinct_ids] = -1
        ends = np.cumsum([array.size for array in ids])[:-1]
        return distinct_ids, [
            part.reshape(array.shape) for part, array in zip(np.split(places, ends), ids, strict=True)
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
            k = self._k if self.among is None else self._k * self.reach
            sampled = sample_before(
                self.graph, nodes, before_us, k, self._how, self._seed + 7919 * draw + depth
            )
            if self.among is not None:
                sampled = _first(sampled, self.among, self._k)
            below, (own_place, place) = self.distinct(nodes, sampled.node)
            sampled_layers.append(SampledLayer(nodes, sampled, own_place, place))
            nodes = below
        self.below = nodes
        return sampled_layers


def _first(sampled: Neighbours, among: Bool, k: int) -> Neighbours:
    """The first k interactions of each row with certain nodes; ``among`` is bool (nodes,)."""
    left_out = (sampled.event < 0) | ~among[sampled.node]
    row, order = np.arange(len(left_out))[:, None], np.argsort(left_out, axis=1, kind="stable")[:, :k]
    missing = left_out[row, order]
    node, event, time_us = sampled.node[row, order], sampled.event[row, order], sampled.time_us[row, order]
    node[missing], event[missing], time_us[missing] = -1, -1, 0
    return Neighbours(node, event, time_us, k - missing.sum(axis=1))


@njit(cache=True, nogil=True)
def _sample(graph, queries, draw, out):  # type: ignore[no-untyped-def]  # compiled
    row, entry = graph
    nodes, before = queries
    uniform, seed = draw
    out_node, out_event, out_time, out_count = out
    k = out_node.shape[1]
    drawn = np.empty(k, np.int64)
    for i in range(len(nodes)):
        first, seen, limit = np.int64(0), np.int64(0), before[i]
        if nodes[i] < len(row):
            first, seen = row[nodes[i]]
        if seen > 0 and entry[first + seen - 1, 0] >= limit:
            seen = np.searchsorted(entry[first : first + seen, 0], limit)
        count = min(seen, k)
        if uniform and seen > k:
            draw_positions(nodes[i], seen, seed, drawn)
        else:
            for j in range(count):
                drawn[j] = seen - count + j
        for j in range(count):
            place = first + drawn[count - 1 - j]
            out_node[i, j] = entry[place, 1] & ((np.int64(1) << NODE_BITS) - 1)
            out_event[i, j] = entry[place, 1] >> NODE_BITS
            out_time[i, j] = entry[place, 0]
        out_node[i, count:] = -1
        out_event[i, count:] = -1
        out_time[i, count:] = 0
        out_count[i] = count


@njit(cache=True, nogil=True)
def _distinct(ids, place):  # type: ignore[no-untyped-def]  # compiled
    """Distinct ids in order of first appearance, and int64 places of all; ``place``, −1 for each id, is filled."""
    distinct_ids, places = np.empty(len(ids), np.int64), np.zeros(len(ids), np.int64)
    size = 0
    for i in range(len(ids)):
        if ids[i] >= 0:
            if place[ids[i]] < 0:
                place[ids[i]] = size
                distinct_ids[size] = ids[i]
                size += 1
            places[i] = place[ids[i]]
    return distinct_ids[:size], places
