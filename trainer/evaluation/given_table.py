"""A table in a file that the command line names: read with checked columns, and a sentence for every fault."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from schemas.errors import one_line
from stream.service.failure import Failure


def read_given(
    path: Path, option: str, required: Sequence[str], optional: Sequence[str] = (), *, csv: bool = False
) -> pa.Table:
    """Read the named columns; others are ignored.

    Args:
        path: Parquet.
        option: The option of the command line, such as ``--scores``, which begins every sentence.
        required: Columns that must exist.
        optional: Columns that may exist.
        csv: Whether a file that ends in ``.csv`` is accepted too.

    Raises:
        Failure: It cannot be read, lacks a required column, or has a column twice.
    """
    named = f"{option} {path}"
    try:
        if csv and path.suffix.lower() == ".csv":
            table = pyarrow.csv.read_csv(path)
            return table.select(_wanted(named, table.column_names, required, optional))
        with pq.ParquetFile(path) as file:
            return file.read(columns=_wanted(named, file.schema_arrow.names, required, optional))
    except (OSError, pa.ArrowException) as error:
        raise Failure(f"{named} cannot be read: {one_line(error)}") from None


def whole_numbers(table: pa.Table, name: str, option: str) -> pa.ChunkedArray:
    """A column as int64; ``option``, with the file, begins every sentence.

    Raises:
        Failure: A value is missing, or is not a whole number.
    """
    column = table[name]
    try:
        found = column.cast(pa.int64())
    except pa.ArrowException:
        raise Failure(f"{option}: column {name} is {column.type}, expected whole numbers") from None
    if found.null_count:
        raise Failure(f"{option}: column {name} has {found.null_count} rows without a number")
    return found


def _wanted(named: str, there: list[str], required: Sequence[str], optional: Sequence[str]) -> list[str]:
    missing = [name for name in required if name not in there]
    if missing:
        raise Failure(f"{named} has no column {', '.join(missing)}. docs/training.md lists the columns")
    names = [*required, *(name for name in optional if name in there)]
    twice = [name for name in names if there.count(name) > 1]
    if twice:
        raise Failure(f"{named} has column {twice[0]} more than once")
    return names
