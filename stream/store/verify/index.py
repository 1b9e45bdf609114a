"""The indexes of a log checked: their records, rows, external ids and the base they name."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from schemas.events import Op, id_type, node_schema
from schemas.store import CommitRecord, LogHeader, LogIndex
from stream.store.errors import ConfigMissingError, CorruptError, MissingError, StoreError
from stream.store.files.data import read_table
from stream.store.log.base import base_schema
from stream.store.log.ids import indexed_ids
from stream.store.log.index import COPIES, SnapshotRows, current_indexes, read_index
from stream.store.log.layout import commit_name, index_name
from stream.store.places.place import Place
from stream.store.verify.check import Check
from stream.store.verify.rows import wrong_rows


@dataclass(frozen=True, slots=True)
class Indexed:
    """The newest index of a log that can be read.

    Attributes:
        index: Its record.
        rows: The kept snapshots that it covers.
        commit: The commit that it stands for.
        ids: External ids of all dense ones in use after it; None: they can't be read.
        ids_before: Those in use before the first kept snapshot; None likewise.
    """

    index: LogIndex
    rows: SnapshotRows
    commit: CommitRecord
    ids: pa.Array | None
    ids_before: pa.Array | None


def verify_indexes(root: Place, header: LogHeader, check: Check) -> Indexed | None:
    """Check all indexes of a log with the files they name; the newest that can be read, None: there is none.

    Args:
        root: The log's folder.
        header: The log's.
        check: Where problems go.
    """
    newest = None
    for number in current_indexes(root):
        path = root / index_name(number)
        check.read(path)
        try:
            index, rows, commit = read_index(root, number)
        except StoreError as error:
            replaced = (
                newest is not None and is_replaced(root, number, newest.index.number) and is_gone(error)
            )
            if path.exists() and not replaced:  # else a newer one has taken its place
                check.tell(str(error))
            continue
        check.read(root / index.snapshots.path)
        if newest is None:
            newest = _with_ids(root, header, index, rows, commit, check)
        elif number // COPIES == newest.index.number // COPIES and not rows.table.equals(newest.rows.table):
            check.tell(f"{root / index.snapshots.path} differs from its other copy")
    return newest


def is_replaced(root: Place, number: int, newest: int) -> bool:
    """Whether both copies of a newer index are there, so that nobody reads this one: a sweep was cut short."""
    copies = range(newest // COPIES * COPIES, newest // COPIES * COPIES + COPIES)
    return number < copies[0] and all((root / index_name(copy)).exists() for copy in copies)


def is_gone(error: StoreError) -> bool:
    """Whether it says that something isn't there, rather than that it is damaged."""
    return isinstance(error, ConfigMissingError | MissingError)


def _with_ids(
    root: Place, header: LogHeader, index: LogIndex, rows: SnapshotRows, commit: CommitRecord, check: Check
) -> Indexed:
    path = root / index_name(index.number)
    ids = before = None
    try:
        for reference in index.ids:
            check.read(root / reference.path)
        ids = pa.concat_arrays([pa.array([], id_type(header.ids)), *indexed_ids(root, header, index)])
        end = rows.load(index.end - 1).num_nodes
        if len(ids) != end:
            check.tell(f"{path} names files with {len(ids)} external ids, {end} are in use")
        before = ids[: _ids_before(root, header, rows)]
    except CorruptError as error:
        check.tell(str(error))
    if index.first and index.base is None:
        check.tell(f"{path} names no base, though snapshots before number {index.first} are dropped")
    if index.base is not None:
        check.read(root / index.base.path)
        _base(root, header, index, before, check)
    if not (root / commit_name(index.n)).exists():
        check.tell(f"{root / commit_name(index.n)} is missing, though {path} stands for it")
    return Indexed(index, rows, commit, ids, before)


def _ids_before(root: Place, header: LogHeader, rows: SnapshotRows) -> int:
    """Dense ids in use before the first kept snapshot: all below the first that it brings."""
    first = rows.load(rows.first)
    brought = read_table(root, first.nodes, schema=node_schema(header.ids)).num_rows
    return first.num_nodes - brought


def _base(root: Place, header: LogHeader, index: LogIndex, ids: pa.Array | None, check: Check) -> None:
    assert index.base is not None
    path = root / index.base.path
    try:
        table = read_table(root, index.base, schema=base_schema(header.ids))
        table.validate(full=True)
    except CorruptError as error:
        check.tell(str(error))
        return
    except pa.ArrowException as error:
        check.tell(f"{path} is damaged inside: {' '.join(str(error).split())}")
        return
    problems = len(check.problems)
    check.tell(*(f"{path}: {p}" for p in wrong_rows(table, header)))
    if ids is None or table.num_rows == 0 or len(check.problems) > problems:
        return
    src, dst, op = (table[name].to_numpy() for name in ("src_node", "dst_node", "op"))
    if min(src.min(), dst[op != Op.NODE].min(initial=0)) < 0 or max(src.max(), dst.max()) >= len(ids):
        check.tell(f"{path} names nodes that weren't in use yet")
        return
    right = table["src"].combine_chunks().equals(ids.take(pa.array(src)))
    edges = np.flatnonzero(op != Op.NODE)
    right &= table["dst"].take(pa.array(edges)).combine_chunks().equals(ids.take(pa.array(dst[edges])))
    if not right:
        check.tell(f"{path} has other external ids than its dense ones stand for")
