"""Files of events: Parquet, ORC, Feather, lines of JSON, CSV and other text; several of them, globs and folders.

Columns are found by name, and a wrong row is named, never skipped.
"""

import glob
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.orc
import pyarrow.parquet as pq
import structlog

from freshet_graph.schemas.errors import one_line
from freshet_graph.schemas.events import EARLIEST_US, LATEST_US, US_PER_S, IdKind, Op, Reason, event_schema
from freshet_graph.schemas.file_options import AS_EVENTS, EVENT_COLUMNS, FileOptions
from freshet_graph.stream.arrays.kinds import Int64
from freshet_graph.stream.decode.columns import id_kind, read_times
from freshet_graph.stream.decode.delimited import delimited_rows
from freshet_graph.stream.decode.file_columns import ROW_NUMBER, FileColumns, OpenedFile
from freshet_graph.stream.decode.reading import FileRows, RefusedError
from freshet_graph.stream.decode.times import SCALE_DIGITS, TimeUnit
from freshet_graph.stream.decode.validate import Draft, Faults, Rules, check
from freshet_graph.stream.service.failure import Failure

_ROWS_A_BATCH = 1 << 18
_NAMED = 5
"""Columns that a warning names; of others it has the number."""

_DENSE, _HEAD_ROWS = 4, 10_000
"""Ids that are sparser than one of so many numbers per row are compared by sorting, first those of so many rows."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class EventFile:
    """The events of a file.

    Attributes:
        path: The file.
        events: Canonical events (``freshet_graph.schemas.events.event_schema``) in file order.
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


def listed(sources: str | Path | Sequence[str | Path]) -> list[Path]:
    """The files of paths, globs and folders, in order; those of a glob or a folder by name.

    A folder is one as Spark writes them: files whose names begin with ``_`` or a dot are left out.

    Raises:
        Failure: A glob matches nothing, or a folder has no files.
    """
    files: list[Path] = []
    for source in [sources] if isinstance(sources, str | Path) else sources:
        path = Path(source)
        if path.is_dir():
            inside = [
                file
                for file in sorted(path.rglob("*"))
                if file.is_file() and not any(part[0] in "_." for part in file.relative_to(path).parts)
            ]
            if not inside:
                raise Failure(f"{source} is a folder without files of events")
            files += inside
        elif not path.exists() and glob.has_magic(str(source)):
            matched = sorted(glob.glob(str(source), recursive=True))  # noqa: PTH207  absolute ones, too
            if not matched:
                raise Failure(f"no file matches {source}")
            files += listed(matched)
        else:
            files.append(path)
    return files


