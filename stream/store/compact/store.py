"""Compact a whole store: its lanes, then its log, beside the process that writes it and its readers.

``Keep`` says which snapshots stay. ``foresee`` says beforehand what would go, by reading only: nothing is written, locked or
removed.
"""

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from freshet_graph.schemas.events import US_PER_S
from freshet_graph.schemas.store import SealedSnapshot
from freshet_graph.stream.store.compact.index_files import is_complete
from freshet_graph.stream.store.compact.lane import (
    droppable_before,
    index_lane,
    lane_files_before,
    sweep_lane_index,
)
from freshet_graph.stream.store.compact.log import (
    Freed,
    commits_with_rejects,
    folded_commits,
    index_log,
    log_files_before,
    sweep_log_index,
)
from freshet_graph.stream.store.crash import crash_point
from freshet_graph.stream.store.errors import ConfigMissingError, StoreError
from freshet_graph.stream.store.files.records import Numbered
from freshet_graph.stream.store.files.sweep import COMPACTION, lock_folder, new_writer_id
from freshet_graph.stream.store.files.sweep import remove as remove_all
from freshet_graph.stream.store.lane.layout import FOLDER, REMOVED, lane_folder, lane_names
from freshet_graph.stream.store.lane.reader import LaneReader
from freshet_graph.stream.store.log.index import COPIES
from freshet_graph.stream.store.log.layout import log_folder
from freshet_graph.stream.store.log.reader import LogReader
from freshet_graph.stream.store.places.place import Place, place_of
from freshet_graph.stream.store.undisturbed import undisturbed

STEP = 8
"""Snapshots are dropped when they are an eighth of the kept ones, because dropping writes the live graph once."""


