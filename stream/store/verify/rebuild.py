"""A lane rebuilt from its additive files part by part, and what of it contradicts the log."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from schemas.store import LaneHeader, LaneManifest
from stream.snapshots.delta import Int32, Int64, SnapshotDelta
from stream.snapshots.graph import LiveGraph
from stream.snapshots.pairs import pair_keys
from stream.store.lane.diff import StoredPairs
from stream.store.lane.placement import Placement
from stream.store.lane.reader import selection
from stream.store.lane.state import edge_batch_count
from stream.store.lane.tables import LaneChanges, read_base, read_changes, read_event_parts
from stream.store.window.feature_versions import FeatureVersions
from stream.store.window.pairs import PairWindow


class StoredLane:
    """What every part of a lane holds, rebuilt from the files alone, beside the live graph of the log."""

    def __init__(self, root: Path, header: LaneHeader) -> None:
        self._root = root
        self._header = header
        self._parts = list(range(header.parts))
        self._batches = edge_batch_count(header)
        self._clear()

    def _clear(self) -> None:
        header = self._header
        self._placement = Placement(header.kind, header.parts)
        self._pairs = [PairWindow() for _ in range(self._batches)]
        self._features = [FeatureVersions(header.node_features, header.segments) for _ in self._parts]

    def advance(self, manifest: LaneManifest, delta: SnapshotDelta, graph: LiveGraph) -> Iterator[str]:
        """Apply a snapshot's files and say what differs from the live graph; a base must say the same."""
        wanted = selection(self._header, manifest, self._parts, discarded=True)
        files = (manifest.assignment, manifest.edges, manifest.segments)
        changes = read_changes(self._root, files, wanted)
        affected = np.union1d(self._apply(manifest, changes), delta.feature_nodes)
        yield from self._wrong_nodes(manifest, delta)
        yield from self._wrong_pairs(manifest, graph)
        yield from self._wrong_features(affected, graph)
        if manifest.base is not None:
            self._clear()
            self._apply(manifest, read_base(self._root, manifest.base, wanted))
            everything = np.arange(manifest.num_nodes, dtype=np.int64)
            wrong = [
                *self._wrong_nodes(manifest, delta),
                *self._wrong_pairs(manifest, graph, check_events=False),
                *self._wrong_features(everything, graph),
            ]
            yield from (f"its base: {problem}" for problem in wrong)

    def _apply(self, manifest: LaneManifest, changes: LaneChanges) -> Int64:
        """Take the files in; returns the nodes whose placements or features they change."""
        transition = self._placement.apply(changes.node, changes.part, changes.why, manifest.num_nodes)
        start = 0
        for pairs, rows in zip(self._pairs, changes.pair_rows.tolist(), strict=True):
            end = start + rows
            pairs.append(
                manifest.sequence, changes.op[start:end], changes.keys[start:end], changes.weight[start:end]
            )
            pairs.fold(manifest.sequence, always=True)
            start = end
        start = 0
        segments = np.arange(self._header.segments, dtype=np.int32)
        for part, (features, rows) in enumerate(
            zip(self._features, changes.segment_rows.tolist(), strict=True)
        ):
            end = start + rows
            entered = transition.entered_node[transition.entered_part == part]
            left = transition.left_node[transition.left_part == part]
            cleared = np.union1d(entered, left)
            zeros = np.zeros((len(cleared) * len(segments), features.width), np.float32)
            features.write(
                0, np.repeat(cleared, len(segments)), np.tile(segments, len(cleared)), zeros,
                manifest.num_nodes, undo=False,
            )  # fmt: skip
            features.write(
                0, changes.segment_node[start:end], changes.segment[start:end],
                changes.values[start:end, : features.width], manifest.num_nodes, undo=False,
            )  # fmt: skip
            start = end
        return np.unique(
            np.concatenate([transition.entered_node, transition.left_node, changes.segment_node])
        )

    def _wrong_nodes(self, manifest: LaneManifest, delta: SnapshotDelta) -> Iterator[str]:
        homeless = delta.live[self._placement.home[delta.live] < 0]
        if len(homeless):
            yield f"{len(homeless)} live nodes have no home, such as node {homeless[0]}"
        _, part = self._placement.all()
        counts = np.bincount(part, minlength=self._header.parts).tolist()
        told = [summary.nodes for summary in manifest.parts]
        if counts != told:
            yield f"its parts have {counts} nodes, the manifest says {told}"

    def _wrong_pairs(
        self, manifest: LaneManifest, graph: LiveGraph, *, check_events: bool = True
    ) -> Iterator[str]:
        held = [pairs.at(manifest.sequence) for pairs in self._pairs]
        keys = np.concatenate([k for k, _ in held])
        weight = np.concatenate([w for _, w in held])
        part = np.repeat(np.arange(self._batches, dtype=np.int32), [len(k) for k, _ in held])
        order = np.lexsort((part, keys))
        keys, weight, part = keys[order], weight[order], part[order]
        live = graph.pairs()
        live_keys = pair_keys(live.src, live.dst)
        if self._header.kind == "vertex":
            expected = StoredPairs.by_owner(live_keys, live.weight, self._placement.home)
            both = np.sort(np.stack([expected.first, expected.second], axis=1), axis=1).ravel()
            wanted = both >= 0
            same = (
                np.array_equal(keys, np.repeat(live_keys, 2)[wanted])
                and np.array_equal(weight, np.repeat(live.weight, 2)[wanted])
                and np.array_equal(part, both[wanted])
            )
            rule = "each with the owners of its ends"
        else:
            same = np.array_equal(keys, live_keys) and np.array_equal(weight, live.weight)
            rule = "each in one part"
        if not same:
            yield f"its parts hold {len(keys)} pairs that aren't the {len(live_keys)} live ones, {rule}"
        elif manifest.event_parts is not None and check_events:
            yield from self._wrong_event_parts(manifest, graph, keys, part)
        counts = np.bincount(part, minlength=self._batches).tolist()
        told = [summary.edges for summary in (*manifest.parts, manifest.discarded) if summary is not None]
        if counts != told:
            yield f"its parts have {counts} pairs, the manifest says {told}"

    def _wrong_event_parts(
        self, manifest: LaneManifest, graph: LiveGraph, keys: Int64, part: Int32
    ) -> Iterator[str]:
        assert manifest.event_parts is not None
        event_part = read_event_parts(self._root, manifest.event_parts)
        changed = graph.changed()
        inserted = changed.change >= 0
        rows = changed.event_row[inserted]
        if len(rows) and rows.max() >= len(event_part):
            yield f"{manifest.event_parts.path} has {len(event_part)} rows, fewer than the snapshot's edge events"
            return
        chosen = event_part[rows]
        at = np.searchsorted(keys, pair_keys(changed.src[inserted], changed.dst[inserted]))
        if not np.array_equal(part[at], np.where(chosen < 0, self._header.parts, chosen)):
            yield "a pair isn't stored in the part of its latest insert"

    def _wrong_features(self, nodes: Int64, graph: LiveGraph) -> Iterator[str]:
        if self._header.node_features == 0:
            return
        node, part = self._placement.parts_of(nodes)
        for k, features in enumerate(self._features):
            mine = node[part == k]
            found, expected = features.read(mine, 0), graph.features(mine)
            wrong = mine[(found != expected).any(axis=1)]
            if len(wrong):
                yield f"part {k} has other features than the log for {len(wrong)} nodes, such as node {wrong[0]}"
