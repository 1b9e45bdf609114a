"""The window view: the last w snapshots of a lane in memory, additively, for trainers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from freshet_graph.schemas.store import LaneManifest
from freshet_graph.stream.arrays.kinds import Bool, Float32, Int32, Int64
from freshet_graph.stream.snapshots.adjacency import build_adjacency
from freshet_graph.stream.snapshots.delta import Csr
from freshet_graph.stream.snapshots.pairs import split_keys
from freshet_graph.stream.store.errors import RetainedError
from freshet_graph.stream.store.lane.placement import Placement, Transition
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.stream.store.lane.tables import LaneChanges
from freshet_graph.stream.store.log.event_columns import EventColumns, event_columns
from freshet_graph.stream.store.window.features import FeatureVersions
from freshet_graph.stream.store.window.pairs import ChangedPairs, PairWindow
from freshet_graph.stream.store.window.rows import NodeRows, Wanted, read_rows

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class HeldBytes:
    """Bytes that a window holds.

    Attributes:
        features: Feature versions.
        pairs: Pairs.
        placement: Homes of all nodes.
        spared: Additional bytes if all feature values were float32.
        weighted: Whether pairs have a weight each.
    """

    features: int
    pairs: int
    placement: int
    spared: int
    weighted: bool


@dataclass(slots=True)
class _Snapshot:
    """One snapshot of the window: its manifest, the homes that it replaced, and views built on demand."""

    manifest: LaneManifest
    rehomed: Int64
    former_home: Int32
    csr: Csr | None = None
    events: EventColumns | None = None


class WindowView:
    """The last w snapshots of a lane, or of some of its parts.

    Held additively as in DistDy's section 3.2: features and homes at the newest snapshot with the values that each snapshot
    replaced, pairs at the oldest with each snapshot's changes. An adjacency is built at its first use and kept while its
    snapshot is in the window. Only a view of all parts has an edge lane's discarded pairs.
    """

    def __init__(self, lane: LaneReader, window: int, parts: Sequence[int] | None = None) -> None:
        """Begin an empty view, before the first ``advance``.

        Args:
            lane: The lane to view.
            window: w ≥ 1, non-empty snapshots to hold.
            parts: Parts to view; None: all.

        Raises:
            ValueError: ``window`` below 1, or parts outside [0, K).
        """
        count = lane.header.parts
        if window < 1:
            raise ValueError(f"a window holds at least one snapshot, found {window}")
        chosen = sorted(set(range(count) if parts is None else parts))
        if not chosen or chosen[0] < 0 or chosen[-1] >= count:
            raise ValueError(
                f"lane {lane.header.lane} has parts 0 to {count - 1}, asked for {list(parts or [])}"
            )
        self.lane = lane
        self.window = window
        self.parts = chosen
        self._all = parts is None
        self._selected = np.isin(np.arange(count), chosen)
        self._reset()

    def advance(self, manifest: LaneManifest) -> None:
        """Advance the window so that ``manifest`` is its newest snapshot.

        The first may be anywhere in the lane: the window before it is read from the newest base and the differences since. A
        later one that leaves a gap is read the same way; otherwise the cost is that of the changes.

        Args:
            manifest: One of ``lane.manifests``, after the newest snapshot of the window.

        Raises:
            ValueError: It isn't after the newest snapshot.
            CorruptError: A file doesn't match its manifest; the message names it. The view is usable again only once the
                call was repeated with success.
        """
        newest = self._snapshots[-1].manifest.sequence if self._snapshots else None
        if newest is not None and manifest.sequence <= newest:
            raise ValueError(
                f"the window is at snapshot {self.taus[-1]} (number {newest}), so it can't go back to {manifest.tau}"
            )
        if newest is None or manifest.sequence != newest + 1:
            self._rebuild(manifest.sequence)
        else:
            self._step(manifest)

    @property
    def taus(self) -> list[int]:
        """Interval indices of the window's snapshots, oldest first; at most w."""
        return [snapshot.manifest.tau for snapshot in self._snapshots]

    @property
    def sequence(self) -> int:
        """Number of the newest snapshot in its log, from 0; −1 before the first."""
        return self._snapshots[-1].manifest.sequence if self._snapshots else -1

    @property
    def num_nodes(self) -> int:
        """Dense ids in use after the newest snapshot."""
        return self._snapshots[-1].manifest.num_nodes if self._snapshots else 0

    def csr(self, tau: int) -> Csr:
        """Undirected adjacency of the pairs that these parts store at τ, in the form of ``SnapshotDelta.graph``.

        Returns:
            Rows for all dense ids in use at τ; built at the first call and kept with the snapshot.
        """
        snapshot = self._snapshots[self._index(tau)]
        if snapshot.csr is None:
            num_nodes, (keys, weight) = (
                snapshot.manifest.num_nodes,
                self._pairs.as_of(snapshot.manifest.sequence),
            )
            snapshot.csr = Csr(*build_adjacency(num_nodes, keys, weight))
        return snapshot.csr

    def pairs(self, tau: int) -> tuple[Int64, Int64, Float32]:
        """Directed pairs that these parts store at τ, self-loops included.

        Returns:
            int64 src and dst (E,), sorted by (src, dst), and float32 weights (E,); new arrays.
        """
        keys, weight = self._pairs.as_of(self._snapshots[self._index(tau)].manifest.sequence)
        return *split_keys(keys), weight.copy()

    def changes(self, tau: int) -> ChangedPairs:
        """Directed pairs that differ between the snapshot before τ and τ, self-loops included.

        They are net over the viewed parts: a pair that moves from part to part, or gets another copy, does not differ.

        Returns:
            Their keys and both weights, new arrays; O(changes · log pairs).

        Raises:
            RetainedError: The window doesn't have τ and the snapshot before it.
        """
        index = self._index(tau)
        if index == 0:
            raise RetainedError(
                f"snapshot {tau} is the oldest in the window of {self.window}, which doesn't have the snapshot before it. "
                "View one snapshot more"
            )
        return self._pairs.changes(self._snapshots[index].manifest.sequence)

    def holds(self, keys: Int64, tau: int) -> Bool:
        """Which directed pairs these parts store at τ; O(keys · log pairs).

        Args:
            keys: int64 (n,), as ``freshet_graph.stream.snapshots.pairs.pair_keys``, ascending, repeats allowed.
            tau: A snapshot of the window.

        Returns:
            bool (n,).
        """
        return self._pairs.holds(self._snapshots[self._index(tau)].manifest.sequence, keys)

    def features(self, ids: Int64, tau: int) -> Float32:
        """Feature vectors at snapshot τ.

        Args:
            ids: int64 (n,) dense ids, any order, repeats allowed.
            tau: A snapshot of the window.

        Returns:
            float32 (n, F), contiguous, a new array; zeros for nodes that these parts don't store at τ and for nodes without
            features.
        """
        ids = np.ascontiguousarray(ids, np.int64)
        if len(ids) and ids.min() < 0:
            raise ValueError(f"node ids are not negative, found {ids.min()}")
        return self._features.read(ids, self._snapshots[self._index(tau)].manifest.sequence)

    def rows(self, wanted: Mapping[int, Int64]) -> dict[int, NodeRows]:
        """Rows of any nodes of a vertex lane, read from the files of all parts; see ``read_rows`` for the cost.

        Args:
            wanted: By snapshot of the window: int64 (n,), dense ids, ascending and distinct; ids not yet in use have no rows.

        Raises:
            ValueError: An edge lane.
            CorruptError: A file doesn't match its manifest.
            RetainedError: The window doesn't have a snapshot, or its files are no longer kept.
        """
        requests = []
        for tau in sorted(wanted):
            sequence = self._snapshots[self._index(tau)].manifest.sequence
            home, nodes = self.owner(tau), wanted[tau]
            owner = np.full(len(nodes), -1, np.int32)
            owner[nodes < len(home)] = home[nodes[nodes < len(home)]]
            requests.append(Wanted(sequence, nodes, owner))

        def read() -> dict[int, NodeRows]:
            return dict(zip(sorted(wanted), read_rows(self.lane, requests), strict=True))

        return self._while_kept(read, requests[0].sequence) if requests else {}

    def owner(self, tau: int) -> Int32:
        """Home of every dense id at τ, over all parts of the lane.

        Returns:
            int32 (num_nodes at τ,), −1 for nodes without one; a new array.
        """
        index = self._index(tau)
        home = self._placement.home.copy()
        for snapshot in reversed(self._snapshots[index + 1 :]):
            home[snapshot.rehomed] = snapshot.former_home
        return home[: self._snapshots[index].manifest.num_nodes]

    def shared(self) -> Bool:
        """Nodes in more than one part at the newest snapshot, bool (num_nodes,); vertex lanes have none."""
        return self._placement.shared()[: self.num_nodes]

    def events(self, tau: int) -> EventColumns:
        """Edge events of snapshot τ in log order, of all parts; views of the mapped log where possible."""
        snapshot = self._snapshots[self._index(tau)]
        if snapshot.events is None:
            header = self.lane.header
            table = self.lane.log.events(tau)
            snapshot.events = event_columns(table, tau, header.interval_us, header.edge_features)
        return snapshot.events

    def event_parts(self, tau: int) -> Int32 | None:
        """Edge lanes: the part of every edge event of τ, int32 like ``events``, −1 for discarded ones and deletes."""
        return self.lane.event_parts(self._snapshots[self._index(tau)].manifest)

    @property
    def memory_bytes(self) -> int:
        """Bytes held: features, pairs, placements, and the adjacencies and columns built so far."""
        total = self._features.memory_bytes + self._pairs.memory_bytes + self._placement.memory_bytes
        for snapshot in self._snapshots:
            total += snapshot.rehomed.nbytes + snapshot.former_home.nbytes
            if snapshot.csr is not None:
                csr = snapshot.csr
                total += csr.indptr.nbytes + csr.indices.nbytes + csr.weights.nbytes
            if snapshot.events is not None:
                total += snapshot.events.memory_bytes
        return total

    def held_bytes(self) -> HeldBytes:
        """Bytes held for the window's snapshots, index structures included, without views built on demand."""
        rehomed = sum(s.rehomed.nbytes + s.former_home.nbytes for s in self._snapshots)
        return HeldBytes(
            features=self._features.memory_bytes,
            pairs=self._pairs.memory_bytes,
            placement=self._placement.memory_bytes + rehomed,
            spared=self._features.spared_bytes,
            weighted=self._pairs.weighted,
        )

    def _reset(self) -> None:
        header = self.lane.header
        self._snapshots: list[_Snapshot] = []
        self._features = FeatureVersions(header.node_features, header.segments)
        self._pairs = PairWindow()
        self._placement = Placement(header.kind, header.parts)

    def _rebuild(self, sequence: int) -> None:
        """Begin again with number ``sequence`` as the newest, and with its predecessors that are kept."""
        self._while_kept(lambda: self._read_from_base(sequence), sequence)

    def _while_kept(self, read: Callable[[], T], sequence: int) -> T:
        """Read from a base on, again if a compaction dropped files meanwhile, but not those of snapshot ``sequence``."""
        while True:
            first = self.lane.manifests.first
            try:
                return read()
            except RetainedError:
                self.lane.refresh()
                if not first < self.lane.manifests.first <= sequence:
                    raise

    def _read_from_base(self, sequence: int) -> None:
        manifests = self.lane.manifests
        oldest = max(manifests.first, sequence - self.window + 1)
        self._reset()
        first = manifests.first
        for number in range(oldest, manifests.first - 1, -1):
            if self.lane.base_of(manifest := manifests[number]) is not None:
                self._apply(manifest, self._changes(manifest, base=True), undo=False)
                first = number + 1
                break
        for manifest in manifests[first : oldest + 1]:
            self._apply(manifest, self._changes(manifest), undo=False)
        self._pairs.fold(oldest, always=True)
        none = np.empty(0, np.int64)
        self._snapshots = [_Snapshot(manifests[oldest], none, none.astype(np.int32))]
        for manifest in manifests[oldest + 1 : sequence + 1]:
            self._step(manifest)

    def _step(self, manifest: LaneManifest) -> None:
        changes = self._changes(manifest)
        if len(self._snapshots) == self.window:
            del self._snapshots[0]
        transition = self._apply(manifest, changes, undo=self.window > 1)
        self._snapshots.append(_Snapshot(manifest, transition.rehomed, transition.former_home))
        oldest = self._snapshots[0].manifest.sequence
        self._features.forget(oldest)
        self._pairs.fold(oldest)

    def _changes(self, manifest: LaneManifest, *, base: bool = False) -> LaneChanges:
        return self.lane.changes(manifest, self.parts, discarded=self._all, base=base)

    def _apply(self, manifest: LaneManifest, changes: LaneChanges, *, undo: bool) -> Transition:
        transition = self._placement.apply(changes.node, changes.part, changes.why, manifest.num_nodes)
        pairs = (changes.op, changes.keys, changes.weight)
        self._pairs.append(manifest.sequence, *pairs, whole=changes.whole_pairs)
        self._write_features(manifest, changes, transition, undo=undo)
        return transition

    def _write_features(
        self, manifest: LaneManifest, changes: LaneChanges, transition: Transition, *, undo: bool
    ) -> None:
        segments = self.lane.header.segments
        rows = changes.segment_node * segments + changes.segment
        rows, first = np.unique(rows, return_index=True)  # parts that share a node store equal values
        values = changes.values[first]
        # A node that left all of these parts is zeros; a node that enters a part brings its vector, starting from zeros.
        left = np.unique(transition.left_node[self._selected[transition.left_part]])
        self._features.clear(
            manifest.sequence, left[~self._placement.in_any(self._selected, left)], undo=undo
        )
        entered = np.unique(transition.entered_node[self._selected[transition.entered_part]])
        again = entered[self._features.holds(entered)]
        cleared = np.setdiff1d((again[:, None] * segments + np.arange(segments)).ravel(), rows)
        if len(cleared):
            rows = np.concatenate([rows, cleared])
            values = np.concatenate([values, np.zeros((len(cleared), values.shape[1]), np.float32)])
            order = np.argsort(rows, kind="stable")
            rows, values = rows[order], values[order]
        node, segment = np.divmod(rows, segments)
        self._features.write(
            manifest.sequence, node, segment.astype(np.int32), values, manifest.num_nodes, undo=undo
        )

    def _index(self, tau: int) -> int:
        taus = self.taus
        if tau not in taus:
            content = f"it holds {taus}" if taus else "it is empty until the first advance"
            raise RetainedError(f"snapshot {tau} is not in the window of {self.window}: {content}")
        return taus.index(tau)
