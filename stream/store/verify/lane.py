"""Check a lane against itself and the log: every byte that a record names, and the invariants.

Every snapshot is rebuilt from the additive files, part by part, and compared with the live graph of the log.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from freshet_graph.schemas.store import FileRef, LaneHeader, LaneManifest
from freshet_graph.stream.arrays.kinds import Int32, Int64
from freshet_graph.stream.snapshots.delta import SnapshotDelta
from freshet_graph.stream.snapshots.graph import LiveGraph
from freshet_graph.stream.snapshots.pairs import pair_keys
from freshet_graph.stream.store.errors import ConfigMissingError, CorruptError, FormatVersionError, StoreError
from freshet_graph.stream.store.files.data import open_table, require_whole, whole_or_corrupt
from freshet_graph.stream.store.files.records import read_record
from freshet_graph.stream.store.lane.diff import WholePairs
from freshet_graph.stream.store.lane.index import read_lane_index
from freshet_graph.stream.store.lane.layout import (
    HEADER,
    data_name,
    is_going,
    lane_folder,
    manifest_name,
    state_name,
)
from freshet_graph.stream.store.lane.reader import check_successor, manifest_taus
from freshet_graph.stream.store.lane.sweep import KEPT_STATES
from freshet_graph.stream.store.lane.tables import read_event_parts
from freshet_graph.stream.store.log.index import groups
from freshet_graph.stream.store.log.layout import index_name
from freshet_graph.stream.store.log.reader import LogReader
from freshet_graph.stream.store.places.interface import plain
from freshet_graph.stream.store.places.place import Place
from freshet_graph.stream.store.verify.ahead import files_ahead, records_ahead
from freshet_graph.stream.store.verify.check import Check, Compaction
from freshet_graph.stream.store.verify.index import readable_indexes
from freshet_graph.stream.store.window.held import HeldParts


class StoredLane:
    """The content of a lane's parts, rebuilt from the files alone, for comparison with the live graph of the log."""

    def __init__(self, root: Place, header: LaneHeader) -> None:
        self._root = root
        self._header = header
        self._content = HeldParts(root, header)

    def advance(self, manifest: LaneManifest, delta: SnapshotDelta, graph: LiveGraph) -> Iterator[str]:
        """Apply a snapshot's files and yield differences from the live graph; a base must agree too."""
        affected = np.union1d(self._content.advance(manifest), delta.feature_nodes)
        yield from self._wrong_nodes(manifest, delta)
        yield from self._wrong_pairs(manifest, graph)
        yield from self._wrong_features(affected, graph)
        if manifest.base is not None:
            yield from self.begin(manifest, manifest.base, delta, graph)

    def begin(
        self, manifest: LaneManifest, base: FileRef, delta: SnapshotDelta, graph: LiveGraph
    ) -> Iterator[str]:
        """Start from a base and yield differences from the live graph."""
        self._content.begin(manifest, base)
        everything = np.arange(manifest.num_nodes, dtype=np.int64)
        wrong = [
            *self._wrong_nodes(manifest, delta),
            *self._wrong_pairs(manifest, graph, check_events=False),
            *self._wrong_features(everything[: graph.num_nodes], graph),
        ]
        yield from (f"its base: {problem}" for problem in wrong)

    def _wrong_nodes(self, manifest: LaneManifest, delta: SnapshotDelta) -> Iterator[str]:
        homeless = delta.live[self._content.placement.home[delta.live] < 0]
        if len(homeless):
            yield f"{len(homeless)} live nodes have no home, such as node {homeless[0]}"
        _, part = self._content.placement.all()
        counts = np.bincount(part, minlength=self._header.parts).tolist()
        recorded = [summary.nodes for summary in manifest.parts]
        if counts != recorded:
            yield f"its parts have {counts} nodes, the manifest says {recorded}"

    def _wrong_pairs(
        self, manifest: LaneManifest, graph: LiveGraph, *, check_events: bool = True
    ) -> Iterator[str]:
        pairs_by_part = [pairs.as_of(manifest.sequence) for pairs in self._content.pairs]
        keys = np.concatenate([k for k, _ in pairs_by_part])
        weight = np.concatenate([w for _, w in pairs_by_part])
        part = np.repeat(
            np.arange(len(self._content.pairs), dtype=np.int32), [len(k) for k, _ in pairs_by_part]
        )
        order = np.lexsort((part, keys))
        keys, weight, part = keys[order], weight[order], part[order]
        live = graph.pairs()
        live_keys = pair_keys(live.src, live.dst)
        if self._header.kind == "vertex":
            expected = WholePairs.by_owner(live_keys, live.weight, self._content.placement.home)
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
        counts = np.bincount(part, minlength=len(self._content.pairs)).tolist()
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
        place = np.searchsorted(keys, pair_keys(changed.src[inserted], changed.dst[inserted]))
        if not np.array_equal(part[place], np.where(chosen < 0, self._header.parts, chosen)):
            yield "a pair isn't stored in the part of its latest insert"

    def _wrong_features(self, nodes: Int64, graph: LiveGraph) -> Iterator[str]:
        if self._header.node_features == 0:
            return
        node, part = self._content.placement.parts_of(nodes)
        for k, features in enumerate(self._content.features):
            mine = node[part == k]
            stored, expected = features.read(mine, 0), graph.features(mine)
            wrong = mine[(stored != expected).any(axis=1)]
            if len(wrong):
                yield f"part {k} has other features than the log for {len(wrong)} nodes, such as node {wrong[0]}"


