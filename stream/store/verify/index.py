"""Check the indexes of a log: their records, rows, external ids and bases.

Rows of sealed snapshots are checked for values that no decoder lets through, because readers do not check them.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from freshet_graph.schemas.events import Op, id_type, node_schema
from freshet_graph.schemas.store import CommitRecord, LogHeader, LogIndex
from freshet_graph.stream.store.errors import ConfigMissingError, CorruptError, MissingError, StoreError
from freshet_graph.stream.store.files.data import read_table
from freshet_graph.stream.store.log.ids import indexed_ids
from freshet_graph.stream.store.log.index import (
    COPIES,
    SnapshotRows,
    base_schema,
    current_indexes,
    read_index,
)
from freshet_graph.stream.store.log.labels import gathered, read_labels
from freshet_graph.stream.store.log.layout import commit_name, index_name
from freshet_graph.stream.store.places.place import Place
from freshet_graph.stream.store.verify.check import Check


def wrong_rows(events: pa.Table, header: LogHeader) -> Iterator[str]:
    """Problems of single rows: kinds, ends, weights, widths of features.

    Args:
        events: ``log_event_schema``, in order.
        header: The log's.

    Yields:
        One sentence per problem, with its first row.
    """
    op = events["op"].to_numpy()
    without_dst = events["dst"].is_null().to_numpy()
    given = events["features"].is_valid().to_numpy()
    length = events["features"].combine_chunks().value_lengths().fill_null(0).to_numpy()
    whole = events["feature_offset"].is_null().to_numpy()
    start = events["feature_offset"].fill_null(0).to_numpy().astype(np.int64)
    node = op == Op.NODE
    wrong: dict[str, NDArray[np.bool_]] = {
        "an unknown op": ~np.isin(op, [int(kind) for kind in Op]),
        "a dst though it is a node event, or none though it is an edge's": node != without_dst,
        "a weight that is not finite": ~np.isfinite(events["weight"].to_numpy()),
    }
    if header.node_features:
        fits = np.where(
            whole, length == header.node_features, (start >= 0) & (start + length <= header.node_features)
        )
        wrong[f"features that don't fit the width {header.node_features}"] = node & given & ~fits
    if header.edge_features:
        wrong[f"features of another width than {header.edge_features}"] = (
            ~node & given & (length != header.edge_features)
        )
    for what, rows in wrong.items():
        if rows.any():
            yield f"row {int(np.flatnonzero(rows)[0])} has {what}"
    values = pc.list_flatten(events["features"])
    if values.null_count or not pc.all(pc.is_finite(values), min_count=0).as_py():
        yield "some feature values are null or not finite"


def wrong_labels(labels: pa.Table, first: int, last: int) -> Iterator[str]:
    """Problems of single labels.

    Args:
        labels: Columns of a file of labels, in order.
        first: The commits that they came with are this one or later.
        last: And this one or earlier.

    Yields:
        One sentence per problem, with its first row.
    """
    commit = labels["commit"].to_numpy()
    wrong: dict[str, NDArray[np.bool_]] = {
        "an event and a node, or neither": (
            labels["event_id"].is_null().to_numpy() == labels["node"].is_null().to_numpy()
        ),
        "a time from which it is visible that lies before its own": (
            labels["visible_us"].to_numpy() < labels["t"].to_numpy()
        ),
        f"a commit that is not one of {first} to {last}": (commit < first) | (commit > last),
        "an earlier commit than the row before": np.diff(commit, prepend=commit[:1]) < 0,
    }
    for what, rows in wrong.items():
        if rows.any():
            yield f"row {int(np.flatnonzero(rows)[0])} has {what}"


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Indexed:
    """The newest readable index of a log.

    Attributes:
        index: Its record.
        rows: The kept snapshots that it covers.
        commit: The newest commit folded into it.
        ids: External ids of all dense ones in use after it; None: they can't be read.
        ids_before: Those in use before the first kept snapshot; None: they can't be read.
    """

    index: LogIndex
    rows: SnapshotRows
    commit: CommitRecord
    ids: pa.Array | None
    ids_before: pa.Array | None


def verify_indexes(root: Place, header: LogHeader, check: Check) -> Indexed | None:
    """Check all indexes of the log in folder ``root`` with the files they name; returns the newest readable one, if any."""
    newest = None
    for number, (index, rows, commit) in readable_indexes(root, check, partial(read_index, root)):
        check.read(root / index.snapshots.path)
        if newest is None:
            newest = _with_ids(root, header, index, rows, commit, check)
        elif number // COPIES == newest.index.number // COPIES and not rows.table.equals(newest.rows.table):
            check.report(f"{root / index.snapshots.path} differs from its other copy")
    return newest


def readable_indexes(root: Place, check: Check, read: Callable[[int], T]) -> Iterator[tuple[int, T]]:
    """Read all indexes of a log or lane by number, newest first, and report those that can't be read."""
    newest = -1
    for number in current_indexes(root):
        path = root / index_name(number)
        check.read(path)
        try:
            index = read(number)
        except StoreError as error:
            gone = isinstance(error, ConfigMissingError | MissingError)
            if path.exists() and not (
                gone and _is_replaced(root, number, newest)
            ):  # else a newer one replaced it
                check.report(str(error))
            continue
        newest = max(newest, number)
        yield number, index


