"""Rebuild a lane from its additive files part by part, and compare it with the log."""

from collections.abc import Iterator

import numpy as np

from schemas.store import FileRef, LaneHeader, LaneManifest
from stream.arrays.kinds import Int32, Int64
from stream.snapshots.delta import SnapshotDelta
from stream.snapshots.graph import LiveGraph
from stream.snapshots.pairs import pair_keys
from stream.store.lane.diff import WholePairs
from stream.store.lane.tables import read_event_parts
from stream.store.places.place import Place
from stream.store.window.held import HeldParts


class StoredLane:
    """The content of a lane's parts, rebuilt from the files alone, for comparison with the live graph of the log."""

    def __init__(self, root: Place, header: LaneHeader) -> None:
        self._root = root
        self._header = header
        self._held = HeldParts(root, header)

    def advance(self, manifest: LaneManifest, delta: SnapshotDelta, graph: LiveGraph) -> Iterator[str]:
        """Apply a snapshot's files and yield differences from the live graph; a base must agree too."""
        affected = np.union1d(self._held.advance(manifest), delta.feature_nodes)
        yield from self._wrong_nodes(manifest, delta)
        yield from self._wrong_pairs(manifest, graph)
        yield from self._wrong_features(affected, graph)
        if manifest.base is not None:
            yield from self.begin(manifest, manifest.base, delta, graph)

    def begin(
        self, manifest: LaneManifest, base: FileRef, delta: SnapshotDelta, graph: LiveGraph
    ) -> Iterator[str]:
        """Start from a base and yield differences from the live graph."""
        self._held.begin(manifest, base)
        everything = np.arange(manifest.num_nodes, dtype=np.int64)
        wrong = [
            *self._wrong_nodes(manifest, delta),
            *self._wrong_pairs(manifest, graph, check_events=False),
            *self._wrong_features(everything[: graph.num_nodes], graph),
        ]
        yield from (f"its base: {problem}" for problem in wrong)

    def _wrong_nodes(self, manifest: LaneManifest, delta: SnapshotDelta) -> Iterator[str]:
        homeless = delta.live[self._held.placement.home[delta.live] < 0]
        if len(homeless):
            yield f"{len(homeless)} live nodes have no home, such as node {homeless[0]}"
        _, part = self._held.placement.all()
        counts = np.bincount(part, minlength=self._header.parts).tolist()
        recorded = [summary.nodes for summary in manifest.parts]
        if counts != recorded:
            yield f"its parts have {counts} nodes, the manifest says {recorded}"

    def _wrong_pairs(
        self, manifest: LaneManifest, graph: LiveGraph, *, check_events: bool = True
    ) -> Iterator[str]:
        held = [pairs.at(manifest.sequence) for pairs in self._held.pairs]
        keys = np.concatenate([k for k, _ in held])
        weight = np.concatenate([w for _, w in held])
        part = np.repeat(np.arange(len(self._held.pairs), dtype=np.int32), [len(k) for k, _ in held])
        order = np.lexsort((part, keys))
        keys, weight, part = keys[order], weight[order], part[order]
        live = graph.pairs()
        live_keys = pair_keys(live.src, live.dst)
        if self._header.kind == "vertex":
            expected = WholePairs.by_owner(live_keys, live.weight, self._held.placement.home)
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
        counts = np.bincount(part, minlength=len(self._held.pairs)).tolist()
        recorded = [summary.edges for summary in (*manifest.parts, manifest.discarded) if summary is not None]
        if counts != recorded:
            yield f"its parts have {counts} pairs, the manifest says {recorded}"

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
        node, part = self._held.placement.parts_of(nodes)
        for k, features in enumerate(self._held.features):
            mine = node[part == k]
            found, expected = features.read(mine, 0), graph.features(mine)
            wrong = mine[(found != expected).any(axis=1)]
            if len(wrong):
                yield f"part {k} has other features than the log for {len(wrong)} nodes, such as node {wrong[0]}"
