"""Arrow messages of a whole poll to event columns: each an IPC stream with a schema and record batches."""

from collections.abc import Sequence
from itertools import groupby, pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from schemas.events import MAX_ID_BYTES, IdKind, Reason, event_schema
from stream.decode.arrow_fields import mapped
from stream.decode.arrow_frames import Limits, inspect_frames
from stream.decode.columns import canonical
from stream.decode.mapping import NATIVE, Mapping
from stream.decode.reading import Refusal, RefusedError, Rows
from stream.decode.times import TimeUnit

_LONGEST_WORD = 4 * (MAX_ID_BYTES + 1)
"""Bytes that are left of a longer word of a dictionary (``columns`` cuts it after so many characters)."""

_KNOWN = frozenset(event_schema("int").names)
# What corrupt schemas and bodies raise has many types; all of them mean the same.
_CORRUPT = (pa.ArrowException, ValueError, TypeError, LookupError, OSError, MemoryError, OverflowError)

Message = tuple[int, pa.RecordBatch, str]
"""A message's index, all its rows, and a text that is equal for messages that may be read together."""


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
    """Read messages of many events each; what has no fault of its own goes through.

    Neighbouring messages of one schema are read together: the cost is theirs, not each message's.

    Args:
        values: The messages.
        ids: Kind of node ids of the graph.
        unit: The topic's time unit, where times are numbers.
        limits: What one message may hold.
        mapping: Where the topic's messages keep the fields.
        at_once: What may be read together: rows, and bytes of text that dictionaries write out. Messages from the one
            that would be beyond it are left, but never the first. None: all are read.

    Returns:
        Runs of rows in the order of the messages, the messages that are no Arrow stream of events, and how many of the
        messages were looked at.
    """
    names = frozenset(keys[0] for _, keys in mapping.paths) if mapping.mapped else _KNOWN
    messages: list[Message] = []
    refusals: list[Refusal] = []
    rows = text_bytes = 0
    looked_at = len(values)
    for i, value in enumerate(values):
        try:
            batch, company, written_bytes = _open(value, limits, names)
        except RefusedError as error:
            refusals.append(Refusal(i, None, error.reason, str(error)))
            continue
        rows, text_bytes = rows + batch.num_rows, text_bytes + written_bytes
        if at_once is not None and messages and (rows > at_once.rows or text_bytes > at_once.bytes):
            looked_at = i
            break
        messages.append((i, batch, company))
    read: list[Rows] = []
    for _, run in groupby(messages, key=lambda message: message[2] or message[0]):
        _read_run(list(run), ids, unit, mapping, read, refusals)
    return read, refusals, looked_at


def _open(
    value: bytes | memoryview, limits: Limits, names: frozenset[str]
) -> tuple[pa.RecordBatch, str, int]:
    """The known columns of one message's batches, checked down to the last offset, its company and ``_check_text``."""
    inspect_frames(value, limits)
    try:
        with pa.ipc.open_stream(pa.py_buffer(value)) as reader:
            known = [i for i, name in enumerate(reader.schema.names) if name in names]
            schema = pa.schema([reader.schema.field(i) for i in known])
            batches = [batch.select(known) for batch in reader]
        if not batches:
            raise RefusedError(Reason.NOT_ARROW, "an Arrow stream without a record batch")
        if not any(batch.num_rows for batch in batches):
            raise RefusedError(Reason.NOT_ARROW, "an Arrow stream without a row")
        written_bytes = 0
        for batch in batches:
            batch.validate(full=True)
            written_bytes += _check_text(batch, limits)
        # Each message brings its own dictionaries: it is read alone.
        company = "" if any("dictionary<" in str(field.type) for field in schema) else str(schema)
        if len(batches) == 1:
            return batches[0], company, written_bytes
        together = pa.Table.from_batches(batches, schema).combine_chunks().to_batches()
        return together[0] if together else batches[0], company, written_bytes
    except _CORRUPT as error:
        raise _corrupt(error) from error


def _check_text(batch: pa.RecordBatch, limits: Limits) -> int:
    """Bytes, at most, that dictionaries of text are long once they are written out, over all columns.

    Raises:
        RefusedError: A column alone is too long: few long words that many rows name, a thousand times the message.
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
    except RefusedError as error:  # a fault of the schema, which they share
        refusals += [Refusal(i, None, error.reason, str(error)) for i, *_ in run]
    except _CORRUPT as error:
        if len(run) == 1:
            refusals.append(Refusal(run[0][0], None, Reason.NOT_ARROW, str(_corrupt(error))))
            return
        for message in run:
            _read_run([message], ids, unit, mapping, read, refusals)


def _rows(run: list[Message], ids: IdKind, unit: TimeUnit, mapping: Mapping) -> list[Rows]:
    lengths = [batch.num_rows for _, batch, _ in run]
    messages = np.repeat([i for i, *_ in run], lengths)
    rows = np.concatenate([np.arange(length) for length in lengths])
    together: list[Rows] = []
    first = 0
    # More than one batch is left only where a column passes 2 GiB.
    for batch in pa.Table.from_batches([batch for _, batch, _ in run]).combine_chunks().to_batches():
        span = slice(first, first + batch.num_rows)
        found = batch if mapping == NATIVE else mapped(batch, mapping)
        together.append(Rows(canonical(found, ids, unit, shown=mapping.column), messages[span], rows[span]))
        first += batch.num_rows
    return together


def _corrupt(error: BaseException) -> RefusedError:
    text = " ".join(str(error).split())[:200]
    return RefusedError(Reason.NOT_ARROW, f"not an Arrow IPC stream: {text}")
