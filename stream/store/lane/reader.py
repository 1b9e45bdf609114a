"""The reader of a lane: its snapshots in order, while another process writes."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

from freshet_graph.schemas.store import FileRef, LaneHeader, LaneIndex, LaneManifest
from freshet_graph.stream.arrays.kinds import Int32
from freshet_graph.stream.store.errors import (
    ConfigMissingError,
    CorruptError,
    MissingError,
    RetainedError,
    remedy,
)
from freshet_graph.stream.store.files.follow import FolderWatch, follow
from freshet_graph.stream.store.files.records import Numbered, lost_header, read_record, read_records
from freshet_graph.stream.store.lane.diff import segment_width
from freshet_graph.stream.store.lane.index import LaneTotals, ManifestRows, manifest_rows, newest_index
from freshet_graph.stream.store.lane.layout import (
    COMMITS,
    HEADER,
    is_going,
    lane_folder,
    lane_names,
    made,
    manifest_name,
)
from freshet_graph.stream.store.lane.placement import edge_batch_count
from freshet_graph.stream.store.lane.tables import LaneChanges, LaneTables, Selection, read_event_parts
from freshet_graph.stream.store.log.reader import LogReader
from freshet_graph.stream.store.places.place import Place

T = TypeVar("T")


class LaneReader:
    """A view of a lane as of the newest manifest seen; ``refresh`` advances it.

    Sequence numbers are those of the log's sealed snapshots: manifest i belongs to ``log.snapshots[i]``.

    Attributes:
        log: The log that the lane follows.
        root: The lane's folder.
        header: Partitioner and parameters.
        manifests: By sequence; only kept ones can be read. Read-only.
        taus: Their snapshots; read-only.
        index: The newest index over them; None: there is none.
        rows: Its rows.
    """

    def __init__(self, store: str | Place, lane: str) -> None:
        """Open a lane of a store.

        Raises:
            ConfigMissingError: The store or the lane does not exist.
            CorruptError, FormatVersionError: A record of log or lane is damaged, or from another release.
        """
        self.log = LogReader(store)
        self.root = lane_folder(store, lane)
        self._made = made(self.root)
        try:
            self.header = read_record(self.root / HEADER, LaneHeader)
        except ConfigMissingError:
            if manifest_taus(self.root) and not is_going(self.root):
                raise lost_header(self.root / HEADER) from None
            raise ConfigMissingError(
                f"{store} has no lane {lane!r}. It has {', '.join(lane_names(store)) or 'none yet'}. "
                "Name one of them, or add the lane to the stream's configuration"
            ) from None
        if self.header.lane != lane:
            raise CorruptError(
                f"{self.root / HEADER} is the header of lane {self.header.lane!r}, not of {lane!r}. "
                "Rename the folder back, or let the stream job build the lane again"
            )
        self.index: LaneIndex | None = None
        self.rows: ManifestRows | None = None
        self.manifests: Numbered[LaneManifest] = Numbered("lane snapshot")
        self.taus: set[int] = set()
        listed = manifest_taus(self.root)
        if (newest := newest_index(self.root, self.header)) is not None:
            self.index, self.rows = newest
            self._take(*newest)
        self.refresh()
        self.require_whole(listed)

    def refresh(self) -> None:
        """Read the snapshots committed since.

        Raises:
            ConfigMissingError: The lane was removed.
            CorruptError, FormatVersionError: A record is damaged, or doesn't follow its predecessor; those before it count.
        """
        self.log.refresh()
        end = len(self.manifests)
        newest = newest_index(self.root, self.header, self.index.number if self.index else -1)
        if newest is not None:
            self.index, self.rows = newest
            if self.index.sequence >= len(self.manifests):
                self._take(self.index, self.rows)
            else:
                self._drop_before(self.index.first)
            if len(self.manifests) > len(self.log.snapshots):
                self.log.refresh()  # every snapshot of the lane must be found in the log
        if not self.manifests and self.log.snapshots.first > len(self.manifests):
            self.manifests = Numbered("lane snapshot", self.log.snapshots.first)
        missing = self.log.snapshots[len(self.manifests) :]
        paths = [self.root / manifest_name(snapshot.tau) for snapshot in missing]
        for snapshot, path, manifest in zip(missing, paths, read_records(paths, LaneManifest), strict=False):
            before, checksum = self.manifests[-1:], snapshot.events.checksum
            try:
                check_successor(path, manifest, self.header, before, len(self.manifests), checksum)
            except CorruptError:
                self._require_there()
                raise
            self.add(manifest)
        if len(self.manifests) == end and missing:
            self._require_there()

    def add(self, manifest: LaneManifest) -> None:
        """Append the next manifest, as its writer does."""
        self.manifests.append(manifest)
        self.taus.add(manifest.tau)

    @property
    def totals(self) -> LaneTotals:
        """Bytes and seconds of all kept snapshots, from the index if there is one."""
        if self.rows is None:
            return LaneTotals().plus(manifest_rows(self.manifests[:]))
        indexed = self.rows.table.slice(self.manifests.first - self.rows.first)
        newer = self.manifests[self.rows.first + len(self.rows) :]
        return LaneTotals().plus(indexed).plus(manifest_rows(newer))

    def base_of(self, manifest: LaneManifest) -> FileRef | None:
        """The file with the full state of the parts at a snapshot; None: it has none."""
        if manifest.base is None and self.index is not None and manifest.sequence == self.index.first:
            return self.index.base
        return manifest.base

    def follow(
        self,
        after_sequence: int | None = None,
        timeout_s: float | None = None,
        stop: Callable[[], bool] | None = None,
        watch: FolderWatch | None = None,
    ) -> Iterator[LaneManifest]:
        """Lane snapshots in order, the existing ones and then new ones, waiting for each.

        Args:
            after_sequence: Begin after this sequence number; None: with the oldest.
            timeout_s: End after this long without a new snapshot; None: never.
            stop: Called a few times per second while waiting; True ends.
            watch: A watch of the folder ``COMMITS`` of ``root``, for repeated calls; None: its own.

        Raises:
            CorruptError, FormatVersionError: A new record is damaged.
            RetainedError: The next snapshot is no longer kept; the message says where a reader can start.
        """

        def refreshed() -> Numbered[LaneManifest]:
            self.refresh()
            return self.manifests

        first = None if after_sequence is None else after_sequence + 1
        return follow(self.root / COMMITS, refreshed, first, timeout_s=timeout_s, stop=stop, watch=watch)

    def changes(
        self, manifest: LaneManifest, parts: list[int], *, discarded: bool = False, base: bool = False
    ) -> LaneChanges:
        """The stored changes of a snapshot for some parts; not copied for one part.

        Args:
            manifest: The snapshot's.
            parts: Parts in [0, K).
            discarded: Edge lanes: include the pairs that no part holds.
            base: The full state instead, as a change from nothing; only for snapshots with a base.

        Raises:
            CorruptError: A file doesn't match the manifest; the message names it.
        """
        tables = self.tables(manifest, parts, discarded=discarded, base=base)
        return self.read_kept(manifest, tables.changes)

    def tables(
        self,
        manifest: LaneManifest,
        parts: list[int] | None = None,
        *,
        discarded: bool = False,
        base: bool = False,
    ) -> LaneTables:
        """As ``changes``, of all parts by default, but the rows of each part are read one by one.

        A file that is no longer kept is a ``MissingError`` when it is read; ``read_kept`` makes a ``RetainedError`` of it.
        """
        file = self.base_of(manifest) if base else None
        assert file is not None or not base, "only for snapshots with a base"
        chosen = list(range(self.header.parts)) if parts is None else parts
        return lane_tables(self.root, self.header, manifest, chosen, discarded=discarded, base=file)

    def event_parts(self, manifest: LaneManifest) -> Int32 | None:
        """The part of every edge event of a snapshot, −1 for discarded ones and deletes; None in vertex lanes.

        Raises:
            CorruptError: The file doesn't match the manifest; the message names it.
        """
        reference = manifest.event_parts
        if reference is None:
            return None
        return self.read_kept(manifest, lambda: read_event_parts(self.root, reference))

    def _require_there(self) -> None:
        """Check that a lane without new snapshots, or with missing or unexpected files, was not removed.

        Raises:
            ConfigMissingError: It was; there may be another one of its name.
        """
        if self.manifests and (made(self.root) != self._made or is_going(self.root)):
            raise ConfigMissingError(
                f"{self.root} was removed since it was opened, or built again. Open the current lane"
            )
        if not self.manifests and read_record(self.root / HEADER, LaneHeader) != self.header:
            raise ConfigMissingError(
                f"{self.root} was made for another configuration while it was empty. Open the current lane"
            )

    def _take(self, index: LaneIndex, rows: ManifestRows) -> None:
        self.manifests = Numbered("lane snapshot", index.first, len(rows), partial(self._load, rows))
        self.taus = set(rows.taus.tolist())

    def _load(self, rows: ManifestRows, sequence: int) -> LaneManifest:
        """Read a manifest that an index names, or say that a newer index has dropped it."""
        try:
            return rows.load(sequence)
        except ConfigMissingError:
            newer = newest_index(self.root, self.header, -1 if self.index is None else self.index.number)
            if newer is None or sequence >= newer[0].first:
                self._require_there()
                raise
            raise RetainedError(
                f"{self.root} no longer keeps lane snapshot number {sequence}. A reader can start from number "
                f"{newer[0].first}"
            ) from None
        except CorruptError:
            self._require_there()
            raise

    def _drop_before(self, first: int) -> None:
        assert self.rows is not None
        self.manifests.drop_before(first)
        oldest = int(self.rows.taus[0])
        self.taus = {tau for tau in self.taus if tau >= oldest}

    def read_kept(self, manifest: LaneManifest, read: Callable[[], T]) -> T:
        """Read a snapshot's files, or say that it is no longer kept.

        Raises:
            RetainedError: It isn't; the message says where a reader can start.
        """
        try:
            return read()
        except MissingError:
            self.refresh()
            if manifest.sequence >= self.manifests.first:
                self._require_there()
                raise
            oldest = self.manifests[self.manifests.first]
            raise RetainedError(
                f"{self.root} no longer keeps snapshot {manifest.tau} (number {manifest.sequence}). A reader can start "
                f"from {oldest.tau} (number {oldest.sequence})"
            ) from None

    def _beyond(self, listed: set[int]) -> set[int]:
        """Listed snapshots beyond the chain; those older than the oldest kept one were dropped."""
        oldest = min(self.taus, default=None)
        return {tau for tau in listed - self.taus if oldest is None or tau > oldest}

    def require_whole(self, listed: set[int]) -> None:
        """Check that the chain reached every manifest ``listed`` before it was read."""
        beyond, indexed = self._beyond(listed), self.index
        while beyond:
            self.refresh()
            beyond = self._beyond(listed)
            if self.index is indexed:
                break
            indexed = self.index  # compacted meanwhile: some may have been dropped, others indexed
        if not beyond:
            return
        strangers = beyond - {snapshot.tau for snapshot in self.log.snapshots}
        if strangers:
            raise CorruptError(
                f"{self.root / manifest_name(min(strangers))} belongs to no sealed snapshot of the log. Log and lane are "
                "from different stores"
            )
        missing = self.root / manifest_name(self.log.snapshots[len(self.manifests)].tau)
        raise CorruptError(f"{missing} is missing, though snapshot {min(beyond)} exists{remedy(missing)}")


def lane_tables(
    root: Place,
    header: LaneHeader,
    manifest: LaneManifest,
    parts: list[int],
    *,
    discarded: bool = False,
    base: FileRef | None = None,
) -> LaneTables:
    """The files of a snapshot's changes for some parts, or of its full state, as a change from nothing.

    Args:
        root: The lane's folder.
        header: The lane's.
        manifest: The snapshot's.
        parts: Parts in [0, K).
        discarded: Edge lanes: include the pairs that no part holds.
        base: The file with the full state; None: the changes.
    """
    files = (manifest.assignment, manifest.edges, manifest.segments) if base is None else (base,)
    more = [header.parts] if discarded and header.kind == "edge" else []
    selection = Selection(
        parts=parts,
        edge_batches=[*parts, *more],
        stored_parts=header.parts,
        stored_edge_batches=edge_batch_count(header),
        width=segment_width(header.node_features, header.segments),
        segments=header.segments,
        num_nodes=manifest.num_nodes,
        whole_pairs=manifest.whole_pairs,
    )
    return LaneTables(root, files, selection)


def check_successor(
    path: Place,
    manifest: LaneManifest,
    header: LaneHeader,
    before: list[LaneManifest],
    sequence: int,
    events_checksum: str,
) -> None:
    """Check that a manifest is the next one of its lane and was made from the log's snapshot.

    Args:
        path: Its place.
        manifest: As read.
        header: The lane's.
        before: The previous manifest, or nothing.
        sequence: The number it must have.
        events_checksum: Checksum of the log's events of the snapshot.

    Raises:
        CorruptError: It belongs to another lane, place or log.
    """
    if manifest.lane_checksum != header.checksum:
        raise CorruptError(
            f"{path} is a manifest of another lane ({manifest.lane}), or lane.json was changed while the lane was "
            f"empty. Open it again{remedy(path)}"
        )
    previous = before[0].checksum if before else ""
    if (manifest.sequence, manifest.previous) != (sequence, previous):
        raise CorruptError(
            f"{path} says it is number {manifest.sequence} after {manifest.previous or 'nothing'}, "
            f"expected number {sequence} after {previous or 'nothing'}{remedy(path)}"
        )
    if not manifest_name(manifest.tau).endswith(f"/{path.name}"):
        raise CorruptError(f"{path} is the manifest of snapshot {manifest.tau}{remedy(path)}")
    if manifest.log_events_checksum != events_checksum:
        raise CorruptError(
            f"{path} was made from other events (checksum {manifest.log_events_checksum}) than the log has "
            f"({events_checksum}){remedy(path)}"
        )


def manifest_taus(root: Place) -> set[int]:
    """Snapshots with manifests in a lane's folder."""
    stems = (name.removesuffix(".json") for name in (root / COMMITS).names() if name.endswith(".json"))
    return {int(stem) for stem in stems if stem.lstrip("-").isdigit()}
