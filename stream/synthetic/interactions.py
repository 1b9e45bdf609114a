"""Plain synthetic interactions as a table with the columns of an event file."""

from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from schemas.events import Op
from stream.synthetic.communities import community_edges
from stream.synthetic.rmat import rmat_edges

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
