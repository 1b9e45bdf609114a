"""CSV, TSV and other text with cells to rows of events, block by block.

A cell that can't be read, or a row of another number of cells, refuses its row and not the file.
"""

import csv
import io
import re
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from freshet_graph.schemas.events import IdKind, Reason
from freshet_graph.schemas.file_options import FileOptions
from freshet_graph.stream.decode.columns import LOOKS_LIKE_ONE, REQUIRED, read_times
from freshet_graph.stream.decode.file_columns import FEATURE_LIST, ROW_NUMBER, FileColumns, OpenedFile
from freshet_graph.stream.decode.reading import FileRows
from freshet_graph.stream.decode.validate import Faults, shorten
from freshet_graph.stream.service.failure import Failure

_WHOLE = ("op", "feature_offset", "label", ROW_NUMBER)
_BLOCK_BYTES = 16 << 20
_HEAD_BYTES = 1 << 20
_HEAD_ROWS = 1000
"""Lines whose usual number of cells is that of the file."""

_NUMBER = r"[+-]?((\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|(?i:nan|inf|infinity))"
_PATTERNS = {
    False: rf"^\s*{_NUMBER}\s*$",
    True: rf"^[\[\]() \t]*({_NUMBER}(\s*[,;\s]\s*{_NUMBER})*)?[\[\]() \t]*$",
}
"""What a cell with a number, or with a list of numbers, looks like."""


@dataclass(frozen=True, slots=True)
class _Head:
    """The begin of a text.

    Attributes:
        names: All columns; those without a name have their number.
        further: Number of columns at the end that the header has no name for.
        separator: Between cells.
        first_line: Without its line's end.
        has_header: Whether that line has names.
    """

    names: list[str]
    further: int
    separator: str
    first_line: str
    has_header: bool

    @classmethod
    def of(cls, path: Path, options: FileOptions) -> "_Head":
        with open_text(path, options) as file:
            block = file.read(_HEAD_BYTES)
        if b"\0" in block:
            raise pa.ArrowInvalid("neither Parquet, ORC or Feather nor text in UTF-8")
        lines = block.decode("utf-8-sig", "replace").split("\n", _HEAD_ROWS + 1)
        if (len(block) == _HEAD_BYTES or len(lines) > _HEAD_ROWS) and len(lines) > 1:
            lines.pop()  # cut off, or all others
        lines = [line for line in (line.rstrip("\r") for line in lines) if line]
        if not lines:
            raise pa.ArrowInvalid("the file is empty")
        first_line = lines[0]
        separator = options.delimiter or ("\t" if "\t" in first_line else ",")
        try:
            rows = list(csv.reader(lines, delimiter=separator))
        except csv.Error as error:
            raise pa.ArrowInvalid(f"not text with cells: {error}") from error
        names = [] if options.no_header or not rows else [name.strip() for name in rows.pop(0)]
        ((cells, _),) = Counter(map(len, rows)).most_common(1) or [(len(names), 0)]
        if names[cells:] == [FEATURE_LIST]:
            names.pop()  # an empty list
        further = 0 if options.no_header else max(0, cells - len(names))
        names += map(str, range(len(names), cells))
        return cls(names, further, separator, first_line, not options.no_header)