def read_events(
    source: str | Path | Sequence[str | Path],
    *,
    ids: IdKind | None = None,
    bounds: tuple[float, float | None] = (0, None),
    options: FileOptions = AS_EVENTS,
) -> EventFile:
    """Read files with columns src, dst, t (seconds) and optionally op, weight, label, features, one after the other.

    ``feature_offset`` and ``event_id`` are read, too. Other columns are not, which a warning says. A row without ``dst`` is
    a node event. ``t`` may be RFC 3339, and in Parquet and its like timestamps. In CSV, ``features`` is ``[0.5, 1.0]`` in
    quotes.

    Args:
        source: Files, globs and folders. Parquet, ORC and Feather are recognised by their first bytes, lines of JSON by
            their first brace; everything else is text with cells.
        ids: Expected kind of node ids; None: the first file's.
        bounds: Allowed event times [min, max], seconds; max None: the year 9999.
        options: How the files are read.

    Raises:
        Failure: A file cannot be read, a column is missing or wrong, or a row breaks a rule; the sentence names file,
            column and row, counted from 1 without the header.
    """
    paths = listed(source)
    tables: list[pa.Table] = []
    widths = (0, 0)
    headers: set[tuple[str, ...]] = set()
    for path in paths:
        with readable(path):
            opened = open_rows(path, ids, options=options)
            ids = ids or id_kind(opened.schema)
            events, widths = _checked(path, opened, ids, bounds, widths)
        if tuple(opened.header) not in headers:  # the files of a folder are alike
            headers.add(tuple(opened.header))
            warn_of_columns(path, opened, pc.max(events["t"]).as_py() or 0)
        tables.append(events)
    assert ids is not None, "there is a file"
    events = pa.concat_tables(tables)
    if not opened.columns.bipartite:
        warn_of_sides(paths[0], events)
    t = events["t"].to_numpy()
    return EventFile(paths[0], events, ids, *widths, sorted_by_time=bool(np.all(t[1:] >= t[:-1])))


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
    only: tuple[str, ...] | None = None,
    options: FileOptions = AS_EVENTS,
) -> OpenedFile:
    """Open a file; at most a batch, a stripe or a block of it is in memory at a time.

    Args:
        path: The file.
        ids: Kind of node ids, for text; None: the file's.
        start: Rows to skip at the beginning; whole row groups of Parquet are skipped unread.
        only: Columns of events to read; None: all.
        options: How it is read.

    Raises:
        OSError, pyarrow.ArrowException: It cannot be read.
        RefusedError: A column is missing.
        Failure: A text has no numbers where they belong.
    """
    with path.open("rb") as file:
        begin = file.read(6)
    opener = next((opener for magic, opener in _BY_MAGIC.items() if begin.startswith(magic)), None)
    if opener is not None:
        return _columnar(*opener(path), start, only, options)
    with pa.input_stream(str(path), compression="detect") as unpacked:
        first = unpacked.read(_LOOKED_AT_BYTES)
    if any(first.startswith(magic) for magic in _BY_MAGIC):
        raise Failure(f"{path} is packed, and its format needs the whole file. Unpack it")
    if first.lstrip(_BLANKS).startswith(b"{"):
        from freshet_graph.stream.decode.json_file import (
            json_rows,
        )  # needs msgspec, which readers of stores lack

        return json_rows(path, ids, options, start=start, only=only)
    if first.lstrip(_BLANKS).startswith(b"["):
        raise Failure(f"{path} is one JSON array. Write an object per line, as jq -c '.[]' does")
    opened = delimited_rows(path, ids, options, start=start, only=only)
    beside = path.with_name(f"{path.name.partition('.')[0]}.npy")
    if options.preset == "dyglib" and only is None and beside.exists():
        return _with_features(opened, beside)
    return opened


def _with_features(opened: OpenedFile, path: Path) -> OpenedFile:
    """DyGLib's events with their features, which are rows of an array in a file beside."""
    try:
        array = np.load(path, mmap_mode="r")
    except ValueError as error:
        raise Failure(
            f"{path} is no array of features: {one_line(error)}. Move it away to read the events alone"
        ) from error
    if array.ndim != 2:
        raise Failure(
            f"{path} has shape {array.shape}, expected events × features. Move it away to read the events alone"
        )
    num_rows, width = array.shape

    def joined(rows: FileRows) -> FileRows:
        place = rows.batch[ROW_NUMBER].fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
        is_outside = (place < 0) | (place >= num_rows)
        rows.faults.refuse(
            is_outside,
            Reason.WRONG_TYPE,
            lambda row: f"{ROW_NUMBER} is {place[row]}, but {path.name} has {num_rows} rows",
        )
        values = np.asarray(array[np.where(is_outside, 0, place)], np.float32).ravel()
        ends = np.arange(len(place) + 1, dtype=np.int32) * np.int32(width)
        features = pa.ListArray.from_arrays(ends, pa.array(values))
        return replace(rows, batch=rows.batch.append_column("features", features))

    schema = opened.schema.append(pa.field("features", pa.list_(pa.float32())))
    return replace(opened, rows=map(joined, opened.rows) if width else opened.rows, schema=schema)


_LOOKED_AT_BYTES = 4096
_BLANKS = b" \t\r\n\xef\xbb\xbf"

Batches = Callable[[list[str], int], Iterator[pa.RecordBatch]]
"""Batches of some columns, and how many rows may be skipped unread: the rest of ``start`` is in the batches."""


def _parquet(path: Path) -> tuple[pa.Schema, Sequence[int], Batches]:
    file = pq.ParquetFile(path, memory_map=True)
    groups = [file.metadata.row_group(group).num_rows for group in range(file.metadata.num_row_groups)]

    def batches(columns: list[str], first: int) -> Iterator[pa.RecordBatch]:
        return file.iter_batches(_ROWS_A_BATCH, columns=columns, row_groups=list(range(first, len(groups))))

    return file.schema_arrow, groups, batches


