"""A lane's part of compaction: index its manifests, write the full state where it begins, and drop older snapshots."""

from collections.abc import Iterable, Iterator

from freshet_graph.schemas.store import FileRef, LaneIndex, LaneManifest
from freshet_graph.stream.store.compact.index_files import next_number, replaced
from freshet_graph.stream.store.crash import crash_point
from freshet_graph.stream.store.files.records import put_record
from freshet_graph.stream.store.files.sweep import number_in, present, remove
from freshet_graph.stream.store.lane.diff import segment_width
from freshet_graph.stream.store.lane.index import manifest_rows
from freshet_graph.stream.store.lane.layout import (
    COMMITS,
    INDEX,
    SNAPSHOTS,
    STATE,
    index_base_name,
    manifest_name,
)
from freshet_graph.stream.store.lane.reader import LaneReader, manifest_taus
from freshet_graph.stream.store.lane.sweep import newest_states
from freshet_graph.stream.store.lane.tables import bundle_batches
from freshet_graph.stream.store.lane.writer import stored_batches
from freshet_graph.stream.store.log.index import COPIES
from freshet_graph.stream.store.log.layout import index_name, index_rows_name
from freshet_graph.stream.store.places.interface import Staging, last_step
from freshet_graph.stream.store.places.place import Place
from freshet_graph.stream.store.window.held import HeldParts


def droppable_before(lane: LaneReader) -> int:
    """Number up to which a lane's snapshots may go: that of its newest state, or of its oldest snapshot without one."""
    states = newest_states(lane.manifests)
    return states[0].sequence if states else lane.manifests.first


def index_lane(lane: LaneReader, first: int) -> int:
    """Write an index over all manifests, drop the snapshots before a number, and return the freed bytes.

    Args:
        lane: Up to date.
        first: Sequence of the oldest snapshot to keep.

    Raises:
        CorruptError: A manifest or a file of the lane is damaged; nothing is dropped.
        OSError: The disk refuses.
    """
    if not lane.manifests:
        return 0
    crash_point("compact.begun")
    (lane.root / COMMITS).sync()  # a manifest can be read just before it is durable
    manifests, root = lane.manifests, lane.root
    first = max(manifests.first, min(first, len(manifests) - 1))
    number = next_number(root / INDEX)
    indexed = manifests[first:]
    with root.stage() as staging:
        base = lane.index.base if lane.index is not None and lane.index.first == first else None
        if first > manifests.first:
            base = _stage_base(staging, lane, first)
        rows = [
            staging.add_table(index_rows_name(number + copy), manifest_rows(indexed))
            for copy in range(COPIES)
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
    return sweep_lane_index(root, indexed[0].tau, number, base)


def sweep_lane_index(root: Place, oldest: int, number: int, base: FileRef | None) -> int:
    """Remove files that an index of a lane replaced, and remains of an interrupted compaction; returns their bytes.

    Args:
        root: The lane's folder.
        oldest: τ of the oldest snapshot kept.
        number: The index; it and later ones stay.
        base: The base it names.
    """
    (root / INDEX).sync()  # the writer of the index may have been killed before it was durable
    freed = sum(remove(paths) for paths in lane_files_before(root, oldest))
    crash_point("compact.dropped")
    left = replaced(root / INDEX, number, set() if base is None else {base.path})
    freed += remove((root / index_name(number)).outdated(left))
    for changed in (root / COMMITS, root / SNAPSHOTS, root / INDEX):
        changed.sync()
    return freed


def lane_files_before(root: Place, oldest: int) -> Iterator[Iterable[Place]]:
    """A lane's files of snapshots before τ ``oldest``: manifests, then their data, then states."""
    older = [last_step(manifest_name(tau)) for tau in sorted(manifest_taus(root)) if tau < oldest]
    yield present(root / COMMITS, older)
    states = (root / STATE).entries(lambda names: (name for name in names if name.endswith(".arrow")))
    for entries in ((root / SNAPSHOTS).iterdir(), states):
        yield (path for path in entries if (tau := number_in(path.name)) is not None and tau < oldest)


def _stage_base(staging: Staging, lane: LaneReader, first: int) -> FileRef:
    """Stage the full content of the lane's parts at snapshot number ``first``."""
    manifest = lane.manifests[first]
    content = _content(lane, manifest)
    width = segment_width(lane.header.node_features, lane.header.segments)
    return staging.add_table(
        index_base_name(first), bundle_batches(stored_batches(content.whole(first), width))
    )


def _content(lane: LaneReader, wanted: LaneManifest) -> HeldParts:
    """The full content of the parts at a snapshot, from the newest base before it."""
    content = HeldParts(lane.root, lane.header)
    begin = wanted.sequence
    while begin > lane.manifests.first and lane.base_of(lane.manifests[begin]) is None:
        begin -= 1
    base = lane.base_of(lane.manifests[begin])
    if base is not None:
        content.begin(lane.manifests[begin], base)
        begin += 1
    for manifest in lane.manifests[begin : wanted.sequence + 1]:
        content.advance(manifest)
    return content
