"""Parquet, CSV and TSV files to canonical events, columns by name; a wrong row is named, never skipped.

The columns have their own names or those of ``--columns``. CSV and TSV are read block by block; a cell that can't be read, or a
missing one, refuses its row and not the file.
"""

import csv
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import structlog

from freshet_graph.schemas.errors import one_line
from freshet_graph.schemas.events import EARLIEST_US, LATEST_US, US_PER_S, IdKind, Op, Reason, event_schema
from freshet_graph.stream.decode.columns import LOOKS_LIKE_ONE, REQUIRED, canonical, id_kind, read_times
from freshet_graph.stream.decode.reading import FileRows, RefusedError
from freshet_graph.stream.decode.validate import Draft, Faults, Rules, check, draft_schema, shorten
from freshet_graph.stream.service.failure import Failure

KNOWN = tuple(draft_schema("int").names)
"""Columns of events."""


@dataclass(frozen=True, slots=True)
class FileColumns:
    """Names of a file's columns that differ from an event's.

    Attributes:
        names: The file's column by the event's.
    """

    names: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str | None) -> Self:
        """The option ``--columns``, such as ``src=user,dst=item,t=ts``; None: all columns have their own names.

        Raises:
            Failure: An event has no such column, or one is named twice.
        """
        names: dict[str, str] = {}
        for pair in text.split(",") if text else []:
            name, sign, column = (part.strip() for part in pair.partition("="))
            if not sign or not column:
                raise Failure(f"--columns takes pairs such as src=user,dst=item,t=ts, found {pair!r}")
            if name not in KNOWN:
                raise Failure(
                    f"--columns names {name}, which events don't have. They have {', '.join(KNOWN)}"
                )
            if name in names or column in names.values():
                raise Failure(f"--columns names {name if name in names else column} twice")
            names[name] = column
        return cls(names)

    def event_columns(self, header: Sequence[str]) -> dict[str, str]:
        """The event's column for each column of a file that is read, in the file's order.

        Raises:
            RefusedError: A required or named one is missing, or one is repeated.
        """
        taken = set(self.names.values())
        events = {column: name for name, column in self.names.items()}
        events |= {name: name for name in KNOWN if name not in self.names and name not in taken}
        by_name = {name: column for column, name in events.items()}
        for name in (*REQUIRED, *self.names):
            if name not in by_name or by_name[name] not in header:
                header_names = ", ".join(header) or "none"
                raise RefusedError(
                    Reason.MISSING_FIELD,
                    f"column {self.names.get(name, name)} is missing; found {header_names}. Name the columns of the file, "
                    "such as --columns src=user,dst=item,t=ts",
                )
        read = {column: events[column] for column in header if column in events}
        twice = next((column for column in read if header.count(column) > 1), None)
        if twice is not None:
            raise RefusedError(Reason.WRONG_TYPE, f"column {twice} stands {header.count(twice)} times")
        return read

    def shown(self, name: str) -> str:
        """An event's column in a sentence: its name, and the file's if it differs."""
        return f"{name} ({self.names[name]})" if name in self.names else name


OWN = FileColumns()
"""Columns with the names of events."""


_WHOLE = ("op", "feature_offset", "label")
_BLOCK_BYTES = 16 << 20
_HEADER_BYTES = 1 << 20

_NUMBER = r"[+-]?((\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|(?i:nan|inf|infinity))"
_PATTERNS = {
    False: rf"^\s*{_NUMBER}\s*$",
    True: rf"^[\[\]() \t]*({_NUMBER}(\s*[,;\s]\s*{_NUMBER})*)?[\[\]() \t]*$",
}
"""What a cell with a number, or with a list of numbers, looks like."""


