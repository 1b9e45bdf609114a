"""The reader of the log: sealed snapshots in order, memory-mapped, while another process writes."""

from bisect import bisect_right
from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from schemas.events import log_event_schema, node_schema
from schemas.store import (
    CommitRecord,
    Dropped,
    FileRef,
    History,
    LogHeader,
    LogIndex,
    Position,
    SealedSnapshot,
)
from stream.store.errors import ConfigMissingError, CorruptError, MissingError, RetainedError
from stream.store.files.data import read_record, read_table
from stream.store.files.follow import follow
from stream.store.files.headers import lost_header
from stream.store.files.numbered import Numbered
from stream.store.log.base import base_schema
from stream.store.log.commits import CommitChain, numbers
from stream.store.log.history import read_history
from stream.store.log.ids import ExternalIds
from stream.store.log.index import LogTotals
from stream.store.log.layout import COMMITS, HEADER, log_folder
from stream.store.places.place import Place


class LogReader:
    """A view of the log as of the newest commit seen; ``refresh`` moves it on.

    Commits and sealed files never change, so a reader needs no lock and a writer never waits for it.

    Attributes:
        root: Folder of the log.
        header: What never changes in it from its first event on.
    """

    def __init__(self, store: str | Place) -> None:
        """Open the log of a store.

        Raises:
            ConfigMissingError: There is no log.
            CorruptError, FormatVersionError: Its header or a commit is damaged, or of another release.
        """
        self.root = log_folder(store)
        try:
            self.header = read_record(self.root / HEADER, LogHeader)
        except ConfigMissingError:
            if any(True for _ in numbers(self.root)):
                raise lost_header(self.root / HEADER) from None
            raise
        self._chain = CommitChain(self.root, self.header)
        self._checked: set[str] = set()
        self._ids = ExternalIds(self.root, self.header, self._chain)
        self.refresh()
        self._chain.require_whole()

    def refresh(self) -> None:
        """Take in the commits made since.

        Raises:
            CorruptError, FormatVersionError: One of them is damaged; those before it are taken in.
        """
        before = len(self._chain.sealed)
        self._chain.refresh()
        if not before and len(self._chain.sealed):  # from its first event on the header is fixed
            self.header = read_record(self.root / HEADER, LogHeader)
            self._ids = ExternalIds(self.root, self.header, self._chain)

    @property
    def history(self) -> History | None:
        """The files that the log begins with; None: it begins with Kafka."""
        return read_history(self.root)

    @property
    def last(self) -> CommitRecord | None:
        """The newest commit seen; None in an empty log."""
        return self._chain.last

    @property
    def snapshots(self) -> Numbered[SealedSnapshot]:
        """Sealed snapshots in order of τ by their number for life: a live view of those that are kept."""
        return self._chain.sealed

    @property
    def index(self) -> LogIndex | None:
        """The newest index seen; None: there is none."""
        return self._chain.index

    @property
    def with_rejects(self) -> list[int]:
        """Commits that refused something and whose rejects are kept, ascending; not to be changed."""
        return self._chain.with_rejects

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
            RetainedError: There is none: τ was empty, isn't sealed yet, or is no longer kept.
        """
        if tau not in self._chain.number_of:
            raise RetainedError(f"{self.root} has no sealed snapshot {tau}; {self._span()}")
        return self._chain.number_of[tau]

    def as_of(self, *, tau: int | None = None, t_us: int | None = None) -> int | None:
        """The number of the last snapshot sealed of τ or before, or of what happened by a time.

        Args:
            tau: Interval index; or else
            t_us: Microseconds since the epoch: the last snapshot that ends at or before it.

        Returns:
            None: the log has nothing so old, and never dropped anything.

        Raises:
            RetainedError: Only snapshots that are no longer kept are so old.
        """
        wanted = tau
        if wanted is None:
            assert t_us is not None, "give tau or t_us"
            wanted = t_us // self.header.interval_us - 1
        number = bisect_right(self.snapshots, wanted, lo=self.snapshots.first, key=lambda s: s.tau) - 1
        if number >= self.snapshots.first:
            return number
        if self.snapshots.first:
            raise RetainedError(f"{self.root} keeps nothing as old as snapshot {wanted}; {self._span()}")
        return None

    def base(self) -> pa.Table | None:
        """The live graph before the first kept snapshot, as events; None: that one is the first there ever was.

        Returns:
            ``stream.store.log.base.base_schema``, memory-mapped.

        Raises:
            CorruptError: Its file isn't what the index says.
            RetainedError: Another one has taken its place: more snapshots were dropped since.
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
        """How far each topic partition has been read."""
        return {(p.topic, p.partition): p for p in self.last.positions} if self.last else {}

    def snapshot(self, tau: int) -> SealedSnapshot:
        """The sealed snapshot τ.

        Raises:
            RetainedError: There is none: τ was empty, isn't sealed yet, or is no longer kept.
        """
        return self.snapshots[self.number(tau)]

    def events(self, tau: int) -> pa.Table:
        """Events of snapshot τ in order: ``log_event_schema``, memory-mapped.

        The checksum is verified at the first read.

        Raises:
            RetainedError: There is no such snapshot.
            CorruptError: Its file isn't what the commit says; the message names it.
        """
        snapshot = self.snapshot(tau)
        known = snapshot.events.path in self._checked
        table = self._table(tau, snapshot.events, log_event_schema(self.header.ids))
        if not known:
            self._require_dense(table, snapshot)
        if len(table) != snapshot.num_events:
            raise CorruptError(
                f"{self.root / snapshot.events.path} has {len(table)} events, its commit says {snapshot.num_events}"
            )
        return table

    def nodes(self, tau: int) -> pa.Table:
        """Ids first seen in snapshot τ, in dense order: ``node_schema``, memory-mapped.

        Raises:
            RetainedError: There is no such snapshot.
            CorruptError: Its file isn't what the commit says; the message names it.
        """
        snapshot = self.snapshot(tau)
        return self._table(tau, snapshot.nodes, node_schema(self.header.ids))

    def external_ids(self) -> pa.Array:
        """External ids of all dense ones: shape (num_nodes,), int64 or string, in dense order."""
        return self._ids.all()

    def follow(
        self,
        after: int | None = None,
        *,
        timeout_s: float | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> Iterator[SealedSnapshot]:
        """Sealed snapshots in order, those that are there and then new ones, waiting for each.

        Args:
            after: Begin with the first snapshot after this τ; None: with the oldest.
            timeout_s: End when nothing new was sealed for so long; None: never.
            stop: Asked some times a second while waiting; True ends.

        Raises:
            CorruptError, FormatVersionError: A new commit is damaged.
            RetainedError: What comes next is no longer kept; the message says from where a reader can start.
        """

        def refreshed() -> Numbered[SealedSnapshot]:
            self.refresh()
            return self.snapshots

        kept, first = self.snapshots.first, None
        if after is not None:
            first = bisect_right(self.snapshots, after, lo=kept, key=lambda s: s.tau)
            if first == kept and kept:
                self.number(after)
        return follow(self.root / COMMITS, refreshed, first, timeout_s=timeout_s, stop=stop)

    def _require_dense(self, events: pa.Table, snapshot: SealedSnapshot) -> None:
        """Check that dense ids are those in use: what is built of them is as large as the largest."""
        for name, least in (("src_node", 0), ("dst_node", -1)):
            span = pc.min_max(events[name]).as_py()
            if len(events) and not least <= span["min"] <= span["max"] < snapshot.num_nodes:
                raise CorruptError(
                    f"{self.root / snapshot.events.path} has dense ids {span['min']} to {span['max']} in {name}, its "
                    f"commit says {snapshot.num_nodes} are in use"
                )

    def _table(self, tau: int, reference: FileRef, schema: pa.Schema) -> pa.Table:
        try:
            table = read_table(
                self.root, reference, schema=schema, verify=reference.path not in self._checked
            )
        except MissingError:
            self.refresh()
            if tau not in self._chain.number_of:  # dropped since
                raise RetainedError(f"snapshot {tau} of {self.root} is gone; {self._span()}") from None
            raise
        self._checked.add(reference.path)
        return table

    def _span(self) -> str:
        """What is there, for a sentence."""
        if not self.snapshots:
            return "it is empty"
        first, last = self.snapshots[self.snapshots.first], self.snapshots[-1]
        older = ", older ones are no longer kept" if self.snapshots.first else ""
        return (
            f"it holds {first.tau} to {last.tau}, without empty intervals{older}: "
            f"a reader can start from {first.tau}"
        )
