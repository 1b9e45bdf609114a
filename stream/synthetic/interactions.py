"""Plain synthetic interactions as a table with the columns of an event file."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from freshet_graph.schemas.events import Op
from freshet_graph.stream.arrays.kinds import Float64, Int64, UInt64

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
        joined_at = np.concatenate((np.sort(rng.integers(first, end, len(movers))), joins_at[newcomers]))
        who = np.concatenate((movers, newcomers))
        order = np.argsort(joined_at, kind="stable")
        joined.append((who[order], joined_at[order], community[who[order]]))

        forced = np.full(end - first, -1, np.int64)
        forced[comes_at[here:soon] - first] = np.arange(here, soon)
        boost = np.where(rng.random(communities) < _BURSTING, _BURST, 1.0)
        # 16 bits are sorted by counting.
        members = np.argsort(community[:known].astype(np.min_scalar_type(communities)), kind="stable")
        starts = np.searchsorted(community[members], np.arange(communities + 1))
        weight = np.cumsum(activity[members] * boost[community[members]])
        src[first:end], dst[first:end] = _draw(
            forced, guest, members, starts, community, weight, rng.random((end - first, 3))
        )
    node, joined_at, joins = (np.concatenate(parts) for parts in zip(*joined, strict=True))
    return CommunityStream(src, dst, communities, node, joined_at, joins)


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


def _draw(
    forced: Int64,
    guest: Int64,
    members: Int64,
    starts: Int64,
    community: Int64,
    weight: Float64,
    uniform: Float64,
) -> tuple[Int64, Int64]:
    """One epoch's edges: the source by activity (or forced), the partner evenly from its community.

    Args:
        forced: int64 [n]; the source, or −1 to draw one.
        guest: int64 [n]; the partner, a node that isn't there yet, or −1 to draw one.
        members: Nodes that have arrived, sorted by community.
        starts: int64 [communities + 1], start of each community in ``members``.
        community: Of every node.
        weight: float64 [members], running sum of activities in the order of ``members``.
        uniform: float64 [n, 3] in [0, 1).

    Returns:
        Sources and partners.
    """
    count = len(members)
    place = np.searchsorted(weight, uniform[:, 0] * weight[-1], side="right")
    src = np.where(forced < 0, members[np.minimum(place, count - 1)], forced)
    low, high = starts[community[src]], starts[community[src] + 1]
    anywhere = (high - low < 2) | (uniform[:, 1] >= _LOYALTY)
    low, size = np.where(anywhere, 0, low), np.where(anywhere, count, high - low)
    place = (uniform[:, 2] * size).astype(np.int64)
    place = low + np.where(members[low + place] == src, (place + 1) % size, place)
    return src, np.where(guest < 0, members[place], guest)


A, B, C = 0.57, 0.19, 0.19
"""Graph500's quadrant probabilities; D is the rest."""
_CHUNK = 1 << 15
"""Edges drawn together, few enough for the cache."""
_LEVELS_A_WORD = 4