def delimited_rows(
    path: Path,
    ids: IdKind | None,
    options: FileOptions,
    *,
    start: int = 0,
    only: tuple[str, ...] | None = None,
) -> OpenedFile:
    """Open a text with cells, such as CSV; ``.gz``, ``.zst``, ``.bz2`` and ``.lz4`` are unpacked.

    A cell that is no number or time is null, and its row refused; so is a row of more or fewer cells than most. ``t`` is
    timestamps if the first block has RFC 3339 and no number.

    Args:
        path: The file.
        ids: Kind of node ids; None: strings if the first block has an id that is no number, else int64.
        options: Its separator, header and columns.
        start: Rows to skip at the beginning.
        only: Columns of events to read; None: all.

    Raises:
        Failure: No cell of src, dst or t is a number where numbers belong, so the column is a wrong one, or no row has as many
            cells as the header (raised while iterating); names column and row.
        RefusedError: A column is missing.
        pyarrow.ArrowInvalid: The text is no CSV.
    """
    head = _Head.of(path, options)
    columns = FileColumns.of(options, head.names, further=head.further, first_line=head.first_line)
    columns = columns if only is None else columns.only(only)
    uneven: deque[pacsv.InvalidRow] = deque()

    def leave_out(row: pacsv.InvalidRow) -> str:
        uneven.append(row)
        return "skip"

    reader = pacsv.open_csv(
        path if _is_plain(options) else open_text(path, options),
        read_options=pacsv.ReadOptions(
            block_size=_BLOCK_BYTES,
            use_threads=False,  # or rows have no numbers
            column_names=head.names,
            skip_rows_after_names=int(head.has_header),
        ),
        parse_options=pacsv.ParseOptions(delimiter=head.separator, invalid_row_handler=leave_out),
        convert_options=pacsv.ConvertOptions(
            include_columns=columns.wanted,
            column_types=dict.fromkeys(columns.wanted, pa.string()),
            null_values=[""],
            strings_can_be_null=True,
        ),
    )
    batches = iter(reader)
    first = next(batches, None)
    if uneven and (first is None or not first.num_rows):
        raise Failure(f"{path}, row 1: {_uneven_sentence(uneven[0], head)}, as all rows looked at")
    if ids is None:
        ids = "string" if first is not None and not _are_ids_whole(first, columns) else "int"
    has_texts = columns.time_texts and first is not None and _are_times_texts(first[columns.column("t")])
    kinds = {column: _kind(name, ids) for column, name in columns.events.items()}
    kinds |= dict.fromkeys(columns.features, pa.float32())
    if has_texts or columns.unit == "rfc3339":
        kinds[columns.column("t")] = pa.timestamp("us")
    read = _with_uneven(chain([] if first is None else [first], batches), uneven, head, columns)
    return OpenedFile(_typed(path, read, kinds, start, columns), columns.schema(kinds), head.names, columns)


def _is_plain(options: FileOptions) -> bool:
    return options.comment is None and options.delimiter != " "


def open_text(path: Path, options: FileOptions) -> io.RawIOBase:
    """Open a text, unpacked if its name says that it is packed, without its comments."""
    file: Any = pa.input_stream(str(path), compression="detect")
    return file if _is_plain(options) else _Lines(file, options)


class _Lines(io.RawIOBase):
    """The lines of a text without comments, and with one blank between cells."""

    def __init__(self, file: pa.NativeFile, options: FileOptions) -> None:
        super().__init__()
        self._file = file
        self._comment = (options.comment or "").encode()
        self._comments = re.compile(rb"^[ \t]*" + re.escape(self._comment) + rb".*\n?", re.MULTILINE)
        self._blanks = options.delimiter == " "
        self._ready = io.BytesIO()
        self._rest: bytes | None = b""

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        while not (data := self._ready.read(len(target))) and self._rest is not None:
            block = self._file.read(_BLOCK_BYTES)
            lines, newline, rest = (self._rest + block).rpartition(b"\n")
            if block:
                self._rest = rest
                self._ready = io.BytesIO(self._cleaned(lines + newline))
            else:
                self._ready, self._rest = io.BytesIO(self._cleaned(lines + newline + rest)), None
        target[: len(data)] = data
        return len(data)

    def _cleaned(self, lines: bytes) -> bytes:
        if self._comment and self._comment in lines:
            lines = self._comments.sub(b"", lines)
        if self._blanks:
            lines = lines.translate(_ONE_BLANK, delete=b"\r")
            while b"  " in lines:
                lines = lines.replace(b"  ", b" ")
            lines = lines.replace(b" \n", b"\n").replace(b"\n ", b"\n").strip(b" ")
        return lines

    def close(self) -> None:
        self._file.close()
        super().close()