def csv_rows(
    path: Path, ids: IdKind | None, *, start: int = 0, columns: FileColumns = OWN
) -> tuple[Iterator[FileRows], pa.Schema, list[str]]:
    """Open a CSV file with a header, or a TSV file if the header has a tab; ``.gz`` and the like are unpacked.

    Args:
        path: The file.
        ids: Kind of node ids; None: strings if the first block has an id that is no number, else int64.
        start: Rows to skip at the beginning.
        columns: Names of its columns.

    Returns:
        Rows with the known columns under the events' names, their schema, and the file's header. A cell that is no number or
        time is null, and its row refused; so is a row of more or fewer cells than the header. ``t`` is timestamps if the first
        block has RFC 3339 and no number.

    Raises:
        Failure: No cell of src, dst or t is a number where numbers belong, so the column is a wrong one, or no row has as many
            cells as the header (raised while iterating); names column and row.
        RefusedError: A column is missing.
        pyarrow.ArrowInvalid: The text is no CSV.
    """
    separator = _separator(path)
    uneven: deque[pacsv.InvalidRow] = deque()

    def leave_out(row: pacsv.InvalidRow) -> str:
        uneven.append(row)
        return "skip"

    separated = pacsv.ParseOptions(delimiter=separator, invalid_row_handler=leave_out)
    options = pacsv.ReadOptions(block_size=_BLOCK_BYTES, use_threads=False)  # or rows have no numbers
    with pacsv.open_csv(path, read_options=options, parse_options=separated) as reader:
        header = reader.schema.names
    events = columns.event_columns(header)
    uneven.clear()
    reader = pacsv.open_csv(
        path,
        read_options=options,
        parse_options=separated,
        convert_options=pacsv.ConvertOptions(
            include_columns=list(events),
            column_types=dict.fromkeys(events, pa.string()),
            null_values=[""],
            strings_can_be_null=True,
        ),
    )
    batches = (batch.rename_columns(list(events.values())) for batch in reader)
    first = next(batches, None)
    if uneven and (first is None or not first.num_rows):
        raise Failure(f"{path}, row 1: {_uneven_sentence(uneven[0])}, as all rows looked at")
    if ids is None:
        ids = "string" if first is not None and not _are_ids_whole(first) else "int"
    has_texts = first is not None and _are_times_texts(first["t"])
    schema = pa.schema(
        [
            (name, pa.timestamp("us") if name == "t" and has_texts else _kind(name, ids))
            for name in events.values()
        ]
    )
    read = _with_uneven(chain([] if first is None else [first], batches), uneven, header, events, separator)
    return _typed(path, read, schema, start, columns), schema, header


def _with_uneven(
    batches: Iterator[pa.RecordBatch],
    uneven: deque[pacsv.InvalidRow],
    header: list[str],
    events: Mapping[str, str],
    separator: str,
) -> Iterator[tuple[pa.RecordBatch, dict[int, str]]]:
    """Batches of the other rows with the uneven ones in their places, and a sentence for each of these by its place.

    Args:
        batches: Texts by the events' names. The parser adds to ``uneven`` as they are read, and may be ahead.
        uneven: Rows of more or fewer cells than the header, in order; those put in their places are removed.
        header: Names of the file's columns.
        events: The event's column for each column that is read.
        separator: Between cells.
    """
    begun = 0  # rows of the file before this batch
    for batch in chain(batches, [None]):
        even = 0 if batch is None else batch.num_rows
        placed: dict[int, pacsv.InvalidRow] = {}
        # The parser counts rows from 1, the header among them.
        while uneven and (batch is None or uneven[0].number - 2 - begun - len(placed) < even):
            row = uneven.popleft()
            placed[row.number - 2 - begun] = row
        size = even + len(placed)
        begun += size
        if not placed:
            if batch is not None:
                yield batch, {}
            continue
        order = np.full(size, even)
        places = sorted(placed)
        order[np.setdiff1d(np.arange(size), places)] = np.arange(even)
        order[places] = even + np.arange(len(places))
        schema = pa.schema([(name, pa.string()) for name in events.values()])
        cells = [dict(zip(header, _cells(placed[place].text, separator), strict=False)) for place in places]
        known = [{name: row.get(column) for column, name in events.items()} for row in cells]
        tables = [] if batch is None else [pa.Table.from_batches([batch])]
        table = pa.concat_tables([*tables, pa.Table.from_pylist(known, schema)]).take(pa.array(order))
        (together,) = table.combine_chunks().to_batches()
        yield together, {place: _uneven_sentence(row) for place, row in placed.items()}