def rmat_edges(nodes: int, edges: int, rng: np.random.Generator) -> tuple[Int64, Int64]:
    """Draw edges over ids 0 … nodes − 1 in random order of ids; many ids of a large range never occur.

    Ids beyond the range are folded into it.

    Returns:
        src and dst, int64 [edges], with R-MAT's repeats and self-loops.
    """
    levels = max(1, int(nodes - 1).bit_length())
    words = -(-levels // _LEVELS_A_WORD)
    label = rng.permutation(nodes)
    src, dst = np.empty(edges, np.int64), np.empty(edges, np.int64)
    for first in range(0, edges, _CHUNK):
        end = min(first + _CHUNK, edges)
        draws = rng.integers(0, 2**64, (end - first, words), np.uint64)
        row, column = _descend(draws, levels)
        src[first:end], dst[first:end] = label[row % nodes], label[column % nodes]
    return src, dst


def _descend(draws: UInt64, levels: int) -> tuple[Int64, Int64]:
    """Walk down the adjacency matrix, a quadrant per level.

    Args:
        draws: uint64 [n, ceil(levels / 4)], random bits.
        levels: Bits of an id.

    Returns:
        Row and column of each edge, int64 [n].
    """
    a, ab, abc = int(A * 65_536), int((A + B) * 65_536), int((A + B + C) * 65_536)
    row, column = np.zeros((2, len(draws)), np.int64)
    # One 64-bit draw decides four levels with 16 bits each, the lowest first.
    for draw in draws.astype("<u8").view("<u2").T[:levels]:
        row = 2 * row + (draw >= ab)
        column = 2 * column + (((a <= draw) & (draw < ab)) | (draw >= abc))
    return row, column


Shape = Literal["community", "rmat"]

START_S = 1_704_067_200
"""2024-01-01T00:00:00Z."""
DEFAULT_SPAN_S = 30 * 86_400.0

_DAY_S = 86_400.0
_SWING = 0.5
_NOISE = 1.0


def interactions(
    nodes: int,
    edges: int,
    *,
    features: int = 0,
    seed: int = 0,
    shape: Shape = "community",
    start_s: float = START_S,
    span_s: float = DEFAULT_SPAN_S,
) -> pa.Table:
    """Generate exactly ``edges`` inserts, sorted by time.

    ``community``: nodes arrive over time, belong to communities that they change slowly, differ in activity by a power
    law and interact mostly inside their community, which bursts now and then; most pairs are new, so memory of pairs
    alone predicts little. ``rmat``: the skewed graph of load tests, without communities.

    Args:
        nodes: Ids are 0 … nodes − 1; with ``community`` all of them occur if edges ≥ nodes.
        edges: Number of inserts.
        features: Width F of noisy node features that reveal the community (``community`` only): one node event at a
            node's arrival and at each change of its community. 0: no node events.
        seed: Same arguments and seed give the same table.
        shape: Kind of the stream.
        start_s: Start of the stream, seconds since the epoch.
        span_s: Its length: times are in [start_s, start_s + span_s).

    Returns:
        Columns src, dst (int64; null in node events), t (float64 seconds, whole milliseconds), op (int8),
        weight (float32) and, with features, features (list<float32> of F).

    Raises:
        ValueError: A number is out of range; the text is fit for users.
    """
    if nodes < 2 or edges < 1:
        raise ValueError(f"a stream needs at least 2 nodes and 1 edge, found {nodes} and {edges}")
    if features < 0 or span_s <= 0:
        raise ValueError(f"features must be 0 or more and the span positive, found {features} and {span_s}")
    if features and shape != "community":
        raise ValueError(
            f"features reveal communities, which shape {shape} does not have. Leave features out"
        )
    rng = np.random.default_rng(seed)
    t = start_s + _times(edges, span_s, rng)
    if shape == "rmat":
        src, dst = rmat_edges(nodes, edges, rng)
        return _edge_table(src, dst, t)
    stream = community_edges(nodes, edges, rng)
    table = _edge_table(stream.src, stream.dst, t)
    if not features:
        return table
    centroids = rng.standard_normal((stream.communities, features), np.float32)
    noise = rng.standard_normal((len(stream.joined_node), features), np.float32)
    vectors = centroids[stream.joined_community] + np.float32(_NOISE) * noise
    # A node's vector is known just before its first interaction, and when its community changes.
    joined = pa.table(
        {
            "src": stream.joined_node,
            "dst": pa.nulls(len(stream.joined_node), pa.int64()),
            "t": t[stream.joined_at],
            "op": np.full(len(stream.joined_node), Op.NODE, np.int8),
            "weight": np.ones(len(stream.joined_node), np.float32),
            "features": _lists(vectors),
        }
    )
    table = table.append_column("features", pa.nulls(edges, pa.list_(pa.float32())))
    places = np.concatenate((stream.joined_at * 2, np.arange(edges) * 2 + 1))
    return pa.concat_tables([joined, table]).combine_chunks().take(np.argsort(places, kind="stable"))


def _times(count: int, span_s: float, rng: np.random.Generator) -> npt.NDArray[np.float64]:
    """Sorted times in [0, span_s) of a Poisson stream with a daily swing, whole milliseconds."""
    gaps = np.cumsum(rng.standard_exponential(count + 1))
    grid = np.linspace(0.0, span_s, 4096)
    rate = 1.0 + _SWING * np.sin(2 * np.pi * grid / min(_DAY_S, span_s))
    share = np.concatenate(([0.0], np.cumsum((rate[1:] + rate[:-1]) / 2)))
    t = np.interp(gaps[:-1] / gaps[-1], share / share[-1], grid)
    return np.asarray(np.floor(t * 1000) / 1000, np.float64)


def _edge_table(
    src: npt.NDArray[np.int64], dst: npt.NDArray[np.int64], t: npt.NDArray[np.float64]
) -> pa.Table:
    return pa.table(
        {
            "src": src,
            "dst": dst,
            "t": t,
            "op": np.full(len(src), Op.INSERT, np.int8),
            "weight": np.ones(len(src), np.float32),
        }
    )


def _lists(vectors: npt.NDArray[np.float32]) -> pa.ListArray:
    offsets = np.arange(len(vectors) + 1, dtype=np.int64) * vectors.shape[1]
    if offsets[-1] >= 2**31:
        raise ValueError(f"{len(vectors)} node events with {vectors.shape[1]} features each are too many")
    return pa.ListArray.from_arrays(offsets.astype(np.int32), vectors.reshape(-1))
