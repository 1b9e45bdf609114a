"""Communities with drift: a sequence of interactions, without times."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from stream.arrays.kinds import Float64, Int64
from stream.kernels import njit

_EPOCHS = 64
_LOYALTY = 0.9
"""Share of interactions inside the source's community."""
_PAIRS_PER_EDGE = 4.0
"""Possible partners in the community for each interaction of a node: keeps most pairs new."""
_SMALLEST, _FEWEST = 12, 8
_MOVES_A_NODE = 0.5
"""Expected changes of community per node over the stream."""
_TAIL = 1.8
"""Exponent of the Pareto law of activity."""
_BURSTING, _BURST = 0.03, 8.0
"""Share of communities that burst in an epoch, and the factor of their activity."""
_COUPLES = 0.3
"""Share of newcomers that bring the next one: two unseen nodes meet, as on every growing platform."""
_ARRIVAL = 2.0
"""Arrivals slow down: node i comes with event about (i / nodes)^2 · edges."""


@dataclass(frozen=True, slots=True)
class CommunityStream:
    """Edges in order, and when nodes joined communities.

    Attributes:
        src, dst: int64 [edges], never equal.
        communities: Their number.
        joined_node: int64: nodes that arrive or change their community, in order.
        joined_at: int64: index of the edge before which that happens, ascending.
        joined_community: int64: the community joined.
    """

    src: Int64
    dst: Int64
    communities: int
    joined_node: Int64
    joined_at: Int64
    joined_community: Int64


def community_edges(nodes: int, edges: int, rng: np.random.Generator) -> CommunityStream:
    """Draw the stream epoch by epoch, with fixed memberships inside each.

    Node i emits its first edge on arrival, so all nodes occur if edges ≥ nodes.
    """
    size = max(_SMALLEST, _PAIRS_PER_EDGE * edges / nodes)
    communities = max(2, round(nodes / size), min(_FEWEST, nodes // _SMALLEST))
    community = rng.integers(0, communities, nodes)
    activity = rng.pareto(_TAIL, nodes) + 1.0
    comes_at = _arrivals(nodes, edges)
    src, dst = np.empty(edges, np.int64), np.empty(edges, np.int64)
    # Nodes 0 and 1 are there from the start, or the first edge would have no other end.
    joined = [(np.array([0, 1]), np.array([0, 0]), community[:2].copy())]
    for first, end in pairwise(_epochs(edges)):
        here, soon = np.searchsorted(comes_at, (first, end))
        known = max(int(here), 2)
        moves = rng.random(known) < _MOVES_A_NODE * (end - first) / edges
        movers = np.flatnonzero(moves) if first else np.empty(0, np.int64)
        community[movers] = rng.integers(0, communities, len(movers))
        newcomers = np.arange(known, max(soon, known))
        hosts = newcomers[:-1:2][rng.random(len(newcomers) // 2) < _COUPLES]
        community[hosts + 1] = community[hosts]
        guest = np.full(end - first, -1, np.int64)
        guest[comes_at[hosts] - first] = hosts + 1
        joins_at = comes_at.copy()
        joins_at[hosts + 1] = comes_at[hosts]
        at = np.concatenate((np.sort(rng.integers(first, end, len(movers))), joins_at[newcomers]))
        who = np.concatenate((movers, newcomers))
        order = np.argsort(at, kind="stable")
        joined.append((who[order], at[order], community[who[order]]))

        forced = np.full(end - first, -1, np.int64)
        forced[comes_at[here:soon] - first] = np.arange(here, soon)
        boost = np.where(rng.random(communities) < _BURSTING, _BURST, 1.0)
        members, starts = _by_community(community[:known], communities)
        weight = np.cumsum(activity[members] * boost[community[members]])
        _draw(
            forced, guest, members, starts, community, weight, rng.random((end - first, 3)),
            src[first:end], dst[first:end],
        )  # fmt: skip
    node, at, joins = (np.concatenate(parts) for parts in zip(*joined, strict=True))
    return CommunityStream(src, dst, communities, node, at, joins)


def _epochs(edges: int) -> list[int]:
    """Borders of the epochs, edge indices: short ones first, while there are few nodes to choose from."""
    even = np.linspace(0, edges, min(_EPOCHS, edges) + 1).astype(np.int64)
    early = 2 ** np.arange(1, int(even[1]).bit_length())
    return np.union1d(even, early[early < even[1]]).tolist()


def _arrivals(nodes: int, edges: int) -> Int64:
    """Distinct, ascending edge indices at which nodes 0, 1, 2 … arrive; those past the end never do."""
    i = np.arange(min(nodes, edges))
    spare = max(edges - nodes, 0)
    return i + (spare * (i / nodes) ** _ARRIVAL).astype(np.int64)


@njit(cache=True, nogil=True)
def _by_community(community: Int64, communities: int) -> tuple[Int64, Int64]:
    """Nodes sorted by community (counting sort), and where each community starts [communities + 1]."""
    starts = np.zeros(communities + 1, np.int64)
    for c in community:
        starts[c + 1] += 1
    starts = np.cumsum(starts)
    place = starts[:-1].copy()
    members = np.empty(len(community), np.int64)
    for node in range(len(community)):
        c = community[node]
        members[place[c]] = node
        place[c] += 1
    return members, starts


@njit(cache=True, nogil=True)
def _draw(
    forced: Int64,
    guest: Int64,
    members: Int64,
    starts: Int64,
    community: Int64,
    weight: Float64,
    uniform: Float64,
    src: Int64,
    dst: Int64,
) -> None:
    """One epoch's edges: the source by activity (or forced), the partner evenly from its community.

    Args:
        forced: int64 [n]; the source, or −1 to draw one.
        guest: int64 [n]; the partner, a node that isn't there yet, or −1 to draw one.
        members: Nodes that have arrived, sorted by community.
        starts: int64 [communities + 1], start of each community in ``members``.
        community: Of every node.
        weight: float64 [members], running sum of activities in the order of ``members``.
        uniform: float64 [n, 3] in [0, 1).
        src: Written.
        dst: Written.
    """
    count = len(members)
    # Guide table: a bucket of the running sum to the first member in it, so that a draw looks at about two.
    guide = np.empty(count, np.int64)
    place = 0
    for bucket in range(count):
        while weight[place] < weight[-1] * bucket / count:
            place += 1
        guide[bucket] = place
    for i in range(len(forced)):
        source = forced[i]
        if source < 0:
            place = guide[int(uniform[i, 0] * count)]
            while place < count - 1 and weight[place] <= uniform[i, 0] * weight[-1]:
                place += 1
            source = members[place]
        if guest[i] >= 0:
            src[i], dst[i] = source, guest[i]
            continue
        low, high = starts[community[source]], starts[community[source] + 1]
        alone = high - low < 2
        if alone or uniform[i, 1] >= _LOYALTY:
            low, high = 0, count
        place = low + int(uniform[i, 2] * (high - low))
        if members[place] == source:
            place = low + (place - low + 1) % (high - low)
        src[i] = source
        dst[i] = members[place]