def _orc(path: Path) -> tuple[pa.Schema, Sequence[int], Batches]:
    file = pyarrow.orc.ORCFile(path)

    def batches(columns: list[str], _: int) -> Iterator[pa.RecordBatch]:
        return (file.read_stripe(stripe, columns) for stripe in range(file.nstripes))

    return file.schema, [], batches


def _feather(path: Path) -> tuple[pa.Schema, Sequence[int], Batches]:
    file = pa.ipc.open_file(pa.memory_map(str(path)))

    def batches(columns: list[str], _: int) -> Iterator[pa.RecordBatch]:
        return (file.get_batch(i).select(columns) for i in range(file.num_record_batches))

    return file.schema, [], batches


_BY_MAGIC = {b"PAR1": _parquet, b"ORC": _orc, b"ARROW1": _feather}


def _columnar(
    schema: pa.Schema,
    groups: Sequence[int],
    batches: Batches,
    start: int,
    only: tuple[str, ...] | None,
    options: FileOptions,
) -> OpenedFile:
    columns = FileColumns.of(options, schema.names)
    columns = columns if only is None else columns.only(only)
    group = 0
    while group < len(groups) and start >= groups[group]:
        start -= groups[group]
        group += 1
    kinds = {column: schema.field(column).type for column in columns.wanted}
    read = _without(batches(columns.wanted, group), start, columns)
    return OpenedFile(read, columns.schema(kinds), schema.names, columns)


def warn_of_columns(path: Path, opened: OpenedFile, latest_us: int) -> None:
    """Say which columns of a file are not read, and that its times are too coarse, if they are.

    Args:
        path: The file.
        opened: With all columns of events, or only ``t``.
        latest_us: Its latest time, microseconds.
    """
    columns = opened.columns
    unread = [name for name in opened.header if name not in columns.known]
    if unread:
        more = f" and {len(unread) - _NAMED} more" if len(unread) > _NAMED else ""
        what, verb = ("column", "is") if len(unread) == 1 else ("columns", "are")
        _log.warning(
            f"{path}: {what} {', '.join(unread[:_NAMED])}{more} {verb} not read. Events have {', '.join(EVENT_COLUMNS)}. "
            "--columns gives columns with other names. --feature-columns makes columns of numbers the features of an event"
        )
    kind = opened.schema.field("t").type
    if pa.types.is_float16(kind) or pa.types.is_float32(kind):
        narrow = np.dtype(kind.to_pandas_dtype())
        apart_s = float(np.spacing(narrow.type(latest_us / US_PER_S)))
        if apart_s > 1:
            _log.warning(
                f"{path}: column {columns.shown('t')} is {narrow}, whose values lie {apart_s:g} s apart at the latest time. "
                f"Times are off by up to {apart_s / 2:g} s. Write the column as float64 or int64"
            )


def warn_of_sides(path: Path, events: pa.Table | pa.RecordBatch) -> None:
    """Say that sources and destinations look like two kinds whose ids overlap, such as users and items, if they do."""
    edges = events.filter(pc.is_valid(events["dst"])) if events["dst"].null_count else events
    if not pa.types.is_integer(edges.schema.field("src").type) or not edges.num_rows:
        return
    (first_src, last_src), (first_dst, last_dst) = (
        pc.min_max(edges[n]).as_py().values() for n in ("src", "dst")
    )
    if last_src < first_dst or last_dst < first_src:
        return
    src, dst = (np.asarray(edges[name].to_numpy()) for name in ("src", "dst"))
    if _look_like_two_kinds(src, dst):
        _log.warning(
            f"{path}: sources ({first_src} to {last_src}) and destinations ({first_dst} to {last_dst}) look like two kinds "
            "that are numbered apart, such as users and items, but equal ids are one node. Give --bipartite if they are two"
        )


