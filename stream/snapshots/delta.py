"""The changes between two snapshots: the one argument of every partitioner."""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from freshet_graph.stream.arrays.kinds import Float32, Int8, Int32, Int64
from freshet_graph.stream.snapshots.pairs import pair_keys, split_keys


class NeighbourRows(NamedTuple):
    """Neighbours by node, for kernels: ``indices[start[v]:end[v]]``, without v itself.

    ``start`` and ``end`` are int64 (num_nodes,), ``indices`` int32 of any length, with arbitrary values between rows. Neighbours
    are unsorted, but their order is the same whenever the same snapshots were applied.
    """

    start: Int64
    end: Int64
    indices: Int32


@dataclass(frozen=True, slots=True)
class Csr:
    """An adjacency in compressed rows over dense node ids.

    ``indptr`` is int64 of shape (num_nodes + 1,), ``indices`` int32 or int64 of shape (entries,), sorted within a row;
    ``weights`` float32 of shape (entries,).
    """

    indptr: Int64
    indices: NDArray[np.signedinteger]
    weights: Float32

    @property
    def num_nodes(self) -> int:
        """Rows, isolated nodes included."""
        return len(self.indptr) - 1

    @property
    def rows(self) -> NeighbourRows:
        """The same neighbours as ``NeighbourRows``. Views."""
        return NeighbourRows(self.indptr[:-1], self.indptr[1:], self.indices.astype(np.int32, copy=False))

    def pair_keys(self) -> Int64:
        """Keys of the pairs of two nodes, the lower id first, ascending."""
        row = np.repeat(np.arange(self.num_nodes, dtype=np.int64), np.diff(self.indptr))
        column = self.indices.astype(np.int64)
        return pair_keys(row, column)[row < column]

    @classmethod
    def empty(cls, num_nodes: int) -> "Csr":
        """No entries."""
        return cls(np.zeros(num_nodes + 1, np.int64), np.empty(0, np.int32), np.empty(0, np.float32))


class View(Protocol):
    """The live graph at the end of a snapshot."""

    def rows(self) -> NeighbourRows:
        """The undirected adjacency: each live pair of two nodes in both its rows. O(1)."""

    def graph(self) -> Csr:
        """The same in sorted rows: both directions of every live pair. O(pairs).

        Self-loops and parallel directions are removed (u→v and v→u give one pair, weights added). Rows of nodes that are not
        live are empty.
        """

    def live(self) -> Int64:
        """Sorted ids of live nodes: ends of a live pair, self-loops included. O(nodes)."""


@dataclass(frozen=True, slots=True)
class SnapshotDelta:
    """Snapshot τ for a partitioner: its events, their changes, and the resulting live graph.

    All node ids are dense int64 in [0, num_nodes). Event arrays hold edge events only (no node events), in log order, all of
    shape (E,). All but ``graph`` and ``live`` costs O(changes), not O(graph). ``rows``, ``graph`` and ``live`` are available
    until the next snapshot is applied, and raise RuntimeError then; ``detached`` lasts.

    Attributes:
        tau: Interval index of the snapshot.
        num_nodes: Dense ids in use after τ.
        op: int8, 1 insert or −1 delete.
        src: int64.
        dst: int64.
        t: int64, microseconds.
        weight: float32.
        touched: int64, sorted ids whose neighbourhood or features changed in τ, including nodes that left.
        feature_nodes: int64, sorted ids whose features changed in τ.
        changed_segments: int32 of the shape of feature_nodes: number of changed segments, of S.
        num_live: Live nodes: ends of a live pair, self-loops included.
        num_pairs: Live undirected pairs of two nodes.
        entered: int64, sorted ids that are live and were not at the previous snapshot.
        left: int64, sorted ids that were live and are not.
        added: int64 (a, 2), the lower id first: undirected pairs of two nodes that are live and were not.
        removed: int64 (r, 2), the lower id first: those that were live and are not.
        view: Source of ``rows``, ``graph`` and ``live``.
        segments: S.
        node_features: F, width of a node's feature vector.
    """

    tau: int
    num_nodes: int
    op: Int8
    src: Int64
    dst: Int64
    t: Int64
    weight: Float32
    touched: Int64
    feature_nodes: Int64
    changed_segments: Int32
    num_live: int
    num_pairs: int
    entered: Int64
    left: Int64
    added: Int64
    removed: Int64
    view: View
    segments: int = 1
    node_features: int = 0

    @property
    def rows(self) -> NeighbourRows:
        """Unsorted neighbours of every node in the live graph. O(1)."""
        return self.view.rows()

    @property
    def graph(self) -> Csr:
        """The whole live graph in sorted rows (see ``View.graph``). O(pairs)."""
        return self.view.graph()

    @property
    def live(self) -> Int64:
        """Sorted ids of all live nodes, int64 (num_live,). O(num_nodes)."""
        return self.view.live()

    def live_graph(self) -> tuple[Int64, Int64]:
        """The whole graph with the live nodes numbered by their place in ``live``.

        Returns:
            Row starts int64 (num_live + 1,) and neighbours int64 (entries,), sorted within a row. O(pairs).
        """
        graph, live = self.graph, self.live
        place = np.empty(graph.num_nodes, np.int64)
        place[live] = np.arange(len(live))
        return np.append(graph.indptr[live], len(graph.indices)), place[graph.indices]

    def detached(self) -> "SnapshotDelta":
        """The delta with a copy of the whole graph, which lasts."""
        return replace(self, view=_Given(self.graph, self.live))


@dataclass(frozen=True, slots=True)
class _Given:
    """A given whole graph."""

    whole: Csr
    nodes: Int64

    def rows(self) -> NeighbourRows:
        return self.whole.rows

    def graph(self) -> Csr:
        return self.whole

    def live(self) -> Int64:
        return self.nodes


def delta_of(*, graph: Csr, live: Int64, before: SnapshotDelta | None = None, **fields: Any) -> SnapshotDelta:
    """The delta that leads to a given graph.

    Args:
        graph: As ``View.graph``.
        live: As ``View.live``.
        before: The previous delta; None: the graph was empty.
        fields: The attributes of ``SnapshotDelta`` that don't follow from these.
    """
    now, then = graph.pair_keys(), np.empty(0, np.int64) if before is None else before.graph.pair_keys()
    was = np.empty(0, np.int64) if before is None else before.live
    added, removed = (np.setdiff1d(a, b) for a, b in ((now, then), (then, now)))
    return SnapshotDelta(
        num_live=len(live),
        num_pairs=len(now),
        entered=np.setdiff1d(live, was),
        left=np.setdiff1d(was, live),
        added=np.stack(split_keys(added), axis=1),
        removed=np.stack(split_keys(removed), axis=1),
        view=_Given(graph, live),
        **fields,
    )
