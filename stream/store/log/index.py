"""The index of a log: the content of commits 0 to n in one file, rebuilt if lost; and the base that a log may begin with.

While the commits exist, an index is a shortcut. Once they were folded into it (``freshet_graph.stream.store.compact``), its two
copies are
all that is left of them.

A base is the live graph at some moment as the fewest events that produce it: one insert per live pair (the latest, unchanged)
and one node event per node whose features aren't all zeros. It replaces the snapshots that are no longer kept: a lane added
later begins with it.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from freshet_graph.schemas.events import IdKind, Op, log_event_schema
from freshet_graph.schemas.store import CommitRecord, Dropped, FileRef, LogHeader, LogIndex, SealedSnapshot
from freshet_graph.stream.arrays.kinds import Int64
from freshet_graph.stream.snapshots.node_features import NodeFeatures
from freshet_graph.stream.snapshots.pairs import pair_keys
from freshet_graph.stream.store.errors import CorruptError, StoreError, remedy
from freshet_graph.stream.store.files.data import read_table
from freshet_graph.stream.store.files.records import read_record
from freshet_graph.stream.store.log.layout import (
    INDEX,
    arrivals_name,
    batch_rows,
    commit_name,
    events_name,
    index_name,
    nodes_name,
)
from freshet_graph.stream.store.places.interface import token_of
from freshet_graph.stream.store.places.place import Place

CHUNK_EVENTS = 1 << 21
"""Events folded at a time; bounds the memory beside the live graph."""


def base_schema(ids: IdKind) -> pa.Schema:
    """Columns of a base: those of ``events.arrow``, and ``tau``, the snapshot of each event."""
    return log_event_schema(ids).append(pa.field("tau", pa.int64(), nullable=False))


def fold(
    header: LogHeader, base: pa.Table | None, snapshots: Iterable[tuple[int, pa.Table]], ids: pa.ChunkedArray
) -> pa.Table:
    """The base after more snapshots.

    Args:
        header: The log's.
        base: The base before them; None: they are the log's first.
        snapshots: (τ, events in order), ascending.
        ids: External ids by dense id.

    Returns:
        ``base_schema``: node events first, then inserts in log order. Deleted pairs are left out. The age of a pair doesn't
        matter, because edge lives belong to lanes.
    """
    schema = base_schema(header.ids)
    rows = schema.empty_table() if base is None else base
    features = NodeFeatures(header.node_features, 1)
    features.grow(len(ids))
    features.apply(rows)
    rows = rows.filter(pa.array(rows["op"].to_numpy() == Op.INSERT))
    last = None
    for chunk in _chunks(snapshots, schema):
        features.apply(chunk)
        rows = _latest(pa.concat_tables([rows, chunk]))
        last = int(chunk["tau"][-1].as_py())
    if last is None:
        return schema.empty_table() if base is None else base
    return pa.concat_tables([_node_events(header, features, ids, last), rows])


def groups(base: pa.Table, edge_life: int | None) -> Iterator[tuple[int, pa.Table]]:
    """A base as snapshots for a live graph: one as of its last snapshot, or several by age if edges have a life.

    Args:
        base: ``base_schema``.
        edge_life: Intervals an edge lives; None: until deleted.

    Yields:
        (τ, events), ascending in τ.
    """
    if base.num_rows == 0:
        return
    tau = base["tau"].to_numpy()
    last = int(tau.max())
    events = base.drop_columns(["tau"])
    if edge_life is None:
        yield last, events
        return
    is_node = base["op"].to_numpy() == Op.NODE
    dense = np.where(is_node, max(last - edge_life + 1, int(tau[~is_node].min(initial=last))), tau)
    for value in np.unique(dense[dense > last - edge_life]).tolist():
        yield int(value), events.filter(pa.array(dense == value))


def _chunks(snapshots: Iterable[tuple[int, pa.Table]], schema: pa.Schema) -> Iterator[pa.Table]:
    pieces: list[pa.Table] = []
    num_rows = 0
    for tau, events in snapshots:
        pieces.append(
            events.append_column(schema.field("tau"), pa.array(np.full(events.num_rows, tau, np.int64)))
        )
        num_rows += events.num_rows
        if num_rows >= CHUNK_EVENTS:
            yield pa.concat_tables(pieces)
            pieces, num_rows = [], 0
    if num_rows:
        yield pa.concat_tables(pieces)


def _latest(rows: pa.Table) -> pa.Table:
    """The last edge event of each pair if that is an insert, in order."""
    edges = np.flatnonzero(rows["op"].to_numpy() != Op.NODE)
    src, dst, op = (rows[name].to_numpy()[edges] for name in ("src_node", "dst_node", "op"))
    _, backwards = np.unique(pair_keys(src, dst)[::-1], return_index=True)
    last = len(edges) - 1 - backwards
    live = edges[np.sort(last[op[last] == Op.INSERT])]
    return rows.take(pa.array(live))


def _node_events(header: LogHeader, features: NodeFeatures, ids: pa.ChunkedArray, tau: int) -> pa.Table:
    schema = base_schema(header.ids)
    if header.node_features == 0:
        return schema.empty_table()
    nodes = np.flatnonzero(features.values[: len(ids)].any(axis=1))
    rows, everyone = batch_rows(header), ids.combine_chunks()
    pieces = [
        _described(header, nodes[start : start + rows], features, everyone, tau)
        for start in range(0, len(nodes), rows)
    ]
    return pa.concat_tables([schema.empty_table(), *pieces])


def _described(header: LogHeader, nodes: Int64, features: NodeFeatures, ids: pa.Array, tau: int) -> pa.Table:
    schema, n, width = base_schema(header.ids), len(nodes), header.node_features
    columns = {
        "op": np.full(n, int(Op.NODE), np.int8),
        "src": ids.take(pa.array(nodes)),
        "t": np.full(n, tau * header.interval_us, np.int64),
        "weight": np.ones(n, np.float32),
        "features": pa.ListArray.from_arrays(
            pa.array(np.arange(n + 1, dtype=np.int32) * width), pa.array(features.values[nodes].ravel())
        ),
        "src_node": nodes,
        "dst_node": np.full(n, -1, np.int64),
        "tau": np.full(n, tau, np.int64),
    }
    arrays = [
        pa.array(columns[field.name]) if field.name in columns else pa.nulls(n, field.type)
        for field in schema
    ]
    return pa.table([array.cast(f.type) for array, f in zip(arrays, schema, strict=True)], schema=schema)


T = TypeVar("T")

COPIES: Final = 2
"""Each index is written twice, because after compaction it is the only record of the folded commits."""

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
"""Columns of an index, one row per sealed snapshot; names and places of its files follow from τ."""

_TOKEN: Final = pa.field("token", pa.string(), nullable=False)
"""A further column if files are, or were, in a bucket: their names follow from τ and token."""
_ARRIVALS: Final = (pa.field("arrivals_bytes", pa.int64()), pa.field("arrivals_checksum", pa.string()))
"""Further columns since commits record arrivals; null in a snapshot without."""


def _schema(*, arrivals: bool, tokens: bool) -> pa.Schema:
    return pa.schema([*INDEX_SCHEMA, *(_ARRIVALS if arrivals else ()), *((_TOKEN,) if tokens else ())])


_READ: Final = [
    _schema(arrivals=arrivals, tokens=tokens) for arrivals in (True, False) for tokens in (True, False)
]


@dataclass(slots=True)
class LogTotals:
    """Totals of all sealed snapshots.

    Attributes:
        events: Count, dropped snapshots included.
        inserts: Count, dropped snapshots included.
        deletes: Count, dropped snapshots included.
        bytes: Length of the files of kept snapshots.
        max_t_us: Largest event time of kept snapshots; None: there are none.
    """

    events: int = 0
    inserts: int = 0
    deletes: int = 0
    bytes: int = 0
    max_t_us: int | None = None

    def add(self, snapshot: SealedSnapshot) -> None:
        """Count one more snapshot."""
        self.events += snapshot.num_events
        self.inserts += snapshot.num_inserts
        self.deletes += snapshot.num_deletes
        self.bytes += sum(file.bytes for file in snapshot.files)
        self.max_t_us = max(snapshot.max_t_us, self.max_t_us or snapshot.max_t_us)


class SnapshotRows:
    """The rows of an index: sealed snapshots, made into records on demand."""

    def __init__(self, first: int, table: pa.Table) -> None:
        self.first = first
        self.table = table.combine_chunks()
        self.taus = np.asarray(self.table["tau"])

    def __len__(self) -> int:
        return self.table.num_rows

    def totals(self, dropped: Dropped) -> LogTotals:
        """The totals of these and the dropped snapshots."""

        def total(name: str) -> int:
            return int(pc.sum(self.table[name]).as_py() or 0)

        return LogTotals(
            events=dropped.events + total("num_events"),
            inserts=dropped.inserts + total("num_inserts"),
            deletes=dropped.deletes + total("num_deletes"),
            bytes=sum(total(name) for name in self.table.schema.names if name.endswith("_bytes")),
            max_t_us=int(np.asarray(self.table["max_t_us"]).max()),
        )

    def load(self, number: int) -> SealedSnapshot:
        """The sealed snapshot of a number."""
        row = self.table.slice(number - self.first, 1).to_pylist()[0]
        tau, token = row["tau"], row.get("token", "")

        def file(name: str, path: str) -> FileRef:
            return FileRef(path=path, bytes=row.pop(f"{name}_bytes"), checksum=row.pop(f"{name}_checksum"))

        return SealedSnapshot(
            tau=tau,
            events=file("events", events_name(tau, token)),
            nodes=file("nodes", nodes_name(tau, token)),
            arrivals=(
                file("arrivals", arrivals_name(tau, token)) if row.get("arrivals_bytes") is not None else None
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
        "arrivals_bytes": [None if s.arrivals is None else s.arrivals.bytes for s in snapshots],
        "arrivals_checksum": [None if s.arrivals is None else s.arrivals.checksum for s in snapshots],
        "token": [token_of(s.events.path) for s in snapshots],
    }
    schema = _schema(arrivals=any(s.arrivals for s in snapshots), tokens=any(map(bool, columns["token"])))
    arrays = [
        columns[name] if name in columns else [getattr(s, name) for s in snapshots] for name in schema.names
    ]
    return pa.table(
        [pa.array(array, kind.type) for array, kind in zip(arrays, schema, strict=True)], schema=schema
    )


def index_numbers(root: Place) -> list[int]:
    """Numbers of the indexes of the log or lane in folder ``root``, newest first."""
    stems = (name.removesuffix(".json") for name in (root / INDEX).names() if name.endswith(".json"))
    return sorted((int(stem) for stem in stems if stem.isdigit()), reverse=True)


def current_indexes(root: Place) -> Iterator[int]:
    """As ``index_numbers``; if all were replaced before they were read, then their successors."""
    listed = index_numbers(root)
    while True:
        yield from listed
        before, listed = listed, index_numbers(root)
        if not set(before).isdisjoint(listed) or not listed:
            return


def read_index(root: Place, number: int) -> tuple[LogIndex, SnapshotRows, CommitRecord]:
    """An index with its rows, and its newest commit.

    Args:
        root: Folder of the log.
        number: Its number.

    Raises:
        StoreError: The index, its rows or its commit is missing or damaged, or they don't belong together.
    """
    path = root / index_name(number)
    index = read_record(path, LogIndex)
    commit = read_record(root / commit_name(index.n), CommitRecord)
    table = read_table(root, index.snapshots)
    if not any(table.schema.equals(schema) for schema in _READ):
        raise CorruptError(
            f"{root / index.snapshots.path} has the columns {', '.join(table.schema.names)} of another schema, expected "
            f"{', '.join(INDEX_SCHEMA.names)}{remedy(root / index.snapshots.path)}"
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
    """The newest readable index; None: there is none, so all commits have to be read.

    Args:
        root: Folder of the log.
        after: Only one with a larger number.

    Raises:
        CorruptError: All are damaged, and the commits folded into them no longer exist.
    """
    # Its copy says the same as a damaged one; verify reports it.
    newest, problem = newest_readable(root, after, partial(read_index, root))
    if problem is not None and after < 0 and not (root / commit_name(0)).exists():
        raise CorruptError(
            f"{problem}. The commits folded into it are gone. Restore the index from a copy"
        ) from problem
    return newest


def newest_readable(root: Place, after: int, read: Callable[[int], T]) -> tuple[T | None, StoreError | None]:
    """Read the newest readable index of a log or lane with a number above ``after``.

    Returns:
        The index; without one, the problem of the newest, if there is any.
    """
    listed = index_numbers(root)
    problem: StoreError | None = None
    while listed and listed[0] > after:
        problem = None
        for number in listed:
            if number <= after:
                break
            try:
                return read(number), None
            except StoreError as error:
                problem = problem or error
        before, listed = listed, index_numbers(root)
        if listed == before:  # otherwise newer ones replaced them meanwhile
            break
    return None, problem
