"""Parquet, CSV and TSV files to canonical events, columns by name; a wrong row is named, never skipped."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import structlog

from schemas.errors import one_line
from schemas.events import US_PER_S, IdKind, Op, event_schema
from stream.decode.columns import canonical, id_kind
from stream.decode.csv_file import csv_rows
from stream.decode.file_columns import KNOWN, OWN, FileColumns
from stream.decode.reading import FileRows, RefusedError
from stream.decode.rules import EARLIEST_US, LATEST_US, Rules
from stream.decode.time_texts import read_times
from stream.decode.validate import Draft, Faults, check
from stream.service.failure import Failure

_ROWS_A_BATCH = 1 << 18
_NAMED = 5
"""Columns that a warning names; of others it has the number."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class EventFile:
    """The events of a file.

    Attributes:
        path: The file.
        events: Canonical events (``schemas.events.event_schema``) in file order.
        ids: Kind of node ids.
        node_features: Width of node feature vectors; 0: the file has none.
        edge_features: Width of edge feature vectors; 0: the file has none.
        sorted_by_time: Whether ``t`` never decreases in file order.
    """

    path: Path
    events: pa.Table
    ids: IdKind
    node_features: int
    edge_features: int
    sorted_by_time: bool


def read_events(
    path: str | Path,
    *,
    ids: IdKind | None = None,
    bounds: tuple[float, float | None] = (0, None),
    columns: FileColumns = OWN,
) -> EventFile:
    """Read a Parquet, CSV or TSV file with columns src, dst, t (seconds) and optionally op, weight, label, features.

    ``feature_offset`` and ``event_id`` are read, too. Other columns are not, which a warning says. A row without ``dst`` is
    a node event. ``t`` may be RFC 3339, and in Parquet timestamps. In CSV, ``features`` is ``[0.5, 1.0]`` in quotes.

    Args:
        path: Parquet is recognised by its first bytes, everything else is CSV or TSV with a header.
        ids: Expected kind of node ids; None: the file's.
        columns: Names of its columns.
        bounds: Allowed event times [min, max], seconds; max None: the year 9999.

    Raises:
        Failure: The file cannot be read, a column is missing or wrong, or a row breaks a rule; the sentence names file,
            column and row, counted from 1 without the header.
    """
    path = Path(path)
    with readable(path):
        batches, schema, header = open_rows(path, ids, columns=columns)
        kind = ids or id_kind(schema)
        drafts = _drafts(batches, kind, columns)
        events, widths = _checked(path, drafts, kind, bounds, columns)
    t = events["t"].to_numpy()
    warn_of_columns(path, header, schema, columns, int(t.max()) if len(t) else 0)
    return EventFile(path, events, kind, *widths, sorted_by_time=bool(np.all(t[1:] >= t[:-1])))


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn the errors of reading a file into a Failure that names it."""
    try:
        yield
    except RefusedError as error:
        raise Failure(f"{path}: {error}") from error
    except pa.ArrowException as error:
        raise Failure(f"{path} cannot be read: {one_line(error)}") from error
    except OSError as error:
        raise Failure(f"{path} cannot be read: {error.strerror or one_line(error)}") from error


def open_rows(
    path: Path,
    ids: IdKind | None,
    *,
    start: int = 0,
    only: Collection[str] | None = None,
    columns: FileColumns = OWN,
) -> tuple[Iterator[FileRows], pa.Schema, list[str]]:
    """Open a Parquet or CSV file; at most a batch of it is in memory at a time.

    Args:
        path: The file.
        ids: Kind of node ids, for CSV; None: the file's.
        start: Rows to skip at the beginning; whole row groups of Parquet are skipped unread.
        only: Columns to read from Parquet; None: all columns of events.
        columns: Names of its columns.

    Returns:
        Rows with the columns of events under their names, the schema of all of these, and the names of the file's columns.

    Raises:
        OSError, pyarrow.ArrowException: It cannot be read.
        RefusedError: A column is missing.
        Failure: A CSV file has no numbers where they belong.
    """
    with path.open("rb") as file:
        is_parquet = file.read(4) == b"PAR1"
    if not is_parquet:
        return csv_rows(path, ids, start=start, columns=columns)
    parquet = pq.ParquetFile(path, memory_map=True)
    header = parquet.schema_arrow
    found = columns.found(header.names)
    wanted = [column for column, name in found.items() if only is None or name in only]
    group, metadata = 0, parquet.metadata
    while group < metadata.num_row_groups and start >= metadata.row_group(group).num_rows:
        start -= metadata.row_group(group).num_rows
        group += 1
    groups = list(range(group, metadata.num_row_groups))
    batches = parquet.iter_batches(_ROWS_A_BATCH, columns=wanted, row_groups=groups)
    renamed = (batch.rename_columns([found[column] for column in batch.schema.names]) for batch in batches)
    schema = pa.schema([header.field(column).with_name(name) for column, name in found.items()])
    return _without(renamed, start, columns), schema, header.names


def warn_of_columns(
    path: Path, header: Sequence[str], schema: pa.Schema, columns: FileColumns, latest_us: int
) -> None:
    """Say which columns of a file are not read, and that its times are too coarse, if they are.

    Args:
        path: The file.
        header: Names of all its columns, from ``open_rows``.
        schema: Of those that are read, from ``open_rows``.
        columns: Names of its columns.
        latest_us: Its latest time, microseconds.
    """
    read = columns.found(header)
    unread = [name for name in header if name not in read]
    if unread:
        more = f" and {len(unread) - _NAMED} more" if len(unread) > _NAMED else ""
        what, verb = ("column", "is") if len(unread) == 1 else ("columns", "are")
        _log.warning(
            f"{path}: {what} {', '.join(unread[:_NAMED])}{more} {verb} not read. Events have {', '.join(KNOWN)}. All features "
            "of an event are one column of lists, such as [0.5, 1.0]. --columns gives columns with other names"
        )
    kind = schema.field("t").type
    if pa.types.is_float16(kind) or pa.types.is_float32(kind):
        narrow = np.dtype(kind.to_pandas_dtype())
        apart_s = float(np.spacing(narrow.type(latest_us / US_PER_S)))
        if apart_s > 1:
            _log.warning(
                f"{path}: column {columns.shown('t')} is {narrow}, whose values lie {apart_s:g} s apart at the latest time. "
                f"Times are off by up to {apart_s / 2:g} s. Write the column as float64 or int64"
            )


def _without(batches: Iterator[pa.RecordBatch], start: int, columns: FileColumns) -> Iterator[FileRows]:
    for batch in batches:
        if start < batch.num_rows:
            yield _with_times(batch.slice(start), columns)
        start = max(0, start - batch.num_rows)


def _with_times(batch: pa.RecordBatch, columns: FileColumns) -> FileRows:
    """Rows of Parquet with textual times read."""
    faults = Faults.none(batch.num_rows)
    at = batch.schema.get_field_index("t")
    if not (pa.types.is_string(batch.schema.types[at]) or pa.types.is_large_string(batch.schema.types[at])):
        return FileRows(batch, faults)
    texts = batch.column(at)
    t = read_times(columns.shown("t"), texts, faults)
    return FileRows(batch.set_column(at, "t", t), faults, {"t": pc.if_else(t.is_null(), texts, None)})


def _drafts(read: Iterator[FileRows], ids: IdKind, columns: FileColumns) -> Iterator[Draft]:
    for rows in read:
        rows.batch.validate(full=True)
        yield canonical(rows.batch, ids, "s", faults=rows.faults, shown=columns.shown)


def _checked(
    path: Path,
    drafts: Iterator[Draft],
    ids: IdKind,
    bounds: tuple[float, float | None],
    columns: FileColumns,
) -> tuple[pa.Table, tuple[int, int]]:
    low, high = bounds
    min_us = max(round(low * US_PER_S), EARLIEST_US)
    max_us = LATEST_US if high is None else min(round(high * US_PER_S), LATEST_US)
    accepted: list[pa.RecordBatch] = []
    rows = node_features = edge_features = 0
    for draft in drafts:
        node_features = node_features or _width(draft, node=True)
        edge_features = edge_features or _width(draft, node=False)
        rules = Rules(ids, node_features, edge_features, min_us, max_us, offline=True, in_seconds=True)
        check(draft, rules, columns.shown)
        for row in draft.faults.refused_rows()[:1]:
            raise Failure(
                f"{path}, row {rows + row + 1}: {draft.faults.of(row)[1]} "
                "(rows count from 1, without the header)"
            )
        accepted.append(draft.events())
        rows += draft.batch.num_rows
    return pa.Table.from_batches(accepted, event_schema(ids)), (node_features, edge_features)


def _width(draft: Draft, *, node: bool) -> int:
    """Width of the first full feature vector among node events, or among edge events; 0: none."""
    lengths = draft.batch["features"].value_lengths()
    if lengths.null_count == len(lengths):
        return 0
    is_node = draft.batch["op"].to_numpy() == Op.NODE
    whole = draft.batch["feature_offset"].is_null().to_numpy(zero_copy_only=False)
    values = lengths.fill_null(0).to_numpy()
    widths = values[(is_node == node) & whole & (values > 0)]
    return int(widths[0]) if len(widths) else 0
