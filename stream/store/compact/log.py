"""The log's part of compaction: index its commits, write the live graph where it begins, and drop older snapshots."""

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from freshet_graph.schemas.events import node_schema
from freshet_graph.schemas.store import (
    FORMAT_VERSION,
    LABELS_NAMED,
    CommitRecord,
    Dropped,
    FileRef,
    LogIndex,
)
from freshet_graph.stream.store.compact.index_files import next_number, replaced
from freshet_graph.stream.store.crash import crash_point
from freshet_graph.stream.store.files.records import put_record, read_record
from freshet_graph.stream.store.files.sweep import number_in, present, remove
from freshet_graph.stream.store.log.commits import numbers
from freshet_graph.stream.store.log.index import COPIES, fold, snapshot_rows
from freshet_graph.stream.store.log.labels import encode_labels, read_labels, visible_from
from freshet_graph.stream.store.log.layout import (
    COMMITS,
    INDEX,
    LABELS,
    REJECTS,
    SNAPSHOTS,
    batch_rows,
    commit_name,
    gathered_labels_name,
    ids_name,
    index_name,
    index_rows_name,
    log_base_name,
)
from freshet_graph.stream.store.log.reader import LogReader
from freshet_graph.stream.store.log.sealed import absorbed_from, canonical_batches
from freshet_graph.stream.store.places.interface import Staging, last_step, plain
from freshet_graph.stream.store.places.place import Place

_IDS = re.compile(r".*/ids-(\d+)-(\d+)\.arrow")


@dataclass(frozen=True, slots=True)
class Freed:
    """Result of a log's compaction: dropped snapshots, folded commits, and bytes of all removed files."""

    snapshots: int = 0
    commits: int = 0
    bytes: int = 0


def index_log(log: LogReader, first: int, known: Callable[[], bool] = lambda: True) -> Freed | None:
    """Write an index over all commits, drop the snapshots before a number, and fold the commits into the index.

    Args:
        log: Up to date; it has a snapshot.
        first: Number of the oldest snapshot to keep.
        known: Called right before the index is put: whether ``first`` is still right.

    Returns:
        None if it wasn't; then nothing has happened.

    Raises:
        CorruptError: A file to be dropped can't be read; nothing is dropped.
        OSError: The disk refuses.
    """
    crash_point("compact.begun")
    (
        log.root / COMMITS
    ).sync()  # a commit can be read just before it is durable, and an index must not outlive it
    root, snapshots, last, before = log.root, log.snapshots, log.last, log.index
    assert last is not None, "a log with a snapshot has a commit"
    first = max(snapshots.first, min(first, len(snapshots) - 1))
    number = next_number(root / INDEX)
    indexed, gone = snapshots[first:], snapshots[:first]
    dropped = Dropped(
        events=log.dropped.events + sum(s.num_events for s in gone),
        inserts=log.dropped.inserts + sum(s.num_inserts for s in gone),
        deletes=log.dropped.deletes + sum(s.num_deletes for s in gone),
    )
    with root.stage() as staging:
        labels = _stage_labels(staging, log, number, indexed[0].tau if gone else None)
        ids = _stage_ids(staging, log, before.ids if before is not None else [])
        base = before.base if before is not None else None
        if gone:
            base = _stage_base(staging, log, first)
        rows = [
            staging.add_table(index_rows_name(number + copy), snapshot_rows(indexed))
            for copy in range(COPIES)
        ]
        staging.finish()
        if not known():
            staging.discard()
            return None
    with_rejects = commits_with_rejects(root, log, first, indexed[0].tau)
    for copy, reference in enumerate(rows):
        record = LogIndex(
            format_version=LABELS_NAMED if labels else FORMAT_VERSION,
            number=number + copy,
            n=last.n,
            commit=last.checksum,
            first=first,
            end=len(snapshots),
            dropped=dropped,
            snapshots=reference,
            ids=ids,
            base=base,
            with_rejects=with_rejects,
            labels=labels,
        )
        put_record(root / index_name(number + copy), record)
        crash_point("compact.indexed" if copy == COPIES - 1 else "compact.copied")
    return replace(sweep_log_index(root, record, indexed[0].tau), snapshots=len(gone))


def sweep_log_index(root: Place, index: LogIndex, oldest: int) -> Freed:
    """Remove files that an index replaced, and remains of an interrupted compaction.

    Args:
        root: The log's folder.
        index: The newest one; both its copies exist.
        oldest: τ of the oldest snapshot kept.

    Returns:
        The folded commits (those before the index's own, without commits whose rejects stay), and bytes.
    """
    (root / INDEX).sync()  # the writer of the index may have been killed before it was durable
    folded = folded_commits(root, index.n, index.with_rejects)
    freed = sum(remove(paths) for paths in log_files_before(root, oldest, index.n, folded))
    crash_point("compact.dropped")
    base = [] if index.base is None else [index.base]
    named = {reference.path for reference in (*index.ids, *base, *index.labels)}
    number = index.number - COPIES + 1
    freed += remove((root / index_name(number)).outdated(replaced(root / INDEX, number, named)))
    for changed in (
        COMMITS,
        SNAPSHOTS,
        INDEX,
        *(name for name in (REJECTS, LABELS) if (root / name).is_dir()),
    ):
        (root / changed).sync()
    return Freed(commits=len(folded), bytes=freed)


