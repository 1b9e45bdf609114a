"""Check the whole log against itself: every byte that a record names, and the invariants between them.

As far as the records still show it, no offset was taken in twice: sealed events carry no offsets, but commits, rejects and the
open tail do, and a commit's counts say how many it took in. The order within one time (topic partition,
offset) cannot be checked.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from freshet_graph.schemas.events import (
    ARRIVAL_SCHEMA,
    OUT_OF_RANGE_US,
    REJECT_SCHEMA,
    Op,
    log_event_schema,
    node_schema,
)
from freshet_graph.schemas.store import (
    CommitRecord,
    FileRef,
    HistoryRecord,
    Key,
    LogHeader,
    LogIndex,
    SealedSnapshot,
)
from freshet_graph.stream.snapshots.border import HISTORY as HISTORY_KEY
from freshet_graph.stream.snapshots.border import HISTORY_LABELS
from freshet_graph.stream.snapshots.dictionary import new_dictionary
from freshet_graph.stream.store.errors import ConfigMissingError, CorruptError, FormatVersionError, StoreError
from freshet_graph.stream.store.files.data import read_table
from freshet_graph.stream.store.files.records import read_record
from freshet_graph.stream.store.lane.layout import lane_names
from freshet_graph.stream.store.log.commits import CommitChain, numbers, rows_read
from freshet_graph.stream.store.log.labels import file_schema
from freshet_graph.stream.store.log.layout import (
    HEADER,
    HISTORY,
    INDEX,
    arrivals_name,
    commit_name,
    events_name,
    log_folder,
    nodes_name,
)
from freshet_graph.stream.store.log.sealed import UNKNOWN, read_tail
from freshet_graph.stream.store.places.interface import token_of
from freshet_graph.stream.store.places.place import Place
from freshet_graph.stream.store.verify.ahead import files_ahead, records_ahead
from freshet_graph.stream.store.verify.check import Check, Compaction
from freshet_graph.stream.store.verify.index import Indexed, verify_indexes, wrong_labels, wrong_rows

REMEDY = "the log has them twice. Read the topics into a new store"


def positions_of(record: CommitRecord | None) -> dict[Key, int]:
    """The next offset of each topic partition after a commit; empty before the first."""
    return {} if record is None else {(p.topic, p.partition): p.next for p in record.positions}


def taken_again(path: Place, before: CommitRecord, after: CommitRecord) -> Iterator[str]:
    """Problems of a commit that took events in without advancing any topic partition.

    Args:
        path: The later commit's.
        before: Commit n − 1.
        after: Commit n.
    """
    if not after.positions or positions_of(before) != positions_of(after):
        return  # the number of events per message is unknown, so any count may be right
    sealed = sum(snapshot.num_events for snapshot in after.sealed)
    taken = {
        "accepted": sealed + after.tail_events - before.tail_events,
        "refused": sum(after.refused.values()) - sum(before.refused.values()),
        "late": after.late - before.late,
        "duplicates": after.duplicates - before.duplicates,
        "in the history": after.in_history - before.in_history,
        "labels": after.num_labels - before.num_labels,
    }
    summary = ", ".join(f"{what} {count:,}" for what, count in taken.items() if count > 0)
    if summary:
        yield f"{path} took events in ({summary}), though its offsets are those of commit {before.n}: {REMEDY}"
    if taken["accepted"] < 0:
        yield f"{path} has {-taken['accepted']} events fewer than commit {before.n}. Read the topics into a new store"


def taken_before(path: Place, messages: pa.Table, reached: Mapping[Key, int]) -> Iterator[str]:
    """Problems of refused messages, or labels, whose offsets an earlier commit had reached.

    Args:
        path: Their file.
        messages: With ``topic``, ``partition`` and ``offset``.
        reached: ``positions_of`` the nearest kept earlier commit.
    """
    for source in messages.group_by(["topic", "partition"]).aggregate([("offset", "min")]).to_pylist():
        key, first = (source["topic"], source["partition"]), source["offset_min"]
        if first < reached.get(key, first):
            yield (
                f"{path} has offset {first} of {key[0]}[{key[1]}], though an earlier commit had reached offset "
                f"{reached[key]}: {REMEDY}"
            )


class TailOffsets:
    """The offsets of an open tail's files, in order: each commit must continue after its predecessor."""

    def __init__(self) -> None:
        self._reached: dict[Key, int] = {}

    def follow(self, path: Place, tail: pa.Table) -> Iterator[str]:
        """Problems of the next file's offsets after those of earlier files.

        Args:
            path: The file's.
            tail: ``tail_schema``.
        """
        names = pc.cast(tail["topic"], pa.string()).combine_chunks().dictionary_encode()
        topics, codes = names.dictionary.to_pylist(), names.indices.to_numpy().astype(np.int64)
        source = codes << 32 | tail["partition"].to_numpy().astype(np.int64)
        offset = tail["offset"].to_numpy()
        order = np.argsort(source, kind="stable")
        source, offset = source[order], offset[order]
        starts = np.flatnonzero(np.concatenate(([True], source[1:] != source[:-1])))[: len(source)]
        for start, end in zip(starts.tolist(), [*starts[1:].tolist(), len(source)], strict=True):
            key = topics[source[start] >> 32], int(source[start] & 0xFFFFFFFF)
            of_source = offset[start:end]
            back = np.flatnonzero(of_source[1:] < of_source[:-1])
            reached = self._reached.get(key, int(of_source[0]))
            if of_source[0] < reached or len(back):
                wrong_offset = int(of_source[0] if of_source[0] < reached else of_source[back[0] + 1])
                before = reached if of_source[0] < reached else int(of_source[back[0]]) + 1
                yield f"{path} has offset {wrong_offset} of {key[0]}[{key[1]}] after offset {before - 1}: {REMEDY}"
            self._reached[key] = max(reached, int(of_source.max()) + 1)


