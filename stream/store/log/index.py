"""The index of a log: what commits 0 to n say together, read in one look, and made anew when it is lost.

While the commits are there an index is a shortcut. Once old commits were folded into it (``stream.store.compact``), its two
copies hold what they said.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from schemas.store import CommitRecord, Dropped, FileRef, LogIndex, SealedSnapshot
from stream.store.errors import CorruptError, StoreError
from stream.store.files.data import read_table
from stream.store.files.records import read_record
from stream.store.files.sweep import names_in
from stream.store.log.layout import INDEX, commit_name, events_name, index_name, nodes_name
from stream.store.places.names import token_of
from stream.store.places.place import Place

COPIES: Final = 2
"""Each index is written twice, for once commits were folded into it nothing else says what they said."""

INDEX_SCHEMA: Final = pa.schema(
    [
        pa.field("tau", pa.int64(), nullable=False),
        pa.field("events_bytes", pa.int64(), nullable=False),
        pa.field("events_checksum", pa.string(), nullable=False),
        pa.field("nodes_bytes", pa.int64(), nullable=False),
        pa.field("nodes_checksum", pa.string(), nullable=False),
        *(
            pa.field(name, pa.int64(), nullable=False)
            for name in ("num_events", "num_inserts", "num_deletes", "num_late", "num_nodes", "max_t_us")
        ),
    ]
)
"""Columns of the rows of an index, a sealed snapshot each; names and places of its files follow from τ."""

NAMED_SCHEMA: Final = INDEX_SCHEMA.append(pa.field("token", pa.string(), nullable=False))
"""The same of a log whose files have, or had, their place in a bucket: names follow from τ and token."""


@dataclass(slots=True)
class LogTotals:
    """What all sealed snapshots have together, dropped ones included where it says so.

    Attributes:
        events: Of all that there ever were.
        inserts: Likewise.
        deletes: Likewise.
        bytes: Length of the files of the kept ones.
        max_t_us: Largest event time of the kept ones; None: there are none.
    """

    events: int = 0
    inserts: int = 0
    deletes: int = 0
    bytes: int = 0
    max_t_us: int | None = None

    def add(self, snapshot: SealedSnapshot) -> None:
        """Count one more."""
        self.events += snapshot.num_events
        self.inserts += snapshot.num_inserts
        self.deletes += snapshot.num_deletes
        self.bytes += snapshot.events.bytes + snapshot.nodes.bytes
        self.max_t_us = max(snapshot.max_t_us, self.max_t_us or snapshot.max_t_us)


class SnapshotRows:
    """The rows of an index: sealed snapshots, made into records one by one as they are asked for."""

    def __init__(self, first: int, table: pa.Table) -> None:
        self.first = first
        self.table = table.combine_chunks()
        self.taus = np.asarray(self.table["tau"])

    def __len__(self) -> int:
        return self.table.num_rows

    def totals(self, dropped: Dropped) -> LogTotals:
        """Their totals, with those of the dropped ones."""

        def total(name: str) -> int:
            return int(np.asarray(self.table[name]).sum())

        return LogTotals(
            events=dropped.events + total("num_events"),
            inserts=dropped.inserts + total("num_inserts"),
            deletes=dropped.deletes + total("num_deletes"),
            bytes=total("events_bytes") + total("nodes_bytes"),
            max_t_us=int(np.asarray(self.table["max_t_us"]).max()),
        )

    def load(self, number: int) -> SealedSnapshot:
        """The sealed snapshot of a number."""
        row = self.table.slice(number - self.first, 1).to_pylist()[0]
        tau, token = row["tau"], row.get("token", "")
        return SealedSnapshot(
            tau=tau,
            events=FileRef(
                path=events_name(tau, token),
                bytes=row.pop("events_bytes"),
                checksum=row.pop("events_checksum"),
            ),
            nodes=FileRef(
                path=nodes_name(tau, token), bytes=row.pop("nodes_bytes"), checksum=row.pop("nodes_checksum")
            ),
            **{name: row[name] for name in INDEX_SCHEMA.names if name in row and name != "tau"},
        )


def snapshot_rows(snapshots: list[SealedSnapshot]) -> pa.Table:
    """Sealed snapshots as rows of an index."""
    columns: dict[str, list[Any]] = {
        "events_bytes": [s.events.bytes for s in snapshots],
        "events_checksum": [s.events.checksum for s in snapshots],
        "nodes_bytes": [s.nodes.bytes for s in snapshots],
        "nodes_checksum": [s.nodes.checksum for s in snapshots],
        "token": [token_of(s.events.path) for s in snapshots],
    }
    schema = NAMED_SCHEMA if any(map(bool, columns["token"])) else INDEX_SCHEMA
    arrays = [
        columns[name] if name in columns else [getattr(s, name) for s in snapshots] for name in schema.names
    ]
    return pa.table(
        [pa.array(array, kind.type) for array, kind in zip(arrays, schema, strict=True)], schema=schema
    )


def index_numbers(root: Place) -> list[int]:
    """Numbers of the indexes that lie in a log or lane, newest first; ``root`` is its folder."""
    stems = (name.removesuffix(".json") for name in names_in(root / INDEX) if name.endswith(".json"))
    return sorted((int(stem) for stem in stems if stem.isdigit()), reverse=True)


def current_indexes(root: Place) -> Iterator[int]:
    """As ``index_numbers``; where all of them were replaced before they were looked at, those that came instead."""
    listed = index_numbers(root)
    while True:
        yield from listed
        before, listed = listed, index_numbers(root)
        if not set(before).isdisjoint(listed) or not listed:
            return


def read_index(root: Place, number: int) -> tuple[LogIndex, SnapshotRows, CommitRecord]:
    """An index with its rows, and the commit that it stands for.

    Args:
        root: Folder of the log.
        number: Its number.

    Raises:
        StoreError: It, its rows or its commit isn't there or is damaged; or they don't belong together.
    """
    path = root / index_name(number)
    index = read_record(path, LogIndex)
    commit = read_record(root / commit_name(index.n), CommitRecord)
    table = read_table(root, index.snapshots)
    if not (table.schema.equals(INDEX_SCHEMA) or table.schema.equals(NAMED_SCHEMA)):
        raise CorruptError(
            f"{root / index.snapshots.path} has the columns {', '.join(table.schema.names)} of another schema, expected "
            f"{', '.join(INDEX_SCHEMA.names)}. freshet-stream verify lists all damage. Restore the file from a copy"
        )
    rows = SnapshotRows(index.first, table)
    if (index.number, index.commit) != (number, commit.checksum):
        raise CorruptError(f"{path} is the index of another log or commit than {root / commit_name(index.n)}")
    if len(rows) != index.end - index.first or not len(rows):
        raise CorruptError(
            f"{path} covers snapshots {index.first} to {index.end - 1}, {root / index.snapshots.path} has {len(rows)}"
        )
    return index, rows, commit


def newest_index(root: Place, after: int = -1) -> tuple[LogIndex, SnapshotRows, CommitRecord] | None:
    """The newest index that can be read; None: there is none, and the commits have to be read from the first on.

    Args:
        root: Folder of the log.
        after: Only one with a larger number.

    Raises:
        CorruptError: All are damaged, and the commits that they stand for are no longer there.
    """
    listed = index_numbers(root)
    problem: StoreError | None = None
    while listed and listed[0] > after:
        problem = None
        for number in listed:
            if number <= after:
                break
            try:
                return read_index(root, number)
            except StoreError as error:  # the other one says the same; verify reports this one
                problem = problem or error
        before, listed = listed, index_numbers(root)
        if listed == before:  # else they were replaced by newer ones meanwhile
            break
    if problem is not None and after < 0 and not (root / commit_name(0)).exists():
        raise CorruptError(
            f"{problem}; the commits it stands for were folded into it, so restore it from a copy"
        ) from problem
    return None
