"""Arrow messages of a whole poll to event columns: each an IPC stream with a schema and record batches."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from schemas.events import IdKind, Reason
from stream.decode.arrow_frames import inspect_frames
from stream.decode.columns import canonical
from stream.decode.reading import Refusal, RefusedError, Rows
from stream.decode.times import TimeUnit


@dataclass(slots=True)
class _Run:
    """Neighbouring batches of one schema, checked together: the cost is a run's, not a message's."""

    batches: list[pa.RecordBatch] = field(default_factory=list)
    messages: list[int] = field(default_factory=list)
    first_rows: list[int] = field(default_factory=list)


def read_arrow(values: Sequence[bytes], ids: IdKind, unit: TimeUnit) -> tuple[list[Rows], list[Refusal]]:
    """Read messages of many events each.

    Returns:
        Runs of rows in the order of the messages, and the messages that are no Arrow stream of events.
    """
    runs: list[_Run] = []
    refusals: list[Refusal] = []
    for i, value in enumerate(values):
        try:
            batches = _open(value)
        except RefusedError as error:
            refusals.append(Refusal(i, None, error.reason, str(error)))
            continue
        first_row = 0
        for batch in batches:
            if not runs or not _stand_together(runs[-1].batches[0].schema, batch.schema):
                runs.append(_Run())
            runs[-1].batches.append(batch)
            runs[-1].messages.append(i)
            runs[-1].first_rows.append(first_row)
            first_row += batch.num_rows
    read: list[Rows] = []
    for run in runs:
        try:
            read += _rows(run, ids, unit)
        except RefusedError as error:
            refusals += [Refusal(i, None, error.reason, str(error)) for i in dict.fromkeys(run.messages)]
    return read, refusals


def _open(value: bytes) -> list[pa.RecordBatch]:
    inspect_frames(value)
    try:
        with pa.ipc.open_stream(pa.py_buffer(value)) as reader:
            batches = list(reader)
        for batch in batches:
            batch.validate(full=True)
    # What a corrupt schema or body raises has many types; all of them mean the same.
    except (
        pa.ArrowException,
        ValueError,
        TypeError,
        LookupError,
        OSError,
        MemoryError,
        OverflowError,
    ) as error:
        text = " ".join(str(error).split())[:200]
        raise RefusedError(Reason.NOT_ARROW, f"not an Arrow IPC stream: {text}") from error
    return batches


def _stand_together(one: pa.Schema, other: pa.Schema) -> bool:
    # Each message brings its own dictionaries, so such columns are decoded message by message.
    return one.equals(other) and not any(pt.is_dictionary(field.type) for field in one)


def _rows(run: _Run, ids: IdKind, unit: TimeUnit) -> list[Rows]:
    lengths = np.array([batch.num_rows for batch in run.batches], np.int64)
    total = int(lengths.sum())
    starts = np.cumsum(lengths) - lengths
    messages = np.repeat(np.array(run.messages, np.int64), lengths)
    rows = np.arange(total) + np.repeat(np.array(run.first_rows, np.int64) - starts, lengths)
    together: list[Rows] = []
    first = 0
    # More than one batch is left only where a column passes 2 GiB.
    for batch in pa.Table.from_batches(run.batches).combine_chunks().to_batches():
        span = slice(first, first + batch.num_rows)
        together.append(Rows(canonical(batch, ids, unit), messages[span], rows[span]))
        first += batch.num_rows
    return together