def verify_log(store: str | Place, doubt: Compaction | None = None) -> Check:
    """Check a store's log: records and their chain, files, order, dense ids, times, counts and totals.

    Reads every file once; may run beside a writer, whose later commits aren't checked.

    Args:
        store: Folder of the store.
        doubt: See ``Check``.

    Returns:
        All problems. Damage in one file doesn't hide damage in others.

    Raises:
        ConfigMissingError: There is no store: neither a log's folder nor a lane's.
        DoubtError: See ``Check.report``.
    """
    root = log_folder(store)
    check = Check.begun(root, doubt)
    check.read(root / HEADER)
    try:
        header = read_record(root / HEADER, LogHeader)
    except (CorruptError, FormatVersionError) as error:
        check.report(str(error))
        return check
    except ConfigMissingError:
        if not root.is_dir() and not lane_names(store):
            raise
        check.report(
            f"{root / HEADER} is missing, and without it the rest of the log can't be read. Restore it from a copy"
        )
        return check
    indexed = verify_indexes(root, header, check)
    begin = 0 if indexed is None else indexed.index.n
    records = _records(root, header, begin, indexed, check)
    rejecting = [] if indexed is None else _rejecting_before(root, indexed.index, check)
    earlier = {after.n: before for before, after in pairwise([*rejecting, *records])}
    for record in [*rejecting, *records]:
        if (before := earlier.get(record.n)) is not None:
            _follows(root, before, record, check)
    _history(root, records, check)
    snapshots = _Snapshots(root, header, indexed, check)
    if indexed is not None:
        through = indexed.commit.sealed_through
        indexed_snapshots = map(indexed.rows.load, range(indexed.index.first, indexed.index.end))
        for sealed in files_ahead(root, indexed_snapshots, lambda sealed: sealed.files):
            snapshots.check(sealed, indexed.index.n, through)
        snapshots.require_ids(indexed.ids)
    for record, newer in files_ahead(root, _steps(records, begin, indexed), _files):
        if newer is not None:
            snapshots.check(newer, record.n, record.sealed_through)
            continue
        if record.rejects is not None:
            _rejects(root, record, earlier.get(record.n), check)
        if record.labels is not None and (indexed is None or record.n > begin):
            _labels(root, header, record, earlier.get(record.n), check)
    for record in rejecting:
        _rejects(root, record, earlier.get(record.n), check)
    if records:
        _tail(root, header, records[-1], check)
    return check


def _steps(
    records: list[CommitRecord], begin: int, indexed: Indexed | None
) -> Iterator[tuple[CommitRecord, SealedSnapshot | None]]:
    """Each commit with each snapshot that it seals, and with None for its rejects and labels.

    Snapshots and labels that an index covers are left out.
    """
    for record in records:
        for sealed in record.sealed if record.n >= begin and (indexed is None or record.n > begin) else ():
            yield record, sealed
        if record.rejects is not None or record.labels is not None:
            yield record, None


