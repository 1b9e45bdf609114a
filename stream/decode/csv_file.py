"""CSV and TSV files, block by block; a cell that can't be read, or a missing one, refuses its row and not the file."""

import csv
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from schemas.events import IdKind, Reason
from stream.decode.columns import REQUIRED
from stream.decode.file_columns import OWN, FileColumns
from stream.decode.reading import FileRows
from stream.decode.rules import shorten
from stream.decode.time_texts import LOOKS_LIKE_ONE, read_times
from stream.decode.validate import Faults
from stream.service.failure import Failure

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
    events = columns.found(header)
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
    for at, (batch, uneven) in enumerate(batches):
        if at == 0:
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
    for field in schema:
        if field.name not in REQUIRED or field.type not in (pa.int64(), pa.float64()):
            continue
        text = batch[field.name]
        readable = pc.match_substring_regex(text, _PATTERNS[False])
        if text.null_count < len(text) and not pc.any(readable).as_py():
            row = int(np.flatnonzero(text.is_valid().to_numpy(zero_copy_only=False))[0])
            told = _sentence(columns.shown(field.name), field.name, text, row)
            raise Failure(
                f"{path}, row {row + 1}: {told}, as in all rows looked at (rows count from 1, "
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