def _of_row(sentences: Mapping[int, str], start: int) -> Callable[[int], str]:
    return lambda row: sentences[start + row]


def _cells(text: str, separator: str) -> list[str | None]:
    return [cell or None for cell in next(csv.reader([text], delimiter=separator), [])]


def _uneven_sentence(row: pacsv.InvalidRow) -> str:
    return (
        f"it has {row.actual_columns} columns, but the header has {row.expected_columns}: {shorten(row.text)}"
    )


def _separator(path: Path) -> str:
    with pa.input_stream(str(path), compression="detect") as file:
        header, _, _ = file.read(_HEADER_BYTES).partition(b"\n")
    return "\t" if b"\t" in header else ","


def _are_times_texts(t: pa.Array) -> bool:
    """Whether a block of texts has RFC 3339 and no number."""
    times, numbers = (pc.match_substring_regex(t, pattern) for pattern in (LOOKS_LIKE_ONE, _PATTERNS[False]))
    return bool(pc.any(times).as_py()) and not pc.any(numbers).as_py()


def _typed(
    path: Path,
    batches: Iterator[tuple[pa.RecordBatch, dict[int, str]]],
    schema: pa.Schema,
    start: int,
    columns: FileColumns,
) -> Iterator[FileRows]:
    for batch_number, (batch, uneven) in enumerate(batches):
        if batch_number == 0:
            _require_readable(path, batch, schema, columns)
        if start < batch.num_rows:
            wanted = batch.slice(start)
            faults = Faults.none(wanted.num_rows)
            is_uneven = np.isin(np.arange(start, batch.num_rows), list(uneven))
            faults.refuse(is_uneven, Reason.WRONG_TYPE, _of_row(uneven, start))
            parsed = [
                _parsed(columns.shown(field.name), field.name, wanted[field.name], field.type, faults)
                for field in schema
            ]
            texts = {
                field.name: pc.if_else(column.is_null(), wanted[field.name], None)
                for field, column in zip(schema, parsed, strict=True)
                if column.null_count > wanted[field.name].null_count
            }
            yield FileRows(pa.RecordBatch.from_arrays(parsed, names=schema.names), faults, texts)
        start = max(0, start - batch.num_rows)


def _kind(name: str, ids: IdKind) -> pa.DataType:
    if name in ("src", "dst"):
        return pa.int64() if ids == "int" else pa.string()
    if name == "features":
        return pa.list_(pa.float32())
    if name == "event_id":
        return pa.string()
    return pa.int64() if name in _WHOLE else pa.float64()


def _are_ids_whole(batch: pa.RecordBatch) -> bool:
    for name in ("src", "dst"):
        if name in batch.schema.names:
            try:
                _number(batch[name])
            except pa.ArrowInvalid:
                return False
    return True


def _require_readable(path: Path, batch: pa.RecordBatch, schema: pa.Schema, columns: FileColumns) -> None:
    """Refuse a file without a row that could be an event, by its first wrong cell."""
    for column in schema:
        if column.name not in REQUIRED or column.type not in (pa.int64(), pa.float64()):
            continue
        text = batch[column.name]
        readable = pc.match_substring_regex(text, _PATTERNS[False])
        if text.null_count < len(text) and not pc.any(readable).as_py():
            row = int(np.flatnonzero(text.is_valid().to_numpy(zero_copy_only=False))[0])
            sentence = _sentence(columns.shown(column.name), column.name, text, row)
            raise Failure(
                f"{path}, row {row + 1}: {sentence}, as in all rows looked at (rows count from 1, "
                "without the header)"
            )