def _files(step: tuple[CommitRecord, SealedSnapshot | None]) -> list[FileRef]:
    record, sealed = step
    if sealed is not None:
        return sealed.files
    return [file for file in (record.rejects, record.labels) if file is not None]


def _records(
    root: Place, header: LogHeader, begin: int, indexed: Indexed | None, check: Check
) -> list[CommitRecord]:
    """All readable commits from number ``begin`` on, in order; problems with them and between them are reported."""
    records: list[CommitRecord] = []
    chain = CommitChain(root, header, indexed=False)
    # A listing beside a writer may miss one in between.
    paths = [root / commit_name(n) for n in range(begin, max(numbers(root), default=-1) + 1)]
    for n, read in enumerate(records_ahead(root, paths, CommitRecord), begin):
        path = root / commit_name(n)
        try:
            record = read()
            records.append(record)
            if indexed is not None and n == begin:
                chain = _resumed(root, header, records)
            else:
                chain.add(record)
        except ConfigMissingError:
            continue  # reported by the next one
        except StoreError as error:
            check.report(str(error))
            chain = _resumed(root, header, records)
        check.read(path)
    return records


def _resumed(root: Place, header: LogHeader, records: list[CommitRecord]) -> CommitChain:
    """A chain that continues after the last readable record, so that one damage is reported once."""
    chain = CommitChain(root, header, indexed=False)
    chain.last = records[-1] if records else None
    return chain


def _follows(root: Place, before: CommitRecord, after: CommitRecord, check: Check) -> None:
    """Check that a commit follows from the nearest kept one before it."""
    check.report(*_backwards(root, before, after))
    if before.n + 1 == after.n:
        check.report(*taken_again(root / commit_name(after.n), before, after))


def _backwards(root: Place, before: CommitRecord, after: CommitRecord) -> Iterator[str]:
    """Problems with values that must only grow from commit to commit."""
    path = root / commit_name(after.n)
    reached, now = positions_of(before), positions_of(after)
    for (topic, partition), offset in reached.items():
        if now.get((topic, partition), -1) < offset:
            yield f"{path} goes back from offset {offset} to {now.get((topic, partition))} in {topic}[{partition}]"
    through = after.sealed_through
    if before.sealed_through is not None and (through is None or through < before.sealed_through):
        yield f"{path} opens snapshots again: closed through {through} after {before.sealed_through}"
    shrunk = [reason for reason, count in before.refused.items() if after.refused.get(reason, 0) < count]
    shrunk += [
        name
        for name in ("late", "duplicates", "in_history", "published")
        if getattr(after, name) < getattr(before, name)
    ]
    if shrunk:
        yield f"{path} has smaller totals than the commit before: {', '.join(shrunk)}"


