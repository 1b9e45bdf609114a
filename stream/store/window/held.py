"""The content of a lane's parts at a snapshot, rebuilt from the lane's files alone."""

import numpy as np

from freshet_graph.schemas.store import FileRef, LaneHeader, LaneManifest, Why
from freshet_graph.stream.arrays.kinds import Int64
from freshet_graph.stream.store.lane.diff import PairRows, Stored, full_rows, segment_changes, segment_width
from freshet_graph.stream.store.lane.placement import Placement, edge_batch_count
from freshet_graph.stream.store.lane.reader import lane_tables
from freshet_graph.stream.store.lane.tables import LaneChanges
from freshet_graph.stream.store.places.place import Place
from freshet_graph.stream.store.window.features import FeatureVersions
from freshet_graph.stream.store.window.pairs import PairWindow


class HeldParts:
    """Placements, pairs and features of every part, as of the last snapshot applied.

    Attributes:
        placement: Homes and sets of parts.
        pairs: By part; in edge lanes also of the discarded pairs.
        features: By part.
    """

    def __init__(self, root: Place, header: LaneHeader) -> None:
        """Start empty, for the lane with this folder and header."""
        self._root = root
        self._header = header
        self._parts = list(range(header.parts))
        self._clear()

    def _clear(self) -> None:
        header = self._header
        self.placement = Placement(header.kind, header.parts)
        self.pairs = [PairWindow() for _ in range(edge_batch_count(header))]
        self.features = [FeatureVersions(header.node_features, header.segments) for _ in self._parts]

    def advance(self, manifest: LaneManifest) -> Int64:
        """Apply the changes of the next snapshot.

        Returns:
            The nodes with changed placements or features, int64 ascending.

        Raises:
            CorruptError: A file doesn't match the manifest.
        """
        tables = lane_tables(self._root, self._header, manifest, self._parts, discarded=True)
        return self._apply(manifest, tables.changes())

    def begin(self, manifest: LaneManifest, base: FileRef) -> None:
        """Start from the full state at a snapshot.

        Raises:
            CorruptError: The file doesn't match its record.
        """
        self._clear()
        tables = lane_tables(self._root, self._header, manifest, self._parts, discarded=True, base=base)
        self._apply(manifest, tables.changes())

    def whole(self, sequence: int) -> Stored:
        """The full content at the last snapshot applied, ``sequence``, as a change from nothing: a base."""
        node, part = self.placement.all()
        pairs_by_part = [pairs.as_of(sequence) for pairs in self.pairs]
        keys = np.concatenate([keys for keys, _ in pairs_by_part])
        offsets = np.concatenate([[0], np.cumsum([len(keys) for keys, _ in pairs_by_part])]).astype(np.int64)
        rows = []
        for k, features in enumerate(self.features if self._header.node_features else []):
            mine = node[part == k]
            owner = np.full(len(mine), k, np.int32)
            rows.append(full_rows(mine, owner, features.read(mine, 0), self._header.segments))
        width = segment_width(self._header.node_features, self._header.segments)
        home = self.placement.home[node] == part
        return Stored(
            node,
            part,
            np.where(home, int(Why.NEW), int(Why.REPLICATED)).astype(np.int8),
            PairRows(
                offsets,
                np.ones(len(keys), np.int8),
                keys,
                np.concatenate([weight for _, weight in pairs_by_part]),
            ),
            segment_changes(rows, self._header.parts, width),
        )

    def _apply(self, manifest: LaneManifest, changes: LaneChanges) -> Int64:
        """Apply files; returns the nodes with changed placements or features."""
        transition = self.placement.apply(changes.node, changes.part, changes.why, manifest.num_nodes)
        start = 0
        for pairs, rows in zip(self.pairs, changes.pair_rows.tolist(), strict=True):
            end = start + rows
            pairs.append(
                manifest.sequence, changes.op[start:end], changes.keys[start:end], changes.weight[start:end],
                whole=changes.whole_pairs,
            )  # fmt: skip
            pairs.fold(manifest.sequence, always=True)
            start = end
        start = 0
        for part, (features, rows) in enumerate(
            zip(self.features, changes.segment_rows.tolist(), strict=True)
        ):
            end = start + rows
            entered = transition.entered_node[transition.entered_part == part]
            left = transition.left_node[transition.left_part == part]
            cleared = np.union1d(entered, left)
            features.clear(0, cleared[features.holds(cleared)], undo=False)
            features.write(
                0, changes.segment_node[start:end], changes.segment[start:end],
                changes.values[start:end, : features.width], manifest.num_nodes, undo=False,
            )  # fmt: skip
            start = end
        return np.unique(
            np.concatenate([transition.entered_node, transition.left_node, changes.segment_node])
        )