_ONE_BLANK = bytes.maketrans(b"\t", b" ")


def _with_uneven(
    batches: Iterator[pa.RecordBatch], uneven: deque[pacsv.InvalidRow], head: _Head, columns: FileColumns
) -> Iterator[tuple[pa.RecordBatch, dict[int, str]]]:
    """Batches of the other rows with the uneven ones in their places, and a sentence for each of these by its place.

    Args:
        batches: Texts by the file's columns. The parser adds to ``uneven`` as they are read, and may be ahead.
        uneven: Rows of more or fewer cells than the others, in order; those put in their places are removed.
        head: The file's begin.
        columns: Those that are read.
    """
    begun = 0  # rows of the file before this batch
    first = 1 + head.has_header  # the parser counts rows from 1, the header among them
    for batch in chain(batches, [None]):
        even = 0 if batch is None else batch.num_rows
        placed: dict[int, pacsv.InvalidRow] = {}
        while uneven and (batch is None or uneven[0].number - first - begun - len(placed) < even):
            row = uneven.popleft()
            placed[row.number - first - begun] = row
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
        schema = pa.schema([(column, pa.string()) for column in columns.wanted])
        cells = [
            dict(zip(head.names, _cells(placed[place].text, head.separator), strict=False))
            for place in places
        ]
        known = [{column: row.get(column) for column in columns.wanted} for row in cells]
        tables = [] if batch is None else [pa.Table.from_batches([batch])]
        table = pa.concat_tables([*tables, pa.Table.from_pylist(known, schema)]).take(pa.array(order))
        (together,) = table.combine_chunks().to_batches()
        yield together, {place: _uneven_sentence(row, head) for place, row in placed.items()}


def _of_row(sentences: Mapping[int, str], start: int) -> Callable[[int], str]:
    return lambda row: sentences[start + row]


def _cells(text: str, separator: str) -> list[str | None]:
    return [cell or None for cell in next(csv.reader([text], delimiter=separator), [])]


def _uneven_sentence(row: pacsv.InvalidRow, head: _Head) -> str:
    others = "the header has" if head.has_header and not head.further else "most rows have"
    begin = row.text.lstrip()[:1]
    remedy = f". If it is a comment, give --comment '{begin}'" if begin in ("#", "%") else ""
    return f"it has {row.actual_columns} columns, but {others} {row.expected_columns}: {shorten(row.text)}{remedy}"


def _are_times_texts(t: pa.Array) -> bool:
    """Whether a block of texts has RFC 3339 and no number."""
    times, numbers = (pc.match_substring_regex(t, pattern) for pattern in (LOOKS_LIKE_ONE, _PATTERNS[False]))
    return bool(pc.any(times).as_py()) and not pc.any(numbers).as_py()


def _typed(
    path: Path,
    batches: Iterator[tuple[pa.RecordBatch, dict[int, str]]],
    kinds: Mapping[str, pa.DataType],
    start: int,
    columns: FileColumns,
) -> Iterator[FileRows]:
    for batch_number, (batch, uneven) in enumerate(batches):
        if batch_number == 0:
            _require_readable(path, batch, kinds, columns)
        if start < batch.num_rows:
            wanted = batch.slice(start)
            faults = Faults.none(wanted.num_rows)
            is_uneven = np.isin(np.arange(start, batch.num_rows), list(uneven))
            faults.refuse(is_uneven, Reason.WRONG_TYPE, _of_row(uneven, start))
            parsed = [
                _parsed(columns, column, wanted[column], kind, faults) for column, kind in kinds.items()
            ]
            texts = {
                columns.events.get(column, column): pc.if_else(values.is_null(), wanted[column], None)
                for column, values in zip(kinds, parsed, strict=True)
                if values.null_count > wanted[column].null_count
            }
            read = columns.of_events(pa.RecordBatch.from_arrays(parsed, names=list(kinds)))
            yield FileRows(read, faults, texts)
        start = max(0, start - batch.num_rows)


