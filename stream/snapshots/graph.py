"""The live graph: applies sealed snapshots and returns the changes of each. ``docs/semantics.md`` has the rules.

It is changed in place: a snapshot costs O(its changes), however large the graph is. Operations on the whole (``pairs``,
``state``, ``SnapshotDelta.graph`` and ``live``) cost O(graph).
"""

from collections import deque
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from freshet_graph.schemas.events import Op
from freshet_graph.stream.arrays.growing import Growing
from freshet_graph.stream.arrays.kinds import Bool, Float32, Int8, Int32, Int64
from freshet_graph.stream.kernels.node_sets import distinct
from freshet_graph.stream.snapshots.adjacency import LiveRows, advance_adjacency, sorted_rows, worth_advancing
from freshet_graph.stream.snapshots.delta import Csr, NeighbourRows, SnapshotDelta
from freshet_graph.stream.snapshots.node_features import NodeFeatures, SegmentChanges
from freshet_graph.stream.snapshots.pair_index import (
    SEEN,
    PairIndex,
    live_slots,
    record_pairs,
    slot_keys,
    slot_weights,
)
from freshet_graph.stream.snapshots.pair_records import apply_events, dump, dump_arrays, load
from freshet_graph.stream.snapshots.pairs import Change, PairChanges, PairTable, pair_keys, split_keys
from freshet_graph.stream.snapshots.state_table import pack, unpack


class EdgeLives:
    """The pairs seen in each of the last snapshots; without an edge life, only the number of snapshots.

    A pair that is seen again stays on its earlier lists, and the caller checks when it was last seen. So every insert is looked
    at once more when its life would end, and no pair at any other time.

    Args:
        life: Intervals that a pair lives after its last occurrence; None: for ever.

    Attributes:
        number: Of the last snapshot, counted from 1.
    """

    def __init__(self, life: int | None) -> None:
        self.life = life
        self.number = 0
        self._tau = 0
        self._seen: deque[tuple[int, int, Int64]] = deque()  # τ, number and slots, oldest first

    def advance(self, tau: int) -> tuple[tuple[Int64, Int32], int]:
        """Advance to snapshot ``tau``.

        Returns:
            Slots whose pairs may end, with the number of the snapshot that saw them; and the number of this snapshot.
        """
        self.number += 1
        self._tau = tau
        ending = self.ending(tau)
        while self.life is not None and self._seen and tau - self._seen[0][0] >= self.life:
            self._seen.popleft()
        return ending, self.number

    def ending(self, tau: int) -> tuple[Int64, Int32]:
        """Slots whose pairs may end with snapshot ``tau``, with the number of the snapshot that saw them."""
        ending = [
            (number, seen)
            for then, number, seen in self._seen
            if self.life is not None and tau - then >= self.life
        ]
        slots = [np.empty(0, np.int64), *(seen for _, seen in ending)]
        numbers = [np.empty(0, np.int32), *(np.full(len(seen), number, np.int32) for number, seen in ending)]
        return np.concatenate(slots), np.concatenate(numbers)

    def saw(self, changes: PairChanges) -> None:
        """Record the pairs that this snapshot inserted."""
        if self.life is not None:
            self._seen.append((self._tau, self.number, changes.slot[changes.change != Change.REMOVED]))

    def state(self) -> dict[str, Int64]:
        """The snapshots of the lists; the lists follow from when live pairs were last seen."""
        listed = [(tau, number) for tau, number, _ in self._seen]
        return {"lives": np.array(listed, np.int64).reshape(-1, 2), "number": np.array(self.number)}

    def restore(self, state: dict[str, Int64], slots: Int64, seen: Int32) -> None:
        """Continue from a ``state``, with the slots of the live pairs and the snapshot that last saw each."""
        self.number = int(state["number"])
        order = np.argsort(seen, kind="stable")
        for tau, number in state["lives"].tolist():
            start, end = np.searchsorted(seen[order], [number, number + 1])
            self._seen.append((tau, number, slots[order[start:end]]))


