"""The live graph: sealed snapshots in, what each changed out. The rules are those of ``docs/semantics.md``."""

from typing import Any

import numpy as np
import pyarrow as pa
from numba import njit
from numpy.typing import NDArray

from schemas.events import Op
from stream.snapshots.adjacency import build_adjacency, next_adjacency
from stream.snapshots.delta import Csr, Float32, Int8, Int64, SnapshotDelta
from stream.snapshots.node_features import NodeFeatures, SegmentChanges
from stream.snapshots.pairs import PairChanges, PairTable, carry, merge_pairs, pair_keys, split_keys
from stream.snapshots.state_table import pack, unpack


class LiveGraph:
    """Directed pairs keyed (src, dst) with their latest insert, and current node features.

    A second insert refreshes a pair; a delete removes it whatever its number of inserts; a delete of what
    is not there is counted. Within a snapshot the later row wins. Self-loops are kept.

    Args:
        node_features: F, width of node feature vectors; 0: node events change nothing.
        edge_features: Width of edge feature vectors; 0: those in events are ignored.
        segments: S slices in which changed node features are told.
        edge_life: Intervals a pair lives after its last occurrence: with 1 it is live in the snapshot of
            its last insert only. None: until deleted.

    Attributes:
        tau: The last snapshot applied, None before the first.
        num_nodes: Dense ids in use.
        missing_deletes: Deletes so far of pairs that were not there.
    """

    def __init__(
        self,
        *,
        node_features: int = 0,
        edge_features: int = 0,
        segments: int = 1,
        edge_life: int | None = None,
    ) -> None:
        if edge_life is not None and edge_life < 1:
            raise ValueError(f"edge_life must be at least 1 interval or None, found {edge_life}")
        self.edge_features = edge_features
        self.edge_life = edge_life
        self.tau: int | None = None
        self.num_nodes = 0
        self.missing_deletes = 0
        self._node_features = NodeFeatures(node_features, segments)
        self._keys: Int64 = np.empty(0, np.int64)
        self._weight: Float32 = np.empty(0, np.float32)
        self._t: Int64 = np.empty(0, np.int64)
        self._last_tau: Int64 = np.empty(0, np.int64)
        self._edge_features: NDArray[np.float32] = np.empty((0, edge_features), np.float32)
        self._degree: Int64 = np.empty(0, np.int64)  # directed pairs at a node; a self-loop counts once
        self._csr = Csr(np.zeros(1, np.int64), np.empty(0, np.int32), np.empty(0, np.float32))
        self._changed = PairChanges(
            *(np.empty(0, np.int64),) * 2,
            np.empty(0, np.int8),
            np.empty(0, np.int64),
            np.empty(0, np.float32),
            np.empty(0, np.int64),
            np.empty((0, edge_features), np.float32),
        )
        self._segment_changes = SegmentChanges(np.empty(0, np.int64), np.zeros((0, segments), np.bool_))

    @property
    def num_edges(self) -> int:
        """Live directed pairs, self-loops included."""
        return len(self._keys)

    def apply(self, tau: int, events: pa.Table) -> SnapshotDelta:
        """Advance to snapshot ``tau``.

        Args:
            tau: Interval index, above all before it.
            events: ``schemas.events.log_event_schema`` rows of the snapshot in log order.

        Returns:
            The delta; its graph shares nothing with later ones.

        Raises:
            ValueError: ``tau`` does not advance, or a feature vector has the wrong width.
        """
        if self.tau is not None and tau <= self.tau:
            raise ValueError(f"snapshots must be applied in order: {tau} came after {self.tau}")
        all_src, all_dst = _column(events, "src_node"), _column(events, "dst_node")
        is_edge = _column(events, "op") != Op.NODE
        edges = events if is_edge.all() else events.filter(pa.array(is_edge))
        op, src, dst, t, weight = (
            _column(edges, name) for name in ("op", "src_node", "dst_node", "t", "weight")
        )
        new_edge_features = self._edge_vectors(edges)
        degree_before = self._degree
        if len(all_src):
            self.num_nodes = max(self.num_nodes, int(all_src.max()) + 1, int(all_dst.max()) + 1)
        self._node_features.grow(self.num_nodes)
        self._segment_changes = self._node_features.apply(events)
        self._apply_pairs(tau, op, src, dst, t, weight, new_edge_features)
        self.tau = tau
        touched = np.zeros(self.num_nodes, np.bool_)
        touched[self._changed.src] = True
        touched[self._changed.dst] = True
        touched[self._segment_changes.nodes] = True
        touched_nodes = np.flatnonzero(touched)
        known = touched_nodes[touched_nodes < len(degree_before)]
        was_live = np.zeros(len(touched_nodes), np.bool_)
        was_live[: len(known)] = degree_before[known] > 0
        is_live = self._degree[touched_nodes] > 0
        return SnapshotDelta(
            tau=tau,
            num_nodes=self.num_nodes,
            op=op,
            src=src,
            dst=dst,
            t=t,
            weight=weight,
            graph=self._csr,
            live=np.flatnonzero(self._degree),
            touched=touched_nodes,
            feature_nodes=self._segment_changes.nodes,
            changed_segments=self._segment_changes.changed.sum(axis=1, dtype=np.int32),
            segments=self._node_features.segments,
            node_features=self._node_features.width,
            entered=touched_nodes[is_live & ~was_live],
            left=touched_nodes[was_live & ~is_live],
        )

    def _apply_pairs(
        self,
        tau: int,
        op: Int8,
        src: Int64,
        dst: Int64,
        t: Int64,
        weight: Float32,
        features: NDArray[np.float32],
    ) -> None:
        event_keys = pair_keys(src, dst)
        rows = np.argsort(event_keys, kind="stable")
        origin, keys, changed, change, change_row, old_row, missing = merge_pairs(
            self._keys, self._last_tau, event_keys[rows], rows, op, tau, self.edge_life or 0
        )
        was = np.where(change < 0, old_row, ~change_row)  # removed: the old values, else those of the event
        changed_src, changed_dst = split_keys(changed)
        self._changed = PairChanges(
            changed_src,
            changed_dst,
            change,
            change_row,
            carry(was, self._weight, weight),
            carry(was, self._t, t),
            carry(was, self._edge_features, features),
        )
        self._weight = carry(origin, self._weight, weight)
        self._t = carry(origin, self._t, t)
        self._last_tau = carry(origin, self._last_tau, np.full(len(op), tau, np.int64))
        self._edge_features = carry(origin, self._edge_features, features)
        self._keys = keys.copy()
        self.missing_deletes += int(missing)
        self._degree = _count_degrees(self._degree, self.num_nodes, changed_src, changed_dst, change)
        self._csr = next_adjacency(self._csr, self.num_nodes, self._keys, self._weight, changed)

    def _edge_vectors(self, edges: pa.Table) -> NDArray[np.float32]:
        vectors = np.zeros((edges.num_rows, self.edge_features), np.float32)
        if self.edge_features == 0 or edges["features"].null_count == edges.num_rows:
            return vectors
        given = edges["features"].is_valid().to_numpy()
        lists = edges["features"].combine_chunks().drop_null()
        lengths = lists.value_lengths().to_numpy()
        if (lengths != self.edge_features).any():
            raise ValueError(
                f"an edge came with {lengths[lengths != self.edge_features][0]} feature values, "
                f"but this graph's edge features have width {self.edge_features}"
            )
        vectors[given] = lists.flatten().to_numpy().reshape(-1, self.edge_features)
        return vectors

    def pairs(self) -> PairTable:
        """The live pairs, sorted by (src, dst). Views."""
        src, dst = split_keys(self._keys)
        return PairTable(src, dst, self._weight, self._t, self._last_tau, self._edge_features)

    def changed(self) -> PairChanges:
        """What the last ``apply`` did to pairs, net against the snapshot before."""
        return self._changed

    def segment_changes(self) -> SegmentChanges:
        """Which segments of which nodes the last ``apply`` changed."""
        return self._segment_changes

    def features(self, ids: Int64) -> NDArray[np.float32]:
        """Current feature vectors, float32 (len(ids), F); zeros where a node has none."""
        return self._node_features.values[ids]

    def state(self) -> pa.Table:
        """Everything that the next ``apply`` depends on."""
        return pack(
            {
                "keys": self._keys,
                "weight": self._weight,
                "t": self._t,
                "last_tau": self._last_tau,
                "edge_features": self._edge_features,
                "node_features": self._node_features.values[: self.num_nodes],
                "tau": np.array([] if self.tau is None else [self.tau], np.int64),
                "num_nodes": np.array(self.num_nodes),
                "missing_deletes": np.array(self.missing_deletes),
            }
        )

    def restore(self, table: pa.Table) -> None:
        """Continue from a ``state()``; what the last ``apply`` changed is not part of it."""
        state = unpack(table)
        self._keys, self._weight, self._t = state["keys"], state["weight"], state["t"]
        self._last_tau, self._edge_features = state["last_tau"], state["edge_features"]
        self._node_features.values = state["node_features"]
        self.tau = int(state["tau"][0]) if len(state["tau"]) else None
        self.num_nodes = int(state["num_nodes"])
        self.missing_deletes = int(state["missing_deletes"])
        src, dst = split_keys(self._keys)
        none = np.empty(0, np.int64)
        self._degree = _count_degrees(none, self.num_nodes, src, dst, np.ones(len(src), np.int8))
        self._csr = Csr(*build_adjacency(self.num_nodes, self._keys, self._weight))


def _column(table: pa.Table, name: str) -> NDArray[Any]:
    """A column as a writable array: kernels compile once, not again for read-only views of Arrow memory."""
    return np.array(table[name].to_numpy())


@njit(cache=True, nogil=True)
def _count_degrees(before: Int64, num_nodes: int, src: Int64, dst: Int64, change: Int8) -> Int64:
    degree = np.zeros(num_nodes, np.int64)
    degree[: len(before)] = before
    for i in range(len(src)):
        degree[src[i]] += change[i]
        if dst[i] != src[i]:
            degree[dst[i]] += change[i]
    return degree