def _kind(name: str, ids: IdKind) -> pa.DataType:
    if name in ("src", "dst"):
        return pa.int64() if ids == "int" else pa.string()
    if name == "features":
        return pa.list_(pa.float32())
    if name == "event_id":
        return pa.string()
    return pa.int64() if name in _WHOLE else pa.float64()


def _are_ids_whole(batch: pa.RecordBatch, columns: FileColumns) -> bool:
    for column, name in columns.events.items():
        if name in ("src", "dst"):
            try:
                _number(batch[column])
            except pa.ArrowInvalid:
                return False
            if pc.any(pc.match_substring(batch[column][:_HEAD_ROWS], "x")).as_py():
                return False  # an address such as 0x1f, which Arrow would take for a number
    return True


def _require_readable(
    path: Path, batch: pa.RecordBatch, kinds: Mapping[str, pa.DataType], columns: FileColumns
) -> None:
    """Refuse a file without a row that could be an event, by its first wrong cell."""
    for column, name in columns.events.items():
        if name not in REQUIRED or kinds[column] not in (pa.int64(), pa.float64()):
            continue
        text = batch[column]
        readable = pc.match_substring_regex(text, _PATTERNS[False])
        if text.null_count < len(text) and not pc.any(readable).as_py():
            row = int(np.flatnonzero(text.is_valid().to_numpy(zero_copy_only=False))[0])
            raise Failure(
                f"{path}, row {row + 1}: {_sentence(columns, column, text, row)}, as in all rows looked at (rows count from 1, "
                "without the header)"
            )


def _sentence(columns: FileColumns, column: str, text: pa.Array, row: int) -> str:
    name = columns.events.get(column)
    shown = column if name is None else columns.shown(name)
    times = (
        "a number of seconds or a time as RFC 3339 writes it"
        if columns.time_texts
        else f"a number ({columns.unit})"
    )
    expected = {"features": "[0.5, 1.0]", "t": times}.get(name or "", "a number")
    return f"column {shown} has {shorten(text[row].as_py())}, expected {expected}"


def _number(text: pa.Array) -> pa.Array:
    """Whole numbers as int64, else float64: pandas writes whole numbers with gaps as 1.0."""
    try:
        return pc.cast(text, pa.int64())
    except pa.ArrowInvalid:
        return pc.cast(pc.utf8_trim_whitespace(text), pa.float64())


def _parsed(columns: FileColumns, column: str, text: pa.Array, kind: pa.DataType, faults: Faults) -> pa.Array:
    """A column's values; a wrong cell is null, and a fault of its row."""
    name = columns.events.get(column)
    if kind == pa.string():
        return text
    if pa.types.is_timestamp(kind):
        return read_times(columns.shown("t"), pc.utf8_trim_whitespace(text), faults)
    is_list = pa.types.is_list(kind)
    parse = _lists if is_list else _float if kind == pa.float32() else _number
    try:
        return parse(text)
    except pa.ArrowInvalid:
        looks = pc.match_substring_regex(text, _PATTERNS[is_list]).fill_null(True)
    bad = ~looks.to_numpy(zero_copy_only=False)
    bad[_failing(parse, pc.if_else(looks, text, None))] = True
    reason = Reason.BAD_ID if name in ("src", "dst") else Reason.WRONG_TYPE
    faults.refuse(bad, reason, lambda row: _sentence(columns, column, text, row))
    return parse(pc.if_else(pa.array(bad), None, text))


def _float(text: pa.Array) -> pa.Array:
    try:
        return pc.cast(text, pa.float32())
    except pa.ArrowInvalid:
        return pc.cast(pc.utf8_trim_whitespace(text), pa.float32())


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