class _Snapshots:
    """Checks sealed snapshots in order, with the id dictionary that results from them."""

    def __init__(self, root: Place, header: LogHeader, indexed: Indexed | None, check: Check) -> None:
        self._root = root
        self._header = header
        self._check = check
        self._dictionary = new_dictionary(header.ids)
        self._ids_known = True
        self._before: int | None = None
        if indexed is not None and indexed.index.first:
            known = indexed.ids_before
            self._ids_known = known is not None
            if known is not None:
                self._dictionary.extend(known)

    def require_ids(self, ids: pa.Array | None) -> None:
        """Check that an index's ids are those of the snapshots it covers."""
        if ids is None or not self._ids_known:
            return
        if not self._dictionary.ids(0).equals(ids):
            self._check.report(f"{self._root / INDEX} has other external ids than the snapshots it covers")

    def check(self, sealed: SealedSnapshot, n: int, through: int | None) -> None:
        """Check a snapshot of commit n, or of an index up to it."""
        where = f"snapshot {sealed.tau} (commit {n})"
        report = self._check.report
        if self._before is not None and sealed.tau <= self._before:
            report(f"{where} was sealed after snapshot {self._before}")
        if through is None or sealed.tau > through:
            report(f"{where} is sealed, but its commit closes only up to {through}")
        self._before = sealed.tau
        names = tuple(file.path for file in sealed.files)
        token = token_of(sealed.events.path)
        named = (events_name, nodes_name, arrivals_name)[: len(names)]
        if names != tuple(name(sealed.tau, token) for name in named):
            report(f"{where} names files of another snapshot: {', '.join(names)}")
        ids = self._header.ids
        events = _table(self._root, sealed.events, log_event_schema(ids), self._check)
        nodes = _table(self._root, sealed.nodes, node_schema(ids), self._check)
        report(*self._wrong_arrivals(sealed, n))
        if events is None or nodes is None:
            self._ids_known = False  # without this snapshot's ids, later dense ids can't be checked
            return
        report(*(f"{self._root / sealed.events.path}: {p}" for p in self._wrong_events(sealed, events)))
        if self._ids_known:
            report(
                *(f"{self._root / sealed.nodes.path}: {p}" for p in self._wrong_ids(sealed, events, nodes))
            )

    def _wrong_arrivals(self, sealed: SealedSnapshot, n: int) -> Iterator[str]:
        if sealed.arrivals is None:
            return
        arrivals = _table(self._root, sealed.arrivals, ARRIVAL_SCHEMA, self._check)
        if arrivals is None:
            return
        path, commit = self._root / sealed.arrivals.path, arrivals["commit"].to_numpy()
        if len(commit) != sealed.num_events:
            yield f"{path} has {len(commit)} rows, its commit says {sealed.num_events} events"
        if len(commit) and not UNKNOWN <= commit.min() <= commit.max() <= n:
            yield f"{path} names commits {commit.min()} to {commit.max()}, but commit {n} sealed the snapshot"

    def _wrong_events(self, sealed: SealedSnapshot, events: pa.Table) -> Iterator[str]:
        t, op = events["t"].to_numpy(), events["op"].to_numpy()
        start = sealed.tau * self._header.interval_us
        if len(t) == 0:
            yield "it has no events"
            return
        yield from wrong_rows(events, self._header)
        if (t[1:] < t[:-1]).any():
            yield f"event {int(np.flatnonzero(t[1:] < t[:-1])[0]) + 1} is earlier than the one before"
        if int(t[-1]) >= start + self._header.interval_us:
            yield f"an event at {int(t.max())} µs lies after the end of snapshot {sealed.tau}"
        counts = {
            "num_events": len(t),
            "num_inserts": int(np.count_nonzero(op == Op.INSERT)),
            "num_deletes": int(np.count_nonzero(op == Op.DELETE)),
            "num_late": int(np.count_nonzero(t < start)),
            "max_t_us": int(t.max()),
        }
        for name, count in counts.items():
            if getattr(sealed, name) != count:
                yield f"{name} is {count}, its commit says {getattr(sealed, name)}"

    def _wrong_ids(self, sealed: SealedSnapshot, events: pa.Table, nodes: pa.Table) -> Iterator[str]:
        first = self._dictionary.size
        src, dst = self._dictionary.encode(events["src"], events["dst"])
        if not (np.array_equal(src, events["src_node"]) and np.array_equal(dst, events["dst_node"])):
            yield "dense ids of the events are not those of first appearance in the log"
        new = pa.chunked_array([self._dictionary.ids(first)])
        dense = np.arange(first, self._dictionary.size)
        if not (np.array_equal(dense, nodes["node"]) and nodes["id"].equals(new)):
            yield f"it doesn't hold the ids first seen in snapshot {sealed.tau} in their order"
        if sealed.num_nodes != self._dictionary.size:
            yield f"{self._dictionary.size} ids are in use after it, its commit says {sealed.num_nodes}"


def _history(root: Place, records: list[CommitRecord], check: Check) -> None:
    path = root / HISTORY
    if not path.exists():
        known = positions_of(records[-1]) if records else {}
        if HISTORY_KEY in known or HISTORY_LABELS in known:
            check.report(f"{path} is missing, though commits have rows of it. Restore it from a copy")
        return
    check.read(path)
    try:
        history = read_record(path, HistoryRecord)
    except StoreError as error:
        check.report(str(error))
        return
    for record in records[-1:]:
        read = rows_read({(p.topic, p.partition): p for p in record.positions})
        if read > history.rows:
            check.report(f"{path} has {history.rows} rows, commit {record.n} has read {read}")
        labels = positions_of(record).get(HISTORY_LABELS, 0)
        if labels > history.label_rows:
            check.report(
                f"{path} has {history.label_rows} rows of labels, commit {record.n} has read {labels}"
            )


