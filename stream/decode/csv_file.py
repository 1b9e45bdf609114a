"""CSV columns to typed columns: read as text, so that a cell that is no number can be named by its row."""

from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from schemas.events import IdKind, Reason
from stream.decode.reading import FileRows
from stream.decode.rules import shorten
from stream.decode.validate import Faults, draft_schema
from stream.service.failure import Failure

_KNOWN = draft_schema("int").names
_WHOLE = ("op", "feature_offset", "label")
_BLOCK_BYTES = 16 << 20

_NUMBER = r"[+-]?((\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|(?i:nan|inf|infinity))"
_PATTERNS = {
    False: rf"^\s*{_NUMBER}\s*$",
    True: rf"^[\[\]() \t]*({_NUMBER}(\s*[,;\s]\s*{_NUMBER})*)?[\[\]() \t]*$",
}
"""What a cell with a number, or with a list of numbers, looks like."""


def csv_rows(path: Path, ids: IdKind | None, *, start: int = 0) -> tuple[Iterator[FileRows], pa.Schema]:
    """Open a CSV file with a header.

    Args:
        path: The file.
        ids: Kind of node ids; None: strings where the first block has an id that is no number, else int64.
        start: Rows to leave out at the beginning.

    Returns:
        Rows with the known columns, where a cell that is no number is null and its row refused; and the schema of the
        file, in which unknown columns are text.

    Raises:
        Failure: No cell of src, dst or t is a number where numbers belong: the column is another one (raised while
            iterating); names column and row.
        pyarrow.ArrowInvalid: The text is no CSV.
    """
    with pacsv.open_csv(path, read_options=pacsv.ReadOptions(block_size=_BLOCK_BYTES)) as reader:
        header = reader.schema.names
    known = [name for name in dict.fromkeys(header) if name in _KNOWN]
    twice = next((name for name in known if header.count(name) > 1), None)
    if twice:
        raise Failure(f"{path}: column {twice} stands {header.count(twice)} times")
    reader = pacsv.open_csv(
        path,
        read_options=pacsv.ReadOptions(block_size=_BLOCK_BYTES),
        convert_options=pacsv.ConvertOptions(
            include_columns=known,
            column_types=dict.fromkeys(known, pa.string()),
            null_values=[""],
            strings_can_be_null=True,
        ),
    )
    if not known:
        return iter(()), pa.schema([pa.field(name, pa.string()) for name in header])
    first = next(reader, None)
    if ids is None:
        ids = "string" if first is not None and not _are_ids_whole(first) else "int"
    schema = pa.schema([(name, _kind(name, ids)) for name in known])
    others = [pa.field(name, pa.string()) for name in header if name not in known]
    read = _typed(path, chain([] if first is None else [first], reader), schema, start)
    return read, pa.schema([*schema, *others])


def _typed(
    path: Path, batches: Iterator[pa.RecordBatch], schema: pa.Schema, start: int
) -> Iterator[FileRows]:
    for at, batch in enumerate(batches):
        if at == 0:
            _require_readable(path, batch, schema)
        if start < batch.num_rows:
            wanted = batch.slice(start)
            faults = Faults.none(wanted.num_rows)
            columns = [_parsed(field.name, wanted[field.name], field.type, faults) for field in schema]
            texts = {
                field.name: pc.if_else(column.is_null(), wanted[field.name], None)
                for field, column in zip(schema, columns, strict=True)
                if column.null_count > wanted[field.name].null_count
            }
            yield FileRows(pa.RecordBatch.from_arrays(columns, names=schema.names), faults, texts)
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


def _require_readable(path: Path, batch: pa.RecordBatch, schema: pa.Schema) -> None:
    """Refuse a file of which no row could be an event, by the first cell that says so."""
    for field in schema:
        if field.name not in ("src", "dst", "t") or field.type == pa.string():
            continue
        text = batch[field.name]
        readable = pc.match_substring_regex(text, _PATTERNS[False])
        if text.null_count < len(text) and not pc.any(readable).as_py():
            row = int(np.flatnonzero(text.is_valid().to_numpy(zero_copy_only=False))[0])
            raise Failure(
                f"{path}, row {row + 1}: {_sentence(field.name, text, row)}, and so it is in all rows looked at "
                "(rows count from 1, the header left out)"
            )


def _sentence(name: str, text: pa.Array, row: int) -> str:
    expected = "[0.5, 1.0]" if name == "features" else "a number"
    return f"column {name} has {shorten(text[row].as_py())}, expected {expected}"


def _number(text: pa.Array) -> pa.Array:
    """Whole numbers as int64, else float64: pandas writes whole numbers with gaps as 1.0."""
    try:
        return pc.cast(text, pa.int64())
    except pa.ArrowInvalid:
        return pc.cast(pc.utf8_trim_whitespace(text), pa.float64())


def _parsed(name: str, text: pa.Array, kind: pa.DataType, faults: Faults) -> pa.Array:
    """A column's values; a cell that has none is null, and its row refused."""
    if kind == pa.string():
        return text
    is_list = pa.types.is_list(kind)
    parse = _lists if is_list else _number
    try:
        return parse(text)
    except pa.ArrowInvalid:
        looks = pc.match_substring_regex(text, _PATTERNS[is_list]).fill_null(True)
    bad = ~looks.to_numpy(zero_copy_only=False)
    bad[_failing(parse, pc.if_else(looks, text, None))] = True
    reason = Reason.BAD_ID if name in ("src", "dst") else Reason.WRONG_TYPE
    faults.refuse(bad, reason, lambda row: _sentence(name, text, row))
    return parse(pc.if_else(pa.array(bad), None, text))


def _failing(parse: Callable[[pa.Array], pa.Array], text: pa.Array) -> list[int]:
    """Indices of the cells that ``parse`` fails on, by halves: few or none, of those that look like numbers."""
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
