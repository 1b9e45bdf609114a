"""The reader of the log: sealed snapshots in order, memory-mapped, while another process writes."""

from bisect import bisect_right
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from schemas.events import id_type, log_event_schema, node_schema
from schemas.store import CommitRecord, FileRef, History, LogHeader, Position, SealedSnapshot
from stream.store.errors import ConfigMissingError, CorruptError, RetainedError
from stream.store.files.data import read_record, read_table
from stream.store.files.follow import follow
from stream.store.files.headers import lost_header
from stream.store.log.commits import CommitChain, numbers
from stream.store.log.history import read_history
from stream.store.log.layout import COMMITS, HEADER, log_folder


class LogReader:
    """A view of the log as of the newest commit seen; ``refresh`` moves it on.

    Commits and sealed files never change, so a reader needs no lock and a writer never waits for it.
    """

    def __init__(self, store: str | Path) -> None:
        """Open the log of a store.

        Raises:
            ConfigMissingError: There is no log.
            CorruptError, FormatVersionError: Its header or a commit is damaged, or of another release.
        """
        self._root = log_folder(store)
        try:
            self.header = read_record(self._root / HEADER, LogHeader)
        except ConfigMissingError:
            if any(True for _ in numbers(self._root)):
                raise lost_header(self._root / HEADER) from None
            raise
        self._chain = CommitChain(self._root, self.header)
        self._by_tau: dict[int, SealedSnapshot] = {}
        self._checked: set[str] = set()
        self._ids: list[pa.Array] = []
        self._with_ids = 0
        self.refresh()
        self._chain.require_whole()

    def refresh(self) -> None:
        """Take in the commits made since.

        Raises:
            CorruptError, FormatVersionError: One of them is damaged; those before it are taken in.
        """
        try:
            self._chain.refresh()
        finally:
            for snapshot in self._chain.sealed[len(self._by_tau) :]:
                self._by_tau[snapshot.tau] = snapshot

    @property
    def history(self) -> History | None:
        """The files that the log begins with; None: it begins with Kafka."""
        return read_history(self._root)

    @property
    def last(self) -> CommitRecord | None:
        """The newest commit seen; None in an empty log."""
        return self._chain.last

    @property
    def snapshots(self) -> list[SealedSnapshot]:
        """Sealed snapshots in order of τ; a live view, not to be changed."""
        return self._chain.sealed

    @property
    def positions(self) -> dict[tuple[str, int], Position]:
        """How far each topic partition has been read."""
        return {(p.topic, p.partition): p for p in self.last.positions} if self.last else {}

    def snapshot(self, tau: int) -> SealedSnapshot:
        """The sealed snapshot τ.

        Raises:
            RetainedError: There is none: τ was empty, isn't sealed yet, or is no longer kept.
        """
        if tau not in self._by_tau:
            span = (
                f"it holds {self.snapshots[0].tau} to {self.snapshots[-1].tau}"
                if self.snapshots
                else "it is empty"
            )
            raise RetainedError(f"{self._root} has no sealed snapshot {tau}; {span}, without empty intervals")
        return self._by_tau[tau]

    def events(self, tau: int) -> pa.Table:
        """Events of snapshot τ in order: ``log_event_schema``, memory-mapped.

        The checksum is verified at the first read.

        Raises:
            RetainedError: There is no such snapshot.
            CorruptError: Its file isn't what the commit says; the message names it.
        """
        snapshot = self.snapshot(tau)
        known = snapshot.events.path in self._checked
        table = self._table(snapshot.events, log_event_schema(self.header.ids))
        if not known:
            self._require_dense(table, snapshot)
        if len(table) != snapshot.num_events:
            raise CorruptError(
                f"{self._root / snapshot.events.path} has {len(table)} events, its commit says {snapshot.num_events}"
            )
        return table

    def nodes(self, tau: int) -> pa.Table:
        """Ids first seen in snapshot τ, in dense order: ``node_schema``, memory-mapped.

        Raises:
            RetainedError: There is no such snapshot.
            CorruptError: Its file isn't what the commit says; the message names it.
        """
        snapshot = self.snapshot(tau)
        return self._table(snapshot.nodes, node_schema(self.header.ids))

    def external_ids(self) -> pa.Array:
        """External ids of all dense ones: shape (num_nodes,), int64 or string, in dense order."""
        for snapshot in self.snapshots[self._with_ids :]:
            self._ids.extend(self.nodes(snapshot.tau)["id"].chunks)
            self._with_ids += 1
        if len(self._ids) != 1:
            self._ids = [pa.concat_arrays([pa.array([], id_type(self.header.ids)), *self._ids])]
        return self._ids[0]

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
        """

        def refreshed() -> list[SealedSnapshot]:
            self.refresh()
            return self.snapshots

        first = 0 if after is None else bisect_right(self.snapshots, after, key=lambda snapshot: snapshot.tau)
        return follow(self._root / COMMITS, refreshed, first, timeout_s=timeout_s, stop=stop)

    def _require_dense(self, events: pa.Table, snapshot: SealedSnapshot) -> None:
        """Check that dense ids are those in use: what is built of them is as large as the largest."""
        for name, least in (("src_node", 0), ("dst_node", -1)):
            span = pc.min_max(events[name]).as_py()
            if len(events) and not least <= span["min"] <= span["max"] < snapshot.num_nodes:
                raise CorruptError(
                    f"{self._root / snapshot.events.path} has dense ids {span['min']} to {span['max']} in {name}, its "
                    f"commit says {snapshot.num_nodes} are in use"
                )

    def _table(self, reference: FileRef, schema: pa.Schema) -> pa.Table:
        table = read_table(self._root, reference, schema=schema, verify=reference.path not in self._checked)
        self._checked.add(reference.path)
        return table


def read_nodes(root: Path, header: LogHeader, snapshot: SealedSnapshot) -> pa.Table:
    """The verified ``nodes.arrow`` of one snapshot of the log in folder ``root``.

    Raises:
        CorruptError: It isn't what its commit says.
    """
    return read_table(root, snapshot.nodes, schema=node_schema(header.ids))
