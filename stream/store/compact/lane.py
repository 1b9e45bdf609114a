"""A lane's part of compaction: an index over its manifests, a full state where it begins, and older snapshots gone."""

from collections.abc import Iterable, Iterator

from schemas.store import FileRef, LaneIndex, LaneManifest
from stream.store.compact.index_files import next_number, replaced
from stream.store.crash import crash_point
from stream.store.files.data import Staging, stage
from stream.store.files.paths import sync_folder
from stream.store.files.records import put_record
from stream.store.files.sweep import number_in, outdated, present, remove
from stream.store.lane.diff import segment_width
from stream.store.lane.index import manifest_rows
from stream.store.lane.layout import (
    COMMITS,
    INDEX,
    SNAPSHOTS,
    STATE,
    index_base_name,
    index_name,
    index_rows_name,
    manifest_name,
)
from stream.store.lane.reader import LaneReader, manifest_taus
from stream.store.lane.sweep import newest_states
from stream.store.lane.tables import bundle_batches
from stream.store.lane.writer import stored_batches
from stream.store.log.index import COPIES
from stream.store.places.names import last_step
from stream.store.places.place import Place
from stream.store.window.held import HeldParts


def droppable_before(lane: LaneReader) -> int:
    """Number up to which a lane's snapshots may go: it goes on from its newest state, and replays what came after.

    Returns:
        The snapshot of the newest state; without a state, the oldest snapshot.
    """
    states = newest_states(lane.manifests)
    return states[0].sequence if states else lane.manifests.first


def index_lane(lane: LaneReader, first: int) -> int:
    """Write an index over all manifests, and drop the snapshots before a number.

    Args:
        lane: Up to date.
        first: Sequence of the oldest snapshot to keep.

    Returns:
        Bytes of the files that went.

    Raises:
        CorruptError: A manifest or a file of the lane is damaged: nothing is dropped.
        OSError: The disk refuses.
    """
    if not lane.manifests:
        return 0
    crash_point("compact.begun")
    sync_folder(lane.root / COMMITS)  # a manifest can be read a moment before it is durable
    manifests, root = lane.manifests, lane.root
    first = max(manifests.first, min(first, len(manifests) - 1))
    number = next_number(root / INDEX)
    kept = manifests[first:]
    with stage(root) as staging:
        base = lane.index.base if lane.index is not None and lane.index.first == first else None
        if first > manifests.first:
            base = _stage_base(staging, lane, first)
        rows = [
            staging.add_table(index_rows_name(number + copy), manifest_rows(kept)) for copy in range(COPIES)
        ]
        staging.finish()
    for copy, reference in enumerate(rows):
        record = LaneIndex(
            number=number + copy,
            lane_checksum=lane.header.checksum,
            sequence=len(manifests) - 1,
            first=first,
            manifests=reference,
            base=base,
        )
        put_record(root / index_name(number + copy), record)
        crash_point("compact.indexed" if copy == COPIES - 1 else "compact.copied")
    return sweep_lane_index(root, kept[0].tau, number, base)


def sweep_lane_index(root: Place, oldest: int, number: int, base: FileRef | None) -> int:
    """Remove what an index of a lane made superfluous, and what a compaction that was cut off left behind.

    Args:
        root: The lane's folder.
        oldest: τ of the oldest snapshot kept.
        number: The index; it and later ones stay.
        base: The base it names.

    Returns:
        Bytes of the files that went.
    """
    sync_folder(root / INDEX)  # whoever wrote the index may have been killed before it was durable
    freed = sum(remove(paths) for paths in lane_files_before(root, oldest))
    crash_point("compact.dropped")
    left = replaced(root / INDEX, number, set() if base is None else {base.path})
    freed += remove(outdated(left, root / index_name(number)))
    for changed in (root / COMMITS, root / SNAPSHOTS, root / INDEX):
        sync_folder(changed)
    return freed


def lane_files_before(root: Place, oldest: int) -> Iterator[Iterable[Place]]:
    """What a lane has of snapshots before τ ``oldest``: manifests, then their files, then states."""
    older = [last_step(manifest_name(tau)) for tau in sorted(manifest_taus(root)) if tau < oldest]
    yield present(root / COMMITS, older)
    for found in ((root / SNAPSHOTS).iterdir(), (root / STATE).glob("*.arrow")):
        yield (path for path in found if (tau := number_in(path.name)) is not None and tau < oldest)


def _stage_base(staging: Staging, lane: LaneReader, first: int) -> FileRef:
    """Stage all that the lane's parts hold at snapshot number ``first``."""
    manifest = lane.manifests[first]
    held = _held(lane, manifest)
    width = segment_width(lane.header.node_features, lane.header.segments)
    return staging.add_table(index_base_name(first), bundle_batches(stored_batches(held.whole(first), width)))


def _held(lane: LaneReader, wanted: LaneManifest) -> HeldParts:
    """All that the parts hold at a snapshot, from the newest base before it."""
    held = HeldParts(lane.root, lane.header)
    begin = wanted.sequence
    while begin > lane.manifests.first and lane.base_of(lane.manifests[begin]) is None:
        begin -= 1
    base = lane.base_of(lane.manifests[begin])
    if base is not None:
        held.begin(lane.manifests[begin], base)
        begin += 1
    for manifest in lane.manifests[begin : wanted.sequence + 1]:
        held.advance(manifest)
    return held
