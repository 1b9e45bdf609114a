"""The open tail: accepted events of open snapshots, durable in a bounded number of files.

A commit writes its new open events to one file and leaves older files alone, until eight of about the same size are at the
end: then the new file absorbs their open events. So a day-long snapshot with a commit every 10 s has a few tens of tail files,
and each event is rewritten at most once per factor of 8 in size. A file stays named while one of its events is open.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from schemas.events import IdKind, event_schema
from schemas.store import FileRef
from stream.store.files.data import read_table
from stream.store.places.place import Place

FAN_IN = 8


def tail_schema(ids: IdKind) -> pa.Schema:
    """Schema of ``tail/<n>.arrow``, in order of arrival.

    The canonical event, its origin (``topic``, ``partition``, ``offset``), and ``tau``, the snapshot that it was accepted
    for, which is a later one than its own if it came late.
    """
    return pa.schema(
        [
            *event_schema(ids),
            pa.field("topic", pa.dictionary(pa.int16(), pa.string()), nullable=False),
            pa.field("partition", pa.int32(), nullable=False),
            pa.field("offset", pa.int64(), nullable=False),
            pa.field("tau", pa.int64(), nullable=False),
        ]
    )


@dataclass(frozen=True, slots=True)
class TailFile:
    """One file of the open tail, not copied."""

    reference: FileRef
    table: pa.Table
    min_tau: int
    max_tau: int


def load_tail_file(root: Place, reference: FileRef, ids: IdKind, *, verify: bool = True) -> TailFile:
    """Map one tail file.

    Raises:
        CorruptError: It doesn't match its commit.
    """
    table = read_table(root, reference, schema=tail_schema(ids), verify=verify)
    span = pc.min_max(table["tau"]).as_py()
    return TailFile(reference, table, span["min"], span["max"])


def open_rows(files: list[TailFile], sealed_through: int | None, ids: IdKind) -> pa.Table:
    """The events of tail files that are still open, in order of arrival."""
    tables = [tail_schema(ids).empty_table()]
    for file in files:
        if sealed_through is None or file.min_tau > sealed_through:
            tables.append(file.table)
        elif file.max_tau > sealed_through:
            tables.append(file.table.filter(pa.array(file.table["tau"].to_numpy() > sealed_through)))
    return pa.concat_tables(tables)


def count_open(files: list[TailFile], sealed_through: int | None) -> int:
    """Number of events of tail files that are still open."""
    return sum(
        file.table.num_rows
        if sealed_through is None or file.min_tau > sealed_through
        else int(np.count_nonzero(file.table["tau"].to_numpy() > sealed_through))
        for file in files
    )


def absorbed_from(sizes: list[int], new: int) -> int:
    """The tail files that the next one absorbs.

    Args:
        sizes: Bytes of the files, oldest first.
        new: Bytes of the new events, > 0.

    Returns:
        Index of the first absorbed file; ``len(sizes)`` for none. The rest follows, so that the order of arrival is kept.
    """
    start, total = len(sizes), new
    while True:
        run = start
        while run > 0 and _tier(sizes[run - 1]) <= _tier(total):
            run -= 1
        if start - run < FAN_IN - 1:
            return start
        total += sum(sizes[run:start])
        start = run


def _tier(size: int) -> int:
    return int(np.log2(max(size, 1))) // 3  # factors of 8


def encode_tail(table: pa.Table) -> pa.Table:
    """The table as record batches with one dictionary of topics, as the IPC file format requires."""
    return table.unify_dictionaries().combine_chunks()