FILES = ("assignment", "edges", "segments", "event_parts", "base")
"""Keys of a manifest that name files, except its state."""


def verify_lane(
    store: str | Place, lane: str, doubt: Compaction | None = None, *, against_log: bool
) -> Check:
    """Check a lane: header, manifests and their chain, files, and every snapshot against the log.

    Reads every file; may run beside a writer, whose later commits aren't checked.

    Args:
        store: Folder of the store.
        lane: The lane's name.
        doubt: See ``Check``.
        against_log: False if the log is damaged: the lane is checked alone.

    Returns:
        All problems. Damage in one file doesn't hide damage in others, but snapshots are rebuilt only if all files match
        their records.

    Raises:
        DoubtError: See ``Check.report``.
    """
    root = lane_folder(store, lane)
    check = Check.begun(root, doubt)
    taus = sorted(manifest_taus(root))
    if is_going(root) or (not (root / HEADER).exists() and not taus):
        return check  # a lane that is being removed, or was never begun
    check.read(root / HEADER)
    try:
        header = read_record(root / HEADER, LaneHeader)
        log = (
            LogReader(store) if against_log else None
        )  # after the listing, so that it has all of the lane's snapshots
    except StoreError as error:
        check.report(str(error))
        return check
    if header.lane != lane:
        check.report(f"{root / HEADER} is the header of lane {header.lane}, its folder is {lane}")
    follows = (header.graph, header.interval_us)
    # Until its first snapshot a header binds nothing: the log's may have been changed since.
    if log is not None and taus and (log.header.graph, log.header.interval_us) != follows:
        check.report(f"{root / HEADER} follows another log than the one of {store}")
        log = None
    index = _index(root, header, check)
    if index is not None:
        taus = [tau for tau in taus if tau >= index.oldest]  # an interrupted drop leaves older ones
    manifests = _manifests(root, header, taus, log, check, index)
    for manifest in files_ahead(root, manifests, _named):
        _files(root, manifest, check)
    _states(root, manifests, check)
    if log is not None and check.ok:
        _rebuild(root, header, manifests, log, check, index)
    return check


@dataclass(frozen=True, slots=True)
class _Index:
    """The newest index: the oldest kept snapshot, its number, and its full state if there is one."""

    oldest: int
    first: int
    base: FileRef | None


def _index(root: Place, header: LaneHeader, check: Check) -> _Index | None:
    """Check all indexes and their files; returns the newest readable one."""
    newest = None
    for number, (index, rows) in readable_indexes(root, check, partial(read_lane_index, root, header)):
        check.read(root / index.manifests.path)
        if newest is not None:
            continue
        newest = _Index(int(rows.taus[0]), index.first, index.base)
        if index.base is not None:
            _file(root, index.base, check)
        taus = rows.taus.tolist()
        paths = [root / manifest_name(tau) for tau in taus]
        stored = records_ahead(root, paths, LaneManifest)
        for tau, checksum, read in zip(taus, rows.table["checksum"].to_pylist(), stored, strict=True):
            try:
                actual = read().checksum
            except ConfigMissingError:
                actual = "no such record"
            except StoreError:
                continue  # reported with the manifests
            if actual != checksum:
                check.report(
                    f"{root / index_name(number)} says that {root / manifest_name(tau)} has the checksum {checksum}, "
                    f"found {actual}"
                )
    return newest


