"""Foresee a compaction by reading: nothing is written, locked or removed."""

from collections.abc import Collection, Iterable

from stream.store.compact.lane import droppable_before, lane_files_before
from stream.store.compact.log import commits_with_rejects, folded_commits, log_files_before
from stream.store.compact.retention import Keep
from stream.store.compact.store import ALL, Compacted, require_lane
from stream.store.lane.layout import lane_folder, lane_names
from stream.store.lane.reader import LaneReader
from stream.store.log.reader import LogReader
from stream.store.places.place import Place
from stream.store.undisturbed import undisturbed


def foresee(store: str | Place, keep: Keep = ALL, *, remove: Collection[str] = ()) -> Compacted:
    """Foresee what ``compact`` with ``always`` would do now.

    Args:
        store: Folder of the store.
        keep: Snapshots to keep.
        remove: Lanes that would be removed first.

    Returns:
        As ``compact``; ``freed_bytes`` without the indexes that new ones would replace.

    Raises:
        ConfigMissingError: The store or a lane does not exist.
        CorruptError: A record is damaged.
    """
    return undisturbed(store, lambda: _foresee(store, keep, dict.fromkeys(remove)))


def _foresee(store: str | Place, keep: Keep, remove: Collection[str]) -> Compacted:
    log = LogReader(store)
    for name in remove:
        require_lane(store, name)
    done = Compacted(
        removed=list(remove), freed_bytes=sum(lane_folder(store, name).length() for name in remove)
    )
    if not log.snapshots:
        return done
    lanes = [LaneReader(store, name) for name in lane_names(store) if name not in remove]
    wanted = bound = keep.first(log, max((lane.header.window for lane in lanes), default=1))
    for lane in lanes:
        kept = lane.manifests
        first = max(kept.first, min(wanted, len(kept) - 1, droppable_before(lane))) if kept else kept.first
        if first < wanted:
            bound = min(bound, first)
            done.held_by.append(lane.header.lane)
        if kept:
            done.indexed.append(lane.header.lane)
            done.freed_bytes += _length(lane_files_before(lane.root, kept[first].tau))
    first = max(log.snapshots.first, min(bound, len(log.snapshots) - 1))
    done.dropped, done.first = first - log.snapshots.first, log.snapshots[first].tau
    done.indexed.append("log")
    assert log.last is not None, "a log with a snapshot has a commit"
    with_rejects = commits_with_rejects(log.root, log, first, done.first)
    folded = folded_commits(log.root, log.last.n, with_rejects)
    done.folded = len(folded)
    done.freed_bytes += _length(log_files_before(log.root, done.first, folded))
    return done


def _length(files: Iterable[Iterable[Place]]) -> int:
    return sum(path.length() for some in files for path in some)