def _is_replaced(root: Place, number: int, newest: int) -> bool:
    """Whether both copies of a newer index exist, so that this one is unused: a sweep was interrupted."""
    copies = range(newest // COPIES * COPIES, newest // COPIES * COPIES + COPIES)
    return number < copies[0] and all((root / index_name(copy)).exists() for copy in copies)


def _with_ids(
    root: Place, header: LogHeader, index: LogIndex, rows: SnapshotRows, commit: CommitRecord, check: Check
) -> Indexed:
    path = root / index_name(index.number)
    ids = before = None
    try:
        for reference in index.ids:
            check.read(root / reference.path)
        pieces = (piece for file in index.ids for piece in indexed_ids(root, header, file))
        ids = pa.concat_arrays([pa.array([], id_type(header.ids)), *pieces])
        end = rows.load(index.end - 1).num_nodes
        if len(ids) != end:
            check.report(f"{path} names files with {len(ids)} external ids, {end} are in use")
        before = ids[: _ids_before(root, header, rows)]
    except CorruptError as error:
        check.report(str(error))
    if index.first and index.base is None:
        check.report(f"{path} names no base, though snapshots before number {index.first} are dropped")
    _labels(root, header, index, rows, commit, check)
    if index.base is not None:
        check.read(root / index.base.path)
        _base(root, header, index, before, check)
    if not (root / commit_name(index.n)).exists():
        check.report(f"{root / commit_name(index.n)} is missing, though {path} names it")
    return Indexed(index, rows, commit, ids, before)


def _labels(
    root: Place, header: LogHeader, index: LogIndex, rows: SnapshotRows, commit: CommitRecord, check: Check
) -> None:
    count, start_us = 0, rows.load(index.first).tau * header.interval_us
    for file in gathered(index):
        path = root / file.reference.path
        check.read(path)
        try:
            labels = read_labels(root, file.reference, header.ids)
        except CorruptError as error:
            check.report(str(error))
            return
        count += len(labels)
        check.report(*(f"{path}: {problem}" for problem in wrong_labels(labels, file.first, file.last)))
        if index.first and (labels["visible_us"].to_numpy() < start_us).any():
            check.report(f"{path} has labels that were visible before the first kept snapshot")
    if not index.first and count != commit.num_labels:
        path = root / index_name(index.number)
        check.report(
            f"{path} names files with {count} labels, commit {index.n} says there are {commit.num_labels}"
        )


def _ids_before(root: Place, header: LogHeader, rows: SnapshotRows) -> int:
    """Number of dense ids in use before the first kept snapshot: all below its first new one."""
    first = rows.load(rows.first)
    brought = read_table(root, first.nodes, schema=node_schema(header.ids)).num_rows
    return first.num_nodes - brought


def _base(root: Place, header: LogHeader, index: LogIndex, ids: pa.Array | None, check: Check) -> None:
    assert index.base is not None
    path = root / index.base.path
    try:
        table = read_table(root, index.base, schema=base_schema(header.ids))
    except CorruptError as error:
        check.report(str(error))
        return
    problems = len(check.problems)
    check.report(*(f"{path}: {p}" for p in wrong_rows(table, header)))
    if ids is None or table.num_rows == 0 or len(check.problems) > problems:
        return
    src, dst, op = (table[name].to_numpy() for name in ("src_node", "dst_node", "op"))
    if min(src.min(), dst[op != Op.NODE].min(initial=0)) < 0 or max(src.max(), dst.max()) >= len(ids):
        check.report(f"{path} names nodes that weren't in use yet")
        return
    right = table["src"].combine_chunks().equals(ids.take(pa.array(src)))
    edges = np.flatnonzero(op != Op.NODE)
    right &= table["dst"].take(pa.array(edges)).combine_chunks().equals(ids.take(pa.array(dst[edges])))
    if not right:
        check.report(f"{path} has other external ids than those of its dense ones")