@dataclass(frozen=True, slots=True)
class Keep:
    """Retention rules; a snapshot stays while any rule keeps it. Without a rule all stay.

    Attributes:
        snapshots: Number of newest snapshots to keep; None: no such rule.
        time_s: Keep those that end within this many seconds before the newest one's end; None: no such rule.
        events_s: Keep those with an event within this many seconds before the newest event, whatever the other rules say,
            because duplicates are looked up among them.
    """

    snapshots: int | None = None
    time_s: float | None = None
    events_s: float = 0.0

    def first(self, log: LogReader, window: int) -> int:
        """The number of the oldest snapshot to keep.

        Args:
            log: The log.
            window: Number of newest snapshots that stay in any case, for trainers of its lanes.
        """
        snapshots = log.snapshots
        if not snapshots or (self.snapshots is None and self.time_s is None):
            return snapshots.first
        end = len(snapshots)
        firsts = [end - max(window, self.snapshots or 1)]
        if self.time_s is not None:
            intervals = -(-round(self.time_s * US_PER_S) // log.header.interval_us)
            firsts.append(_first_from(snapshots, snapshots[-1].tau + 1 - intervals))
        if self.events_s and log.totals.max_t_us is not None:
            oldest_us = log.totals.max_t_us - round(self.events_s * US_PER_S)
            firsts.append(_first_from(snapshots, oldest_us // log.header.interval_us))
        return max(snapshots.first, min(firsts))


def is_due(first: int, kept_from: int, end: int) -> bool:
    """Whether enough is to be dropped to be worth it: an eighth of what stays, and at least one."""
    return kept_from - first >= max(1, (end - kept_from) // STEP)


def _first_from(snapshots: Numbered[SealedSnapshot], tau: int) -> int:
    """Number of the first snapshot of τ or later."""
    return bisect_left(snapshots, tau, lo=snapshots.first, hi=len(snapshots), key=lambda s: s.tau)


INDEX_EVERY = 1024
"""An index is due after this many records, because a reader that opens the store reads them one by one."""

ALL = Keep()
"""Drop nothing."""


@dataclass(slots=True)
class Compacted:
    """Result of a compaction.

    Attributes:
        dropped: Snapshots of the log that are no longer kept.
        folded: Commits that an index has replaced.
        first: τ of the oldest snapshot kept; None: there is none.
        indexed: Names of those with a new index: ``log`` and lanes.
        removed: Removed lanes.
        held_by: Lanes that still need older snapshots than the rules keep, because they or their newest states lag.
        freed_bytes: Length of the removed files; new indexes are not subtracted.
    """

    dropped: int = 0
    folded: int = 0
    first: int | None = None
    indexed: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    held_by: list[str] = field(default_factory=list)
    freed_bytes: int = 0


def compact(
    store: str | Place,
    keep: Keep = ALL,
    *,
    always: bool = False,
    remove: Collection[str] = (),
    stop: Callable[[], bool] = lambda: False,
) -> Compacted:
    """Index a store's records, drop old snapshots, and sweep the rest.

    May run beside writers and readers. Each step happens as a whole or not at all: an index is durable, in two copies, before
    the records it replaces are removed. Lanes come before the log, so that a lane never outlasts its source.

    Args:
        store: Folder of the store.
        keep: Snapshots to keep.
        always: Write indexes now, and drop whatever may go; otherwise only if there is enough to be worth it.
        remove: Lanes to remove first, with all their files.
        stop: Called between steps; True ends early.

    Raises:
        ConfigMissingError: The store or a lane does not exist.
        LaneBusyError: Another process compacts the store, or writes a lane to be removed.
        CorruptError: Something is damaged; files that depend on it stay.
        OSError: The disk refuses.
    """
    done = Compacted()
    log = LogReader(store)
    lock = lock_folder(log_folder(store), new_writer_id(), COMPACTION)
    try:
        remove = dict.fromkeys(remove)
        for name in remove:  # before the first is removed
            require_lane(store, name)
        for name in remove:
            done.freed_bytes += remove_lane(store, name)
            done.removed.append(name)
        lanes = place_of(store) / FOLDER
        for name in lanes.names():
            if name.endswith(REMOVED):
                done.freed_bytes += _remove_marked(lanes / name)
        while not _compact(store, log, keep, done, always=always, stop=stop, require=lock.require):
            log.refresh()
        log.refresh()
        done.first = log.snapshots[log.snapshots.first].tau if log.snapshots else None
    except (StoreError, OSError):
        lock.require()  # without the lease, the error may come from another process's work
        raise
    finally:
        lock.release()
    return done


def remove_lane(store: str | Place, name: str) -> int:
    """Remove a lane with all its files: the lane at once, its files a moment later; returns their bytes.

    Raises:
        ConfigMissingError: The lane does not exist.
        LaneBusyError: A process writes it.
    """
    require_lane(store, name)
    folder = lane_folder(store, name)
    lock = lock_folder(folder, new_writer_id())
    try:
        gone = folder.parent / f"{folder.name}{REMOVED}"
        if folder.can_move:
            remove_all([gone])  # remains of an earlier lane of the name
            folder.move(gone)
            folder.parent.sync()
        else:
            gone.put(b"")
        crash_point("compact.removing")
        return _remove_marked(gone)
    finally:
        lock.release()


def _remove_marked(mark: Place) -> int:
    """Remove a renamed lane; in a bucket, the lane that the mark beside it names, the mark last."""
    if not mark.can_move:
        freed = remove_all([mark.parent / mark.name.removesuffix(REMOVED)])
        remove_all([mark])
        return freed
    return remove_all([mark])


def require_lane(store: str | Place, name: str) -> None:
    """Check that a lane to be removed exists."""
    if name not in lane_names(store):
        raise ConfigMissingError(
            f"{store} has no lane {name!r} to remove. It has {', '.join(lane_names(store)) or 'none'}"
        )


def _compact(
    store: str | Place,
    log: LogReader,
    keep: Keep,
    done: Compacted,
    *,
    always: bool,
    stop: Callable[[], bool],
    require: Callable[[], None],
) -> bool:
    """Index and drop once; False: a lane was begun meanwhile, and the log's part must know it."""
    if not log.snapshots:
        return True
    lanes = [LaneReader(store, name) for name in lane_names(store)]
    wanted = keep.first(log, max((lane.header.window for lane in lanes), default=1))
    end = len(log.snapshots)
    for lane in lanes:
        if stop():
            return True
        require()
        _index_lane(lane, wanted, done, always=always)
    # Their snapshots are checked against the log's.
    holding = [lane for lane in lanes if lane.manifests.first < wanted]
    bound = min((lane.manifests.first for lane in holding), default=wanted)
    done.held_by = [lane.header.lane for lane in holding]
    index, first, last = log.index, log.snapshots.first, log.last
    assert last is not None, "a log with a snapshot has a commit"
    due = bound > first and is_due(first, bound, end)
    many = last.n - (-1 if index is None else index.n) >= INDEX_EVERY
    if always or due or many or (index is not None and not is_complete(index.number)):

        def known() -> bool:
            require()
            return {lane.header.lane for lane in lanes}.issuperset(lane_names(store))

        if (log_freed := index_log(log, bound if always or due else first, known)) is None:
            return False
        freed = log_freed
        done.indexed.append("log")
    elif index is not None:
        freed = sweep_log_index(log.root, index, log.snapshots[first].tau)
    else:
        freed = Freed()
    done.dropped, done.folded = freed.snapshots, freed.commits
    done.freed_bytes += freed.bytes
    return True


def _index_lane(lane: LaneReader, wanted: int, done: Compacted, *, always: bool) -> None:
    manifests, index = lane.manifests, lane.index
    if not manifests:
        return
    first = min(wanted, len(manifests) - 1, droppable_before(lane))
    due = first > manifests.first and is_due(manifests.first, first, len(manifests))
    many = len(manifests) - 1 - (-1 if index is None else index.sequence) >= INDEX_EVERY
    if always or due or many or (index is not None and not is_complete(index.number)):
        done.freed_bytes += index_lane(lane, first if always or due else manifests.first)
        lane.refresh()
        done.indexed = [name for name in done.indexed if name != lane.header.lane] + [lane.header.lane]
    elif index is not None:
        oldest = manifests[manifests.first].tau
        done.freed_bytes += sweep_lane_index(lane.root, oldest, index.number - COPIES + 1, index.base)


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
        manifests = lane.manifests
        first = (
            max(manifests.first, min(wanted, len(manifests) - 1, droppable_before(lane)))
            if manifests
            else manifests.first
        )
        if first < wanted:
            bound = min(bound, first)
            done.held_by.append(lane.header.lane)
        if manifests:
            done.indexed.append(lane.header.lane)
            done.freed_bytes += _length(lane_files_before(lane.root, manifests[first].tau))
    first = max(log.snapshots.first, min(bound, len(log.snapshots) - 1))
    done.dropped, done.first = first - log.snapshots.first, log.snapshots[first].tau
    done.indexed.append("log")
    assert log.last is not None, "a log with a snapshot has a commit"
    with_rejects = commits_with_rejects(log.root, log, first, done.first)
    folded = folded_commits(log.root, log.last.n, with_rejects)
    done.folded = len(folded)
    done.freed_bytes += _length(log_files_before(log.root, done.first, log.last.n, folded))
    return done


def _length(files: Iterable[Iterable[Place]]) -> int:
    return sum(path.length() for some in files for path in some)