def _rejects(root: Place, record: CommitRecord, before: CommitRecord | None, check: Check) -> None:
    assert record.rejects is not None
    table = _table(root, record.rejects, REJECT_SCHEMA, check)
    if table is None:
        return
    path, reached = root / record.rejects.path, positions_of(record)
    for source in table.group_by(["topic", "partition"]).aggregate([("offset", "max")]).to_pylist():
        if source["offset_max"] >= reached.get((source["topic"], source["partition"]), -1):
            check.report(
                f"{path} has offset {source['offset_max']} of {source['topic']}[{source['partition']}], which commit "
                f"{record.n} hasn't reached"
            )
    check.report(*taken_before(path, table, positions_of(before)))


def _labels(
    root: Place, header: LogHeader, record: CommitRecord, before: CommitRecord | None, check: Check
) -> None:
    """Check the labels of a commit: offsets, the time from which they are visible, and their number."""
    assert record.labels is not None
    labels = _table(root, record.labels, file_schema(header.ids), check)
    if labels is None:
        return
    path, reached = root / record.labels.path, positions_of(record)
    for source in labels.group_by(["topic", "partition"]).aggregate([("offset", "max")]).to_pylist():
        if source["offset_max"] >= reached.get((source["topic"], source["partition"]), -1):
            check.report(
                f"{path} has offset {source['offset_max']} of {source['topic']}[{source['partition']}], which commit "
                f"{record.n} hasn't reached"
            )
    check.report(*taken_before(path, labels, positions_of(before)))
    check.report(*(f"{path}: {problem}" for problem in wrong_labels(labels, record.n, record.n)))
    times = [position.max_t_us for position in record.positions]
    times.append(None if record.sealed_through is None else (record.sealed_through + 1) * header.interval_us)
    earliest = max((t_us for t_us in times if t_us is not None), default=None)
    first = labels["visible_us"].to_numpy().min(initial=OUT_OF_RANGE_US)
    if earliest is not None and first < earliest:
        check.report(
            f"{path} has a label that is visible at {first} µs, though commit {record.n} leaves {earliest} µs open only"
        )
    known = 0 if record.n == 0 else before.num_labels if before and before.n + 1 == record.n else None
    if known is not None and len(labels) != record.num_labels - known:
        check.report(f"{path} has {len(labels)} labels, its commit says {record.num_labels - known}")


def _rejecting_before(root: Place, index: LogIndex, check: Check) -> list[CommitRecord]:
    """Commits folded into an index that stay for their rejects."""
    records = []
    for n in index.with_rejects:
        if n >= index.n:
            continue
        check.read(root / commit_name(n))
        try:
            record = read_record(root / commit_name(n), CommitRecord)
        except StoreError as error:
            check.report(str(error))
            continue
        if record.rejects is not None:
            records.append(record)
    return records


def _tail(root: Place, header: LogHeader, last: CommitRecord, check: Check) -> None:
    """Check the open tail of the newest commit; it is gone if a writer has committed since and swept it."""
    through = last.sealed_through
    count, problems, offsets = 0, Check(), TailOffsets()
    for file in last.tail:
        table = _read(root, file, problems, lambda file: read_tail(root, file, header.ids))
        if table is not None:
            problems.report(*offsets.follow(root / file.path, table))
            tau = table["tau"].to_numpy()
            count += len(tau) if through is None else int(np.count_nonzero(tau > through))
    if (root / commit_name(last.n + 1)).exists():
        return
    check.add(problems)
    if not problems.problems and count != last.tail_events:
        path = root / commit_name(last.n)
        check.report(f"{path} says {last.tail_events} events are open, its tail files hold {count}")


def _table(root: Place, reference: FileRef, schema: pa.Schema, check: Check) -> pa.Table | None:
    return _read(root, reference, check, lambda file: read_table(root, file, schema=schema))


def _read(
    root: Place, reference: FileRef, check: Check, read: Callable[[FileRef], pa.Table]
) -> pa.Table | None:
    check.read(root / reference.path)
    try:
        return read(reference)
    except CorruptError as error:
        check.report(str(error))
        return None