def _look_like_two_kinds(src: Int64, dst: Int64) -> bool:
    """Whether no id is both; or both begin with one number and have no gap, but not as many ids."""
    head = slice(0, _HEAD_ROWS)
    begin_together = src.min() == dst.min()
    if not begin_together and len(np.intersect1d(src[head], dst[head])):
        return False
    low, high = min(src.min(), dst.min()), max(src.max(), dst.max())
    if high - low > _DENSE * len(src):
        return not len(np.intersect1d(src, dst))
    is_src, is_dst = (np.zeros(int(high - low) + 1, bool) for _ in range(2))
    is_src[src - low] = is_dst[dst - low] = True
    if not (is_src & is_dst).any():
        return True
    sizes = int(is_src.sum()), int(is_dst.sum())
    return sizes[0] != sizes[1] and bool(is_src[: sizes[0]].all() and is_dst[: sizes[1]].all())


def _without(batches: Iterator[pa.RecordBatch], start: int, columns: FileColumns) -> Iterator[FileRows]:
    for batch in batches:
        if start < batch.num_rows:
            yield _with_times(columns.of_events(batch.slice(start)), columns)
        start = max(0, start - batch.num_rows)


def _with_times(batch: pa.RecordBatch, columns: FileColumns) -> FileRows:
    """Rows with times read that are texts or decimals."""
    faults = Faults.none(batch.num_rows)
    place = batch.schema.get_field_index("t")
    kind = batch.schema.types[place]
    given = batch.column(place)
    if pa.types.is_decimal(kind) and columns.unit in SCALE_DIGITS:
        t = _decimal_times(given, columns.unit)
    elif columns.time_texts and (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        t = read_times(columns.shown("t"), given, faults)
    else:
        return FileRows(batch, faults)
    return FileRows(batch.set_column(place, "t", t), faults, {"t": pc.if_else(t.is_null(), given, None)})


def _decimal_times(column: pa.Array, unit: TimeUnit) -> pa.Array:
    """Decimals in a unit as timestamps, rounded to the microsecond, of ns to the nanosecond."""
    digits = max(0, SCALE_DIGITS[unit])
    wide = column.cast(pa.decimal256(60, column.type.scale))
    ticks = pc.multiply(pc.round(wide, digits, "half_towards_infinity"), pa.scalar(Decimal(10**digits)))
    return ticks.cast(pa.int64()).cast(pa.timestamp("ns" if unit == "ns" else "us"))


def _checked(
    path: Path,
    opened: OpenedFile,
    ids: IdKind,
    bounds: tuple[float, float | None],
    widths: tuple[int, int],
) -> tuple[pa.Table, tuple[int, int]]:
    """A file's events, and the widths of the features of nodes and of edges; ``widths`` has those of earlier files."""
    columns = opened.columns
    low, high = bounds
    min_us = max(round(low * US_PER_S), EARLIEST_US)
    max_us = LATEST_US if high is None else min(round(high * US_PER_S), LATEST_US)
    accepted: list[pa.RecordBatch] = []
    rows = 0
    node_features, edge_features = widths
    for some in opened.rows:
        draft = columns.draft(some, ids)
        node_features = node_features or first_width(draft, node=True)
        edge_features = edge_features or first_width(draft, node=False)
        rules = Rules(ids, node_features, edge_features, min_us, max_us, offline=True, file_unit=columns.unit)
        check(draft, rules, columns.shown)
        for row in draft.faults.refused_rows()[:1]:
            raise Failure(
                f"{path}, row {rows + row + 1}: {draft.faults.of(row)[1]} "
                "(rows count from 1, without the header)"
            )
        accepted.append(draft.events())
        rows += draft.batch.num_rows
    return pa.Table.from_batches(accepted, event_schema(ids)), (node_features, edge_features)


def first_width(draft: Draft, *, node: bool) -> int:
    """Width of the first full feature vector among node events, or among edge events; 0: none."""
    lengths = draft.batch["features"].value_lengths()
    if lengths.null_count == len(lengths):
        return 0
    is_node = draft.batch["op"].to_numpy() == Op.NODE
    whole = draft.batch["feature_offset"].is_null().to_numpy(zero_copy_only=False)
    values = lengths.fill_null(0).to_numpy()
    widths = values[(is_node == node) & whole & (values > 0)]
    return int(widths[0]) if len(widths) else 0
