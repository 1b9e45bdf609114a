"""The reader of the log: sealed snapshots in order, without copies, while another process writes."""

from bisect import bisect_right
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from freshet_graph.schemas.events import (
    ARRIVAL_SCHEMA,
    event_schema,
    label_schema,
    log_event_schema,
    node_schema,
)
from freshet_graph.schemas.store import (
    CommitRecord,
    Dropped,
    FileRef,
    HistoryRecord,
    LogHeader,
    LogIndex,
    Position,
    SealedSnapshot,
)
from freshet_graph.stream.arrays.kinds import Int32, Int64
from freshet_graph.stream.store.as_of import AsOf
from freshet_graph.stream.store.errors import ConfigMissingError, CorruptError, MissingError, RetainedError
from freshet_graph.stream.store.files.data import read_table
from freshet_graph.stream.store.files.follow import follow
from freshet_graph.stream.store.files.records import Numbered, lost_header, read_record
from freshet_graph.stream.store.log.commits import CommitChain, numbers, read_history
from freshet_graph.stream.store.log.ids import ExternalIds
from freshet_graph.stream.store.log.index import LogTotals, base_schema
from freshet_graph.stream.store.log.labels import LabelFile, read_labels
from freshet_graph.stream.store.log.layout import COMMITS, HEADER, log_folder
from freshet_graph.stream.store.log.sealed import UNKNOWN, TailFile, load_tail_file, open_rows, tail_schema
from freshet_graph.stream.store.places.place import Place


