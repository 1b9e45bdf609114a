"""What changed between two snapshots: the one argument of every partitioner."""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]
Int32 = NDArray[np.int32]
Int8 = NDArray[np.int8]
Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]


def _no_nodes() -> Int64:
    return np.empty(0, np.int64)


class Rows(NamedTuple):
    """Neighbours by node, as kernels read them: ``indices[start[v]:end[v]]``, ascending, without v itself.

    ``start`` and ``end`` are int64 (num_nodes,), ``indices`` int32 of any length: there may be room between rows.
    """

    start: Int64
    end: Int64
    indices: Int32


@dataclass(frozen=True, slots=True)
class Csr:
    """An adjacency in compressed rows over dense node ids.

    ``indptr`` is int64 of shape (num_nodes + 1,), ``indices`` int32 or int64 of shape (entries,), sorted
    within a row; ``weights`` float32 of shape (entries,).
    """

    indptr: Int64
    indices: NDArray[np.signedinteger]
    weights: Float32

    @property
    def num_nodes(self) -> int:
        """Rows, isolated nodes included."""
        return len(self.indptr) - 1

    @property
    def rows(self) -> Rows:
        """The same neighbours row by row. Views."""
        return Rows(self.indptr[:-1], self.indptr[1:], self.indices)


@dataclass(frozen=True, slots=True)
class SnapshotDelta:
    """Snapshot τ as a partitioner sees it: its events, and the live graph they lead to.

    All node ids are dense int64 in [0, num_nodes). Event arrays hold edge events only (no node events), in
    log order, and all have shape (E,).

    Attributes:
        tau: Interval index of the snapshot.
        num_nodes: Dense ids in use after τ.
        op: int8, 1 insert or −1 delete.
        src: int64.
        dst: int64.
        t: int64, microseconds.
        weight: float32.
        graph: The live graph at the end of τ, undirected: both directions of every live pair, self-loops and
            parallel directions removed (u→v and v→u give one pair, weights added). Rows of nodes that are
            not live are empty.
        live: int64, sorted ids of live nodes: ends of a live edge, self-loops included.
        touched: int64, sorted ids whose neighbourhood or features changed in τ, nodes that left included.
        feature_nodes: int64, sorted ids whose features changed in τ.
        changed_segments: int32 of the shape of feature_nodes: how many of the S segments changed.
        segments: S.
        node_features: F, width of a node's feature vector.
        entered: int64, sorted ids of nodes that are live now and were not at the snapshot before; of ``touched``.
        left: int64, sorted ids of nodes that were live and are not any more; of ``touched``.
    """

    tau: int
    num_nodes: int
    op: Int8
    src: Int64
    dst: Int64
    t: Int64
    weight: Float32
    graph: Csr
    live: Int64
    touched: Int64
    feature_nodes: Int64
    changed_segments: Int32
    segments: int = 1
    node_features: int = 0
    entered: Int64 = field(default_factory=_no_nodes)
    left: Int64 = field(default_factory=_no_nodes)

    @property
    def rows(self) -> Rows:
        """Neighbours of every node in the live graph, good until the next snapshot is applied."""
        return self.graph.rows
