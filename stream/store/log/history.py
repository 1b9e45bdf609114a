"""``log/history.json``: the files that a log begins with, and the moment from which Kafka takes over."""

from collections.abc import Collection, Mapping
from pathlib import Path

import xxhash

from schemas.store import History, HistoryFile, Position
from stream.snapshots.border import HISTORY as HISTORY_KEY
from stream.snapshots.event_time import Key
from stream.store.errors import StoreError
from stream.store.files.records import put_record, read_record
from stream.store.log.layout import HISTORY
from stream.store.places.place import Place

ENDS_BYTES = 1 << 20
"""Bytes of either end of a file that identify it; Parquet's footer, at its end, changes with any content."""


def read_history(root: Place) -> History | None:
    """The history of the log in folder ``root``; None: it begins with Kafka.

    Raises:
        CorruptError, FormatVersionError: The record is damaged, or from another release.
    """
    path = root / HISTORY
    return read_record(path, History) if path.exists() else None


def put_history(root: Place, history: History) -> History:
    """Write the record, or replace one that nothing was read under yet."""
    return put_record(root / HISTORY, history, replace=(root / HISTORY).exists())


def intended(files: Collection[Path]) -> History:
    """The history of a backfill that has not looked at its files yet; no other process may begin the log meanwhile."""
    named = [HistoryFile(name=path.name, rows=0, bytes=0, checksum="") for path in files]
    return History(files=named, until_us=0, rows=0, after=0, disorder_us=0, ends=[], surveyed=False)


def fingerprint(path: Path, rows: int) -> HistoryFile:
    """Identify a file, to recognise it later."""
    digest, size = xxhash.xxh64(), path.stat().st_size
    with path.open("rb") as file:
        digest.update(file.read(ENDS_BYTES))
        file.seek(max(0, size - ENDS_BYTES))
        digest.update(file.read())
    return HistoryFile(name=path.name, rows=rows, bytes=size, checksum=digest.hexdigest())


def rows_read(positions: Mapping[Key, Position]) -> int:
    """Number of rows of its history in a log."""
    position = positions.get(HISTORY_KEY)
    return 0 if position is None else position.next


def require_whole_history(root: Place, history: History | None, positions: Mapping[Key, Position]) -> None:
    """Check that a log's history was read to its end, so that Kafka may take over.

    Raises:
        StoreError: It wasn't.
    """
    if history is not None and not history.surveyed:
        raise StoreError(
            f"a backfill of this log ({names(history.files)}) has failed before it read anything. Run freshet-stream backfill "
            f"again, with the same or corrected files. To begin without a history, remove {root / HISTORY}"
        )
    if history is not None and (read := rows_read(positions)) < history.rows:
        raise StoreError(
            f"the log has {read:,} of {history.rows:,} rows of its history ({names(history.files)}). Run "
            "freshet-stream backfill again. It resumes where it ended"
        )


def names(files: Collection[HistoryFile]) -> str:
    """Names of files, for a sentence."""
    return ", ".join(file.name for file in files)
