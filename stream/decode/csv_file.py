"""CSV columns to typed columns: read as text, so that a cell that is no number can be named by its row."""

from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from schemas.events import IdKind
from stream.decode.rules import shorten
from stream.decode.validate import draft_schema
from stream.service.failure import Failure

_KNOWN = draft_schema("int").names
_WHOLE = ("op", "feature_offset", "label")
_BLOCK_BYTES = 16 << 20


def csv_batches(path: Path, ids: IdKind | None) -> tuple[Iterator[pa.RecordBatch], pa.Schema]:
    """Open a CSV file with a header.

    Args:
        path: The file.
        ids: Kind of node ids; None: strings where the first block has an id that is no number, else int64.

    Returns:
        Batches with the known columns, and their schema.

    Raises:
        Failure: A cell is no number where one belongs (raised while iterating); names column and row.
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
    return _typed(path, chain([] if first is None else [first], reader), schema), schema


def _typed(path: Path, batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    rows = 0
    for batch in batches:
        columns = [_parsed(path, field.name, batch[field.name], field.type, rows) for field in schema]
        yield pa.RecordBatch.from_arrays(columns, names=schema.names)
        rows += batch.num_rows


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


def _number(text: pa.Array) -> pa.Array:
    """Whole numbers as int64, else float64: pandas writes whole numbers with gaps as 1.0."""
    try:
        return pc.cast(text, pa.int64())
    except pa.ArrowInvalid:
        return pc.cast(pc.utf8_trim_whitespace(text), pa.float64())


def _parsed(path: Path, name: str, text: pa.Array, kind: pa.DataType, rows: int) -> pa.Array:
    if kind == pa.string():
        return text
    parse = _lists if pa.types.is_list(kind) else _number
    try:
        return parse(text)
    except pa.ArrowInvalid as error:
        row = _first_failing(parse, text)
        expected = "[0.5, 1.0]" if parse is _lists else "a number"
        raise Failure(
            f"{path}, row {rows + row + 1}, column {name}: found {shorten(text[row].as_py())}, "
            f"expected {expected} (rows count from 1, the header left out)"
        ) from error


def _lists(text: pa.Array) -> pa.Array:
    inner = pc.utf8_trim(text, characters="[]() \t")
    parts = pc.split_pattern_regex(inner, r"\s*[,;\s]\s*")
    # An empty list splits into one empty text.
    parts = pc.if_else(pc.equal(inner, ""), pa.scalar([], pa.list_(pa.string())), parts)
    return pc.cast(parts, pa.list_(pa.float32()))


def _first_failing(parse: Callable[[pa.Array], pa.Array], text: pa.Array) -> int:
    """Index of the first cell that ``parse`` fails on, by bisection; ``parse(text)`` is known to fail."""
    low, high = 0, len(text)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            parse(text.slice(low, middle - low))
        except pa.ArrowInvalid:
            high = middle
        else:
            low = middle
    return low