def folded_commits(root: Place, n: int, with_rejects: Collection[int]) -> list[int]:
    """Commits before number ``n`` that an index replaces, without those whose rejects stay."""
    return sorted(number for number in numbers(root) if number < n and number not in set(with_rejects))


def log_files_before(root: Place, oldest: int, n: int, folded: list[int]) -> Iterator[Iterable[Place]]:
    """A log's files of snapshots before τ ``oldest``, records and rejects of folded commits, and labels of commits up to n."""
    snapshots = (root / SNAPSHOTS).iterdir()
    yield (path for path in snapshots if (tau := number_in(path.name)) is not None and tau < oldest)
    yield present(root / COMMITS, [last_step(commit_name(n)) for n in folded])
    if (root / REJECTS).is_dir():
        gone = set(folded)
        yield (path for path in (root / REJECTS).iterdir() if number_in(path.name) in gone)
    if (root / LABELS).is_dir():
        numbered = ((path, number_in(path.name)) for path in (root / LABELS).iterdir())
        yield (path for path, number in numbered if number is not None and number <= n)


def _stage_ids(staging: Staging, log: LogReader, before: list[FileRef]) -> list[FileRef]:
    """Stage the external ids that no index has yet, together with enough older files to keep their number small."""
    end = log.snapshots[-1].num_nodes
    start = _range(before[-1])[1] if before else 0
    if start == end:
        return before
    everything = log.external_ids()
    new = everything[start:end]
    first = absorbed_from([reference.bytes for reference in before], max(1, new.nbytes))
    if first < len(before):
        start = _range(before[first])[0]
    schema = pa.schema([node_schema(log.header.ids).field("id")])
    table = pa.table([everything[start:end]], schema=schema)
    reference = staging.add_table(ids_name(start, end), canonical_batches(table, batch_rows(log.header)))
    return [*before[:first], reference]


def _stage_labels(staging: Staging, log: LogReader, number: int, oldest: int | None) -> list[FileRef]:
    """Stage the labels that no index has yet, together with enough older files to keep their number small.

    Args:
        staging: Files of the new index.
        log: The log.
        number: Of the new index.
        oldest: τ of the first snapshot kept from now on, before which no label stays; None: no snapshot is dropped.
    """
    files, root, ids = log.label_files, log.root, log.header.ids
    n = -1 if log.index is None else log.index.n
    new = next((place for place, file in enumerate(files) if file.first > n), len(files))
    if oldest is not None:
        first = 0
    elif new == len(files):
        first = new
    else:
        sizes = [file.reference.bytes for file in files]
        first = absorbed_from(sizes[:new], max(1, sum(sizes[new:])))
    older, together = [file.reference for file in files[:first]], files[first:]
    if not together:
        return older
    labels = pa.concat_tables([read_labels(root, file.reference, ids) for file in together])
    if oldest is not None:
        labels = visible_from(labels, oldest * log.header.interval_us)
        if not labels.num_rows:
            return older
    name = gathered_labels_name(number, together[0].first, together[-1].last)
    return [*older, staging.add_table(name, encode_labels(labels))]


def _range(reference: FileRef) -> tuple[int, int]:
    match = _IDS.fullmatch(plain(reference.path))
    assert match is not None, f"{reference.path} is no name of a file of ids"
    return int(match[1]), int(match[2])


def _stage_base(staging: Staging, log: LogReader, first: int) -> FileRef:
    events = ((snapshot.tau, log.events(snapshot.tau)) for snapshot in log.snapshots[:first])
    base = fold(log.header, log.base(), events, log.external_ids())
    return staging.add_table(log_base_name(first), canonical_batches(base, batch_rows(log.header)))


def commits_with_rejects(root: Place, log: LogReader, first: int, oldest: int) -> list[int]:
    """Commits whose rejects stay once snapshots before number ``first`` are dropped.

    As long as no snapshot is dropped, all; then published rejects of dropped snapshots go.
    """
    assert log.last is not None
    if first == 0:
        return list(log.with_rejects)
    stay = []
    for n in log.with_rejects:
        if n < log.last.published and n < log.last.n:
            through = read_record(root / commit_name(n), CommitRecord).sealed_through
            if through is None or through < oldest:
                continue
        stay.append(n)
    return stay