class LiveGraph:
    """Directed pairs keyed (src, dst) with the weight of their latest insert, and current node features.

    A second insert refreshes a pair; a delete removes it whatever its number of inserts; a delete of a missing pair is counted.
    Within a snapshot the later row wins. Self-loops are kept.

    Args:
        node_features: F, width of node feature vectors; 0: node events change nothing.
        segments: S slices in which changed node features are reported.
        edge_life: Intervals that a pair lives after its last occurrence; with 1, it is live only in the snapshot of its last
            insert. None: until deleted.

    Attributes:
        tau: The last snapshot applied, None before the first.
        num_nodes: Dense ids in use.
        num_edges: Live directed pairs, self-loops included.
        num_live: Live nodes: ends of live pairs.
        num_pairs: Live undirected pairs of two nodes.
        missing_deletes: Deletes of missing pairs so far.
    """

    def __init__(self, *, node_features: int = 0, segments: int = 1, edge_life: int | None = None) -> None:
        if edge_life is not None and edge_life < 1:
            raise ValueError(f"edge_life must be at least 1 interval or None, found {edge_life}")
        self.edge_life = edge_life
        self.tau: int | None = None
        self.num_nodes = self.num_edges = self.num_live = self.num_pairs = self.missing_deletes = 0
        self._node_features = NodeFeatures(node_features, segments)
        self._index = PairIndex()
        self._adjacency = LiveRows()
        self._degree = Growing(0, np.int32)  # directed pairs at a node; a self-loop counts once
        self._lives = EdgeLives(edge_life)
        self._freed = np.empty(0, np.int32)
        self._whole: Csr | None = None  # as of its last use
        self._since: list[Int64] = []  # keys of pairs changed since then
        self._changed = PairChanges.none()
        self._segment_changes = SegmentChanges(np.empty(0, np.int64), np.zeros((0, segments), np.bool_))

    def apply(self, tau: int, events: pa.Table) -> SnapshotDelta:
        """Advance to snapshot ``tau``.

        Args:
            tau: Interval index, above all before it.
            events: ``freshet_graph.schemas.events.log_event_schema`` rows of the snapshot in log order.

        Returns:
            The delta; see there how long its rows and graph are available.

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
        pair_keys(src, dst)  # refuses ids that are too large
        if len(all_src):
            self.num_nodes = max(self.num_nodes, int(all_src.max()) + 1, int(all_dst.max()) + 1)
        self._node_features.grow(self.num_nodes)
        self._segment_changes = self._node_features.apply(events)
        self._index.give_back(self._freed)
        step = apply_events(
            self._index, op, src, dst, weight, self._degree.grow(self.num_nodes), *self._lives.advance(tau)
        )
        self._changed, self._freed = step.changes, step.freed
        self._lives.saw(step.changes)
        self._adjacency.apply(self._index.records, step.parted, step.joined, self.num_nodes)
        changed = step.changes
        self.num_edges += int(changed.change.sum(dtype=np.int64))
        self.num_pairs += len(step.joined) - len(step.parted)
        self.missing_deletes += step.missing
        entered, left = _net(*step.degrees)
        self.num_live += len(entered) - len(left)
        if self._whole is not None:
            self._since.append(pair_keys(changed.src, changed.dst))
            if not worth_advancing(sum(map(len, self._since)), self._whole):
                self._whole, self._since = None, []
        self.tau = tau
        return SnapshotDelta(
            tau=tau,
            num_nodes=self.num_nodes,
            op=op,
            src=src,
            dst=dst,
            t=t,
            weight=weight,
            touched=distinct(changed.src, changed.dst, self._segment_changes.nodes),
            feature_nodes=self._segment_changes.nodes,
            changed_segments=self._segment_changes.changed.sum(axis=1, dtype=np.int32),
            num_live=self.num_live,
            num_pairs=self.num_pairs,
            entered=entered,
            left=left,
            added=record_pairs(self._index.records, step.joined),
            removed=record_pairs(self._index.records, step.parted),
            view=_View(self),
            segments=self._node_features.segments,
            node_features=self._node_features.width,
        )

    def pairs(self) -> PairTable:
        """The live pairs, sorted by (src, dst). O(pairs · log pairs)."""
        slots = live_slots(self._index.records, self._index.used)
        keys = slot_keys(slots, self._index.records)
        order = np.argsort(keys)
        keys, slots = keys[order], slots[order]
        return PairTable(*split_keys(keys), slot_weights(slots, self._index.weights), slots)

    def is_live(self, nodes: Int64) -> Bool:
        """Which of ``nodes`` are ends of a live pair."""
        live: Bool = self._degree.values[nodes] > 0
        return live

    def ending(self, tau: int) -> tuple[Int64, Int64]:
        """Live pairs that end with a later snapshot ``tau`` unless they are seen again; src and dst, int64 (n,)."""
        slots, numbers = self._lives.ending(tau)
        is_latest = self._index.records[slots >> 1, SEEN + (slots & 1)] == numbers
        return split_keys(slot_keys(slots[is_latest], self._index.records))

    @property
    def num_slots(self) -> int:
        """Limit of all slots."""
        return 2 * len(self._index.records)

    @property
    def pair_index(self) -> PairIndex:
        """The records of the live pairs, for kernels; read-only."""
        return self._index

    @property
    def adjacency(self) -> LiveRows:
        """The rows with the records of their entries, for kernels; read-only."""
        return self._adjacency

    @property
    def snapshot_number(self) -> int:
        """The value of ``SEEN`` in records of pairs that the last ``apply`` inserted."""
        return self._lives.number

    @property
    def nbytes(self) -> int:
        """Bytes of pairs and rows, including spare room."""
        return self._index.nbytes + self._adjacency.nbytes + self._degree.nbytes

    def changed(self) -> PairChanges:
        """Pair changes of the last ``apply``, net against the previous snapshot."""
        return self._changed

    def segment_changes(self) -> SegmentChanges:
        """The segments that the last ``apply`` changed, by node."""
        return self._segment_changes

    def features(self, ids: Int64) -> Float32:
        """Current feature vectors, float32 (len(ids), F); zeros for nodes without features."""
        return self._node_features.values[ids]

    def whole(self) -> Csr:
        """See ``View.graph``."""
        index = self._index
        if self._whole is None:
            arrays = self._adjacency.rows(), self._adjacency.records
            self._whole = Csr(*sorted_rows(*arrays, index.records, index.weights))
        elif self._since:
            index_arrays = index.table, index.bits, index.records, index.weights
            self._whole = advance_adjacency(
                self._whole, self.num_nodes, np.concatenate(self._since), *index_arrays
            )
        self._since = []
        return self._whole

    def live(self) -> Int64:
        """Sorted ids of the live nodes. O(num_nodes)."""
        return np.flatnonzero(self._degree.values)

    def state_slots(self) -> Int64:
        """Slots of the live pairs in an order that a ``state`` preserves, whatever their numbers before and after."""
        return dump(self._index, self._adjacency).slots

    def state(self) -> pa.Table:
        """The state that the next ``apply`` depends on, including the order within rows."""
        return pack(
            {
                **dump_arrays(self._index, self._adjacency, seen=self.edge_life is not None),
                **self._lives.state(),
                "node_features": self._node_features.values[: self.num_nodes],
                "tau": np.array([] if self.tau is None else [self.tau], np.int64),
                "num_nodes": np.array(self.num_nodes),
                "missing_deletes": np.array(self.missing_deletes),
            }
        )

    def restore(self, table: pa.Table) -> None:
        """Continue from a ``state()``, in a fresh graph; the changes of the last ``apply`` are not part of it.

        Raises:
            ValueError: The state is from an earlier release.
        """
        state = unpack(table)
        if "directions" not in state:
            raise ValueError("this state of a live graph is from a release before its rows were kept")
        slots, seen = load(state, self._index, self._adjacency)
        self._lives.restore(state, slots, seen)
        self._node_features.values = state["node_features"]
        self.tau = int(state["tau"][0]) if len(state["tau"]) else None
        self.num_nodes = int(state["num_nodes"])
        self.missing_deletes = int(state["missing_deletes"])
        src, dst = split_keys(slot_keys(slots, self._index.records))
        degree = np.bincount(src, minlength=self.num_nodes)
        degree += np.bincount(dst[src != dst], minlength=self.num_nodes)
        self._degree.replace(degree)
        self.num_edges, self.num_pairs = len(slots), len(state["directions"])
        self.num_live = int(np.count_nonzero(degree))


class _View:
    """A live graph, while it is at one snapshot; see ``View``."""

    def __init__(self, graph: LiveGraph) -> None:
        self._graph, self._number = graph, graph.snapshot_number
        self._live: Int64 | None = None

    def rows(self) -> NeighbourRows:
        """See ``View.rows``."""
        return self._now().adjacency.rows()

    def graph(self) -> Csr:
        """See ``View.graph``."""
        return self._now().whole()

    def live(self) -> Int64:
        """See ``View.live``."""
        graph = self._now()
        if self._live is None:
            self._live = graph.live()
        return self._live

    def _now(self) -> LiveGraph:
        if self._graph.snapshot_number != self._number:
            raise RuntimeError(
                "this delta has expired: a later snapshot was applied. Read it earlier, or keep delta.detached()"
            )
        return self._graph


def _net(node: Int64, turn: Int8) -> tuple[Int64, Int64]:
    """Nodes that became live once more often than they ceased to be, and the reverse; ascending."""
    ids, inverse = np.unique(node, return_inverse=True)
    net = np.bincount(inverse, turn, len(ids))
    return ids[net > 0], ids[net < 0]


def _column(table: pa.Table, name: str) -> NDArray[Any]:
    """A column as a writable array, so that kernels aren't compiled again for read-only views of Arrow memory."""
    return np.array(table[name].to_numpy())