class LogReader:
    """A view of the log as of the newest commit seen; ``refresh`` advances it.

    Commits and sealed files never change, so a reader needs no lock and a writer never waits for it.

    Attributes:
        root: Folder of the log.
        header: Its header, fixed from the first event on.
    """

    def __init__(self, store: str | Place) -> None:
        """Open the log of a store.

        Raises:
            ConfigMissingError: There is no log.
            CorruptError, FormatVersionError: Its header or a commit is damaged, or from another release.
        """
        self.root = log_folder(store)
        try:
            self.header = read_record(self.root / HEADER, LogHeader)
        except ConfigMissingError:
            if any(True for _ in numbers(self.root)):
                raise lost_header(self.root / HEADER) from None
            raise
        self._chain = CommitChain(self.root, self.header)
        self._checked: set[tuple[int, str]] = set()  # kept snapshots, and their verified files
        self._checked_labels: set[FileRef] = set()
        self._tail: dict[FileRef, TailFile] = {}  # open files, each verified once
        self._dropped = 0  # number of the first snapshot that was kept when it was last looked through
        self._ids = ExternalIds(self.root, self.header, self._chain)
        self.refresh()
        self._chain.require_whole()

    def refresh(self) -> None:
        """Read the new commits.

        Raises:
            CorruptError, FormatVersionError: One of them is damaged; those before it count.
        """
        before = len(self._chain.sealed)
        self._chain.refresh()
        if self.snapshots.first > self._dropped:
            self._dropped = self.snapshots.first
            self._checked = {(tau, path) for tau, path in self._checked if tau in self._chain.number_of}
        if not before and len(self._chain.sealed):  # the header is fixed from its first event on
            self.header = read_record(self.root / HEADER, LogHeader)
            self._ids = ExternalIds(self.root, self.header, self._chain)

    @property
    def history(self) -> HistoryRecord | None:
        """The files that the log begins with; None: it begins with Kafka."""
        return read_history(self.root)

    @property
    def last(self) -> CommitRecord | None:
        """The newest commit seen; None in an empty log."""
        return self._chain.last

    @property
    def snapshots(self) -> Numbered[SealedSnapshot]:
        """Sealed snapshots in order of τ by their fixed number: a live view of the kept ones."""
        return self._chain.sealed

    @property
    def index(self) -> LogIndex | None:
        """The newest index seen; None: there is none."""
        return self._chain.index

    @property
    def with_rejects(self) -> list[int]:
        """Numbers of the commits with rejects that are kept, ascending; read-only."""
        return self._chain.with_rejects

    @property
    def label_files(self) -> list[LabelFile]:
        """The files of the kept labels, in order; read-only."""
        return self._chain.labels

    @property
    def totals(self) -> LogTotals:
        """Events and bytes of all sealed snapshots."""
        return self._chain.totals

    @property
    def dropped(self) -> Dropped:
        """Totals of the snapshots that are no longer kept."""
        return self._chain.index.dropped if self._chain.index else Dropped()

    def number(self, tau: int) -> int:
        """The number of the sealed snapshot τ: 0 for the first that the log ever had.

        Raises:
            RetainedError: τ was empty, isn't sealed yet, or is no longer kept.
        """
        if tau not in self._chain.number_of:
            raise RetainedError(f"{self.root} has no sealed snapshot {tau}; {self._span()}")
        return self._chain.number_of[tau]

    def count(self, as_of: AsOf | None = None) -> int:
        """How many snapshots were sealed, dropped ones included.

        Args:
            as_of: Only those up to this τ, or that end by this time; None: all.

        Raises:
            RetainedError: No snapshot is that old, or it is no longer kept.
        """
        snapshots = self.snapshots
        if as_of is None:
            return len(snapshots)
        tau = as_of.tau
        if tau is None:
            assert as_of.t_us is not None, "a moment is a snapshot or a time"
            tau = as_of.t_us // self.header.interval_us - 1
        end = bisect_right(snapshots, tau, lo=snapshots.first, key=lambda s: s.tau)
        if end == snapshots.first:
            has = "keeps" if snapshots.first else "has"
            raise RetainedError(f"{self.root} {has} no snapshot as old as {as_of}; {self._span()}")
        return end

    def base(self) -> pa.Table | None:
        """The live graph before the first kept snapshot, as events; None: no snapshot was dropped.

        Returns:
            ``stream.store.log.index.base_schema``, not copied.

        Raises:
            CorruptError: Its file doesn't match the index.
            RetainedError: More snapshots were dropped since, and another base has replaced it.
        """
        index = self._chain.index
        if index is None or index.base is None:
            return None
        try:
            return read_table(self.root, index.base, schema=base_schema(self.header.ids))
        except MissingError:
            self.refresh()
            if self._chain.index is index:
                raise
            raise RetainedError(
                f"{self.root} no longer keeps what it did when it was opened; {self._span()}"
            ) from None

    @property
    def positions(self) -> dict[tuple[str, int], Position]:
        """The position reached in each topic partition."""
        return {(p.topic, p.partition): p for p in self.last.positions} if self.last else {}

    def snapshot(self, tau: int) -> SealedSnapshot:
        """The sealed snapshot τ; raises as ``number`` does."""
        return self.snapshots[self.number(tau)]

    def events(self, tau: int) -> pa.Table:
        """Events of snapshot τ in order: ``log_event_schema``, not copied, verified at the first read.

        Raises:
            RetainedError: There is no such snapshot.
            CorruptError: Its file doesn't match the commit; the message names it.
        """
        snapshot = self.snapshot(tau)
        table = self._table(tau, snapshot.events, log_event_schema(self.header.ids))
        if (tau, snapshot.events.path) not in self._checked:
            self._require_dense(table, snapshot)
        if len(table) != snapshot.num_events:
            raise CorruptError(
                f"{self.root / snapshot.events.path} has {len(table)} events, its commit says {snapshot.num_events}"
            )
        self._checked.add((tau, snapshot.events.path))
        return table

    def arrivals(self, tau: int) -> Int32:
        """The commit that each event of snapshot τ came with, int32 (E,), −1 if unknown; raises as ``events`` does."""
        snapshot = self.snapshot(tau)
        if snapshot.arrivals is None:
            return np.full(snapshot.num_events, UNKNOWN, np.int32)
        table = self._table(tau, snapshot.arrivals, ARRIVAL_SCHEMA)
        if len(table) != snapshot.num_events:
            raise CorruptError(
                f"{self.root / snapshot.arrivals.path} has {len(table)} rows, its commit says {snapshot.num_events}"
            )
        self._checked.add((tau, snapshot.arrivals.path))
        return np.asarray(table["commit"].combine_chunks())

    def open_events(self) -> pa.Table:
        """Accepted events whose snapshots are open after the newest commit, in order of arrival: ``tail_schema``.

        Newer commits are read if the writer has replaced the files.

        Raises:
            CorruptError: A file doesn't match its commit.
        """
        while True:
            last = self.last
            if last is None:
                return tail_schema(self.header.ids).empty_table()
            try:
                for reference in last.tail:
                    if reference not in self._tail:
                        self._tail[reference] = load_tail_file(self.root, reference, self.header.ids)
            except MissingError:
                self.refresh()
                if self.last is last:
                    raise
                continue
            self._tail = {reference: self._tail[reference] for reference in last.tail}
            return open_rows([*self._tail.values()], last.sealed_through, self.header.ids)

    def labels(self, after: int = -1) -> pa.Table:
        """The kept labels that came with commits after a number, up to the newest one seen.

        A label is visible to events with a larger t than its ``visible_us``, which never lies in a snapshot that was sealed
        before the label's commit. So all labels with ``visible_us`` before the end of a sealed snapshot are there.

        Args:
            after: Number of a commit; −1: all.

        Returns:
            ``label_schema``, in order of commit, topic, partition, offset and row.

        Raises:
            CorruptError: A file doesn't match its commit.
        """
        schema = label_schema(self.header.ids)

        def read() -> list[pa.Table]:
            return [self._labels(file) for file in self._chain.labels if file.last > after]

        tables = self._chain.undisturbed(read)
        self._checked_labels.intersection_update(file.reference for file in self._chain.labels)
        labels = pa.concat_tables([schema.empty_table(), *(table.select(schema.names) for table in tables)])
        return labels if after < 0 else labels.filter(pc.greater(labels["commit"], after))

    def _labels(self, file: LabelFile) -> pa.Table:
        checked = file.reference in self._checked_labels
        table = read_labels(self.root, file.reference, self.header.ids, verify=not checked)
        self._checked_labels.add(file.reference)
        return table

    def nodes(self, tau: int) -> pa.Table:
        """Ids first seen in snapshot τ, in dense order: ``node_schema``, not copied; raises as ``events`` does."""
        snapshot = self.snapshot(tau)
        table = self._table(tau, snapshot.nodes, node_schema(self.header.ids))
        self._checked.add((tau, snapshot.nodes.path))
        return table

    def external_ids(self) -> pa.ChunkedArray:
        """External ids of all dense ones, (num_nodes,), int64 or string, in order; of few pieces, mapped where possible."""
        return self._ids.all()

    def external_ids_of(self, nodes: Int64) -> pa.Array:
        """External ids of some dense ones, int64 (n,), in their order; only these are copied."""
        return self._ids.of(nodes)

    def follow(
        self,
        after: int | None = None,
        *,
        timeout_s: float | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> Iterator[SealedSnapshot]:
        """Sealed snapshots in order, the existing ones and then new ones, waiting for each.

        Args:
            after: Begin with the first snapshot after this τ; None: with the oldest.
            timeout_s: End after this long without a new snapshot; None: never.
            stop: Called a few times per second while waiting; True ends.

        Raises:
            CorruptError, FormatVersionError: A new commit is damaged.
            RetainedError: The next snapshot is no longer kept; the message says where a reader can start.
        """

        def refreshed() -> Numbered[SealedSnapshot]:
            self.refresh()
            return self.snapshots

        oldest, first = self.snapshots.first, None
        if after is not None:
            first = bisect_right(self.snapshots, after, lo=oldest, key=lambda s: s.tau)
            if first == oldest and oldest:
                self.number(after)
        return follow(self.root / COMMITS, refreshed, first, timeout_s=timeout_s, stop=stop)

    def sealed_events(self, as_of: AsOf | None = None) -> pa.Table:
        """All kept sealed events up to a moment, in order: ``event_schema``. Without it, all.

        If older snapshots were dropped, events that rebuild their graph come first.

        Raises:
            RetainedError: No snapshot is that old, or it is no longer kept.
            CorruptError: A file of the log is damaged.
        """
        schema, base = event_schema(self.header.ids), self.base()
        tables = [schema.empty_table()] + ([] if base is None else [base.select(schema.names)])
        sealed = self.snapshots[: self.count(as_of)]
        return pa.concat_tables(
            tables + [self.events(snapshot.tau).select(schema.names) for snapshot in sealed]
        )

    def _require_dense(self, events: pa.Table, snapshot: SealedSnapshot) -> None:
        """Check that dense ids are in use, because arrays built from them are as large as the largest."""
        for name, least in (("src_node", 0), ("dst_node", -1)):
            span = pc.min_max(events[name]).as_py()
            if len(events) and not least <= span["min"] <= span["max"] < snapshot.num_nodes:
                raise CorruptError(
                    f"{self.root / snapshot.events.path} has dense ids {span['min']} to {span['max']} in {name}, its "
                    f"commit says {snapshot.num_nodes} are in use"
                )

    def _table(self, tau: int, reference: FileRef, schema: pa.Schema) -> pa.Table:
        try:
            verify = (tau, reference.path) not in self._checked
            return read_table(self.root, reference, schema=schema, verify=verify)
        except MissingError:
            self.refresh()
            if tau not in self._chain.number_of:  # dropped since
                raise RetainedError(f"snapshot {tau} of {self.root} is gone; {self._span()}") from None
            raise

    def _span(self) -> str:
        """The kept snapshots, for a sentence."""
        if not self.snapshots:
            return "it is empty"
        first, last = self.snapshots[self.snapshots.first], self.snapshots[-1]
        older = ", older ones are no longer kept" if self.snapshots.first else ""
        return (
            f"it holds {first.tau} to {last.tau}, without empty intervals{older}: "
            f"a reader can start from {first.tau}"
        )
