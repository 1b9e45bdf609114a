"""Arrow messages of a whole poll to event columns; each is an IPC stream with a schema and record batches."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from schemas.errors import one_line
from schemas.events import MAX_ID_BYTES, IdKind, Reason, event_schema
from stream.decode.arrow_fields import mapped
from stream.decode.arrow_frames import NOT_ARROW, inspect_frames
from stream.decode.columns import NULL_KINDS, canonical, nulls
from stream.decode.mapping import NATIVE, Mapping
from stream.decode.reading import Limits, Refusal, RefusedError, Rows
from stream.decode.times import TimeUnit

_LONGEST_WORD = 4 * (MAX_ID_BYTES + 1)
"""Most bytes of a dictionary's word: ``columns`` cuts longer ones after so many characters."""

_KNOWN = frozenset(event_schema("int").names)
# What corrupt schemas and bodies raise has many types; all of them mean the same.
_CORRUPT = (pa.ArrowException, ValueError, TypeError, LookupError, OSError, MemoryError, OverflowError)


@dataclass(frozen=True, slots=True)
class Known:
    """The wanted columns of a message's schema.

    Attributes:
        whole: The schema.
        places: Indices of the columns.
        schema: The columns.
        alone: Whether messages are read one by one, because each has its own dictionaries.
    """

    whole: pa.Schema
    places: list[int]
    schema: pa.Schema
    alone: bool

    @classmethod
    def of(cls, whole: pa.Schema, names: frozenset[str]) -> Self:
        """The columns of some names."""
        places = [i for i, name in enumerate(whole.names) if name in names]
        schema = pa.schema([whole.field(i) for i in places])
        return cls(whole, places, schema, any("dictionary<" in str(field.type) for field in schema))


class Opener:
    """Opens the messages of a poll, and reuses what it knows of a schema for the next message."""

    def __init__(self, names: frozenset[str], limits: Limits) -> None:
        self._names, self._limits = names, limits
        self._known: Known | None = None

    def open(self, value: bytes | memoryview) -> tuple[pa.RecordBatch, Known, int]:
        """The known columns of one message, validated to the last offset, and the bytes of ``_check_text``.

        Raises:
            RefusedError: It is no Arrow stream of rows, or is too large.
        """
        inspect_frames(value, self._limits)
        try:
            with pa.ipc.open_stream(pa.py_buffer(value)) as reader:
                known = self._of(reader.schema)
                batches = [batch.select(known.places) for batch in reader]
            if not batches:
                raise RefusedError(NOT_ARROW, "an Arrow stream without a record batch")
            if not any(batch.num_rows for batch in batches):
                raise RefusedError(NOT_ARROW, "an Arrow stream without a row")
            written_bytes = 0
            for batch in batches:
                batch.validate(full=True)
                written_bytes += _check_text(batch, self._limits) if known.alone else 0
            if len(batches) == 1:
                return batches[0], known, written_bytes
            together = pa.Table.from_batches(batches, known.schema).combine_chunks().to_batches()
            return together[0] if together else batches[0], known, written_bytes
        except _CORRUPT as error:
            raise _corrupt(error) from error

    def _of(self, schema: pa.Schema) -> Known:
        if self._known is None or not schema.equals(self._known.whole, check_metadata=True):
            self._known = Known.of(schema, self._names)
        return self._known


Message = tuple[int, pa.RecordBatch, Known]
"""A message's index and all its rows."""


def views(values: pa.LargeBinaryArray) -> list[memoryview]:
    """Each message in place, without a copy; there must be no nulls."""
    _, ends, data = values.buffers()
    if len(values) == 0 or data is None:
        return [memoryview(b"")] * len(values)
    bounds = np.frombuffer(ends, np.int64)[values.offset : values.offset + len(values) + 1].tolist()
    whole = memoryview(data)
    return [whole[start:end] for start, end in pairwise(bounds)]