def _manifests(
    root: Place,
    header: LaneHeader,
    taus: list[int],
    log: LogReader | None,
    check: Check,
    indexed: _Index | None,
) -> list[LaneManifest]:
    """All readable manifests in order; problems with them and between them are reported."""
    readable: list[LaneManifest] = []
    first = indexed.first if indexed is not None else 0
    if indexed is None and taus and log is not None:
        first = log.snapshots.first  # a lane that was begun after the log had dropped snapshots
    elif indexed is None and taus:
        first = _first_sequence(root, taus[0])  # of a damaged log, which is reported there
    stored = records_ahead(root, [root / manifest_name(tau) for tau in taus], LaneManifest)
    for index, (tau, read) in enumerate(zip(taus, stored, strict=True), first):
        path = root / manifest_name(tau)
        check.read(path)
        try:
            manifest = read()
        except ConfigMissingError:
            check.report(f"{path} is missing, though it was listed")
            continue
        except (CorruptError, FormatVersionError) as error:
            check.report(str(error))
            continue
        after_damage = (
            len(readable) < index - first
        )  # the previous one couldn't be read, which is reported already
        expected = manifest.log_events_checksum
        if log is not None:
            sealed = [s for s in log.snapshots[index : index + 1] if s.tau == tau]
            if sealed:
                expected = sealed[0].events.checksum
                for name in ("num_nodes", "num_events"):
                    if getattr(manifest, name) != getattr(sealed[0], name):
                        check.report(
                            f"{path} says {name} is {getattr(manifest, name)}, the log has {getattr(sealed[0], name)}"
                        )
            elif not after_damage:
                logged = f"snapshot {log.snapshots[index].tau}" if index < len(log.snapshots) else "nothing"
                check.report(f"{path} is manifest {index} of its lane, but the log has {logged} there")
        try:
            before = readable[-1:]
            if indexed is not None and index == first and manifest.sequence == first:
                before = [manifest.model_copy(update={"checksum": manifest.previous})]  # no longer there
            check_successor(path, manifest, header, before, index, expected)
        except CorruptError as error:
            if not after_damage or manifest.lane_checksum != header.checksum:
                check.report(str(error))
        readable.append(manifest)
    return readable


def _first_sequence(root: Place, tau: int) -> int:
    try:
        return read_record(root / manifest_name(tau), LaneManifest).sequence
    except StoreError:
        return 0  # reported with the manifests


def _named(manifest: LaneManifest) -> list[FileRef]:
    named = (getattr(manifest, name) for name in FILES)
    return [reference for reference in named if reference is not None]


def _files(root: Place, manifest: LaneManifest, check: Check) -> None:
    for name in FILES:
        reference: FileRef | None = getattr(manifest, name)
        if reference is None:
            continue
        if plain(reference.path) != data_name(manifest.tau, name):
            check.report(f"{root / manifest_name(manifest.tau)} names {reference.path} as its {name}")
        _file(root, reference, check)


def _states(root: Place, manifests: list[LaneManifest], check: Check) -> None:
    """Check the newest states; they are gone if a writer has committed since and swept them."""
    with_state = [manifest for manifest in manifests if manifest.state is not None][-KEPT_STATES:]
    state_check = Check()
    for manifest in with_state:
        assert manifest.state is not None
        if plain(manifest.state.path) != state_name(manifest.tau):
            state_check.report(
                f"{root / manifest_name(manifest.tau)} names {manifest.state.path} as its state"
            )
        _file(root, manifest.state, state_check)
    newest = manifests[-1].tau if manifests else None
    if max(manifest_taus(root), default=None) == newest:
        check.add(state_check)


def _file(root: Place, reference: FileRef, check: Check) -> None:
    check.read(root / reference.path)
    try:
        reader = open_table(root, reference)
        with whole_or_corrupt(root / reference.path):
            for k in range(reader.num_record_batches):
                require_whole(reader.get_batch(k))
    except CorruptError as error:
        check.report(str(error))


def _rebuild(
    root: Place,
    header: LaneHeader,
    manifests: list[LaneManifest],
    log: LogReader,
    check: Check,
    index: _Index | None,
) -> None:
    """Rebuild every snapshot up to the first wrong one, because all after it would be wrong as well."""
    graph = LiveGraph(
        node_features=header.node_features, segments=header.segments, edge_life=header.edge_life
    )
    stored = StoredLane(root, header)
    try:
        if (base := log.base()) is not None:
            for tau, events in groups(base, header.edge_life):
                graph.apply(tau, events)
        for snapshot in log.snapshots[: manifests[0].sequence if manifests else 0]:
            graph.apply(snapshot.tau, log.events(snapshot.tau))
    except StoreError as error:
        check.report(str(error))
        return
    for manifest in files_ahead(root, files_ahead(log.root, manifests, partial(_events, log)), _named):
        begun = index.base if index is not None and manifest.sequence == index.first else None
        try:
            delta = graph.apply(manifest.tau, log.events(manifest.tau))
            rebuilt = (
                stored.begin(manifest, begun, delta, graph)
                if begun
                else stored.advance(manifest, delta, graph)
            )
            problems = [*rebuilt, *_wrong_counts(manifest, delta, graph)]
        except StoreError as error:
            problems = [str(error)]
        if problems:
            where = root / manifest_name(manifest.tau)
            check.report(*(f"{where}, snapshot {manifest.tau}: {problem}" for problem in problems))
            return


def _events(log: LogReader, manifest: LaneManifest) -> list[FileRef]:
    """The log's file of a lane's snapshot; empty if it is missing, which is reported elsewhere."""
    try:
        return [log.snapshot(manifest.tau).events]
    except StoreError:
        return []


def _wrong_counts(manifest: LaneManifest, delta: SnapshotDelta, graph: LiveGraph) -> Iterator[str]:
    counts = {"live_edges": graph.num_edges, "live_nodes": len(delta.live)}
    for name, count in counts.items():
        if getattr(manifest, name) != count:
            yield f"{name} is {count}, the manifest says {getattr(manifest, name)}"