def _sentence(shown: str, name: str, text: pa.Array, row: int) -> str:
    expected = {"features": "[0.5, 1.0]", "t": "a number of seconds or a time as RFC 3339 writes it"}
    return f"column {shown} has {shorten(text[row].as_py())}, expected {expected.get(name, 'a number')}"


def _number(text: pa.Array) -> pa.Array:
    """Whole numbers as int64, else float64: pandas writes whole numbers with gaps as 1.0."""
    try:
        return pc.cast(text, pa.int64())
    except pa.ArrowInvalid:
        return pc.cast(pc.utf8_trim_whitespace(text), pa.float64())


def _parsed(shown: str, name: str, text: pa.Array, kind: pa.DataType, faults: Faults) -> pa.Array:
    """A column's values; a wrong cell is null, and a fault of its row."""
    if kind == pa.string():
        return text
    if pa.types.is_timestamp(kind):
        return read_times(shown, pc.utf8_trim_whitespace(text), faults)
    is_list = pa.types.is_list(kind)
    parse = _lists if is_list else _number
    try:
        return parse(text)
    except pa.ArrowInvalid:
        looks = pc.match_substring_regex(text, _PATTERNS[is_list]).fill_null(True)
    bad = ~looks.to_numpy(zero_copy_only=False)
    bad[_failing(parse, pc.if_else(looks, text, None))] = True
    reason = Reason.BAD_ID if name in ("src", "dst") else Reason.WRONG_TYPE
    faults.refuse(bad, reason, lambda row: _sentence(shown, name, text, row))
    return parse(pc.if_else(pa.array(bad), None, text))


def _failing(parse: Callable[[pa.Array], pa.Array], text: pa.Array) -> list[int]:
    """Indices of the cells that ``parse`` fails on, by bisection: few or none, of those that look like numbers."""
    try:
        parse(text)
    except pa.ArrowInvalid:
        if len(text) == 1:
            return [0]
        middle = len(text) // 2
        later = _failing(parse, text.slice(middle))
        return [*_failing(parse, text.slice(0, middle)), *(middle + row for row in later)]
    return []


def _lists(text: pa.Array) -> pa.Array:
    inner = pc.utf8_trim(text, characters="[]() \t")
    parts = pc.split_pattern_regex(inner, r"\s*[,;\s]\s*")
    # An empty list splits into one empty text.
    parts = pc.if_else(pc.equal(inner, ""), pa.scalar([], pa.list_(pa.string())), parts)
    return pc.cast(parts, pa.list_(pa.float32()))


_ROWS_A_BATCH = 1 << 18
_NAMED = 5
"""Columns that a warning names; of others it has the number."""

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
    event_names = columns.event_columns(header.names)
    wanted = [column for column, name in event_names.items() if only is None or name in only]
    group, metadata = 0, parquet.metadata
    while group < metadata.num_row_groups and start >= metadata.row_group(group).num_rows:
        start -= metadata.row_group(group).num_rows
        group += 1
    groups = list(range(group, metadata.num_row_groups))
    batches = parquet.iter_batches(_ROWS_A_BATCH, columns=wanted, row_groups=groups)
    renamed = (
        batch.rename_columns([event_names[column] for column in batch.schema.names]) for batch in batches
    )
    schema = pa.schema([header.field(column).with_name(name) for column, name in event_names.items()])
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
    read = columns.event_columns(header)
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
    time_column = batch.schema.get_field_index("t")
    if not (
        pa.types.is_string(batch.schema.types[time_column])
        or pa.types.is_large_string(batch.schema.types[time_column])
    ):
        return FileRows(batch, faults)
    texts = batch.column(time_column)
    t = read_times(columns.shown("t"), texts, faults)
    return FileRows(
        batch.set_column(time_column, "t", t), faults, {"t": pc.if_else(t.is_null(), texts, None)}
    )


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