def read_arrow(
    values: Sequence[bytes | memoryview],
    ids: IdKind,
    unit: TimeUnit,
    limits: Limits,
    mapping: Mapping = NATIVE,
    *,
    at_once: Limits | None = None,
) -> tuple[list[Rows], list[Refusal], int]:
    """Read messages of many events each; a fault of one message refuses only that one.

    Neighbouring messages of one schema are read together, so that the cost is theirs and not each message's.

    Args:
        values: The messages.
        ids: Kind of node ids of the graph.
        unit: The topic's time unit, for numeric times.
        limits: Of one message.
        mapping: Places of the fields in the topic's messages.
        at_once: Rows read together, and bytes of text that dictionaries write out. Messages from the one beyond it are
            left, but never the first. None: all are read.

    Returns:
        Runs of rows in the order of the messages, the messages that are no Arrow stream of events, and the number of
        messages looked at.
    """
    names = frozenset(keys[0] for _, keys in mapping.paths) if mapping.mapped else _KNOWN
    messages: list[Message] = []
    refusals: list[Refusal] = []
    rows = text_bytes = 0
    looked_at = len(values)
    opener = Opener(names, limits)
    for i, value in enumerate(values):
        try:
            batch, known, written_bytes = opener.open(value)
        except RefusedError as error:
            refusals.append(Refusal(i, None, error.reason, str(error)))
            continue
        rows, text_bytes = rows + batch.num_rows, text_bytes + written_bytes
        if at_once is not None and messages and (rows > at_once.rows or text_bytes > at_once.bytes):
            looked_at = i
            break
        messages.append((i, batch, known))
    read: list[Rows] = []
    for _, run in groupby(messages, key=_company):
        _read_run(list(run), ids, unit, mapping, read, refusals)
    return read, refusals, looked_at


def _check_text(batch: pa.RecordBatch, limits: Limits) -> int:
    """Upper bound of the bytes of text columns once their dictionaries are written out.

    Raises:
        RefusedError: One column is too long: a few long words named by many rows can be a thousand times the message.
    """
    written_bytes = 0
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if not pt.is_dictionary(column.type) or not len(column) or not len(column.dictionary):
            continue
        if not (pt.is_string(column.type.value_type) or pt.is_large_string(column.type.value_type)):
            continue
        lengths = pc.min_element_wise(pc.binary_length(column.dictionary), _LONGEST_WORD)
        text_bytes = (pc.max(lengths).as_py() or 0) * len(column)
        if text_bytes > limits.bytes:
            text_bytes = pc.sum(lengths.take(column.indices)).as_py() or 0
        if text_bytes > limits.bytes:
            raise RefusedError(
                Reason.TOO_LARGE,
                f"column {name} written out is longer than config key kafka.max_message_bytes, {limits.bytes}",
            )
        written_bytes += text_bytes
    return written_bytes


def _company(message: Message) -> tuple[int, pa.Schema | None]:
    """Equal for messages that may be read together."""
    i, _, known = message
    return (i, None) if known.alone else (-1, known.schema)


def _read_run(
    run: list[Message],
    ids: IdKind,
    unit: TimeUnit,
    mapping: Mapping,
    read: list[Rows],
    refusals: list[Refusal],
) -> None:
    try:
        read += _rows(run, ids, unit, mapping)
    except RefusedError as error:  # a fault of their schema
        refusals += [Refusal(i, None, error.reason, str(error)) for i, *_ in run]
    except _CORRUPT as error:
        if len(run) == 1:
            refusals.append(Refusal(run[0][0], None, NOT_ARROW, str(_corrupt(error))))
            return
        for message in run:
            _read_run([message], ids, unit, mapping, read, refusals)


def _rows(run: list[Message], ids: IdKind, unit: TimeUnit, mapping: Mapping) -> list[Rows]:
    lengths = [batch.num_rows for _, batch, _ in run]
    messages = np.repeat([i for i, *_ in run], lengths)
    rows = np.concatenate([np.arange(length) for length in lengths])
    together: list[Rows] = []
    first = 0
    # More than one batch is left only if a column exceeds 2 GiB.
    for batch in one_table([batch for _, batch, _ in run]).to_batches():
        span = slice(first, first + batch.num_rows)
        found = batch if mapping == NATIVE else mapped(batch, mapping)
        draft = canonical(found, ids, unit, shown=mapping.column, time_texts=mapping.time_texts)
        together.append(Rows(draft, messages[span], rows[span]))
        first += batch.num_rows
    return together


def one_table(batches: list[pa.RecordBatch]) -> pa.Table:
    """The rows of batches of one schema; columns without a value are not copied."""
    whole = pa.Table.from_batches(batches)
    columns = [
        nulls(column.type, len(column))
        if column.null_count == len(column) and column.type in NULL_KINDS
        else column.combine_chunks()
        for column in whole.columns
    ]
    return pa.table(columns, schema=whole.schema)


def _corrupt(error: BaseException) -> RefusedError:
    return RefusedError(NOT_ARROW, f"not an Arrow IPC stream: {one_line(error)[:200]}")
