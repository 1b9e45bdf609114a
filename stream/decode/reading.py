"""What readers of messages hand on: rows with their places, and what became no event."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from schemas.events import Reason
from stream.decode.validate import Draft, Faults

Int64Array = npt.NDArray[np.int64]


class RefusedError(Exception):
    """A message, or a file's column, that cannot be read as events; the text is fit for users."""

    def __init__(self, reason: Reason, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Refusal:
    """A message of a poll, or one row of it, that became no event.

    Attributes:
        message: Index of the message among those read.
        row: Row of an Arrow message; None: the whole message.
        raw: What stands for it in the dead letters; None: the message itself.
    """

    message: int
    row: int | None
    reason: Reason
    sentence: str
    raw: bytes | None = None


REFUSAL_SCHEMA = pa.schema(
    [
        pa.field("message", pa.int64()),
        pa.field("row", pa.int32()),
        pa.field("reason", pa.string()),
        pa.field("sentence", pa.string()),
        pa.field("raw", pa.binary()),
    ]
)
"""Many refusals; columns as the attributes of ``Refusal``."""


def refusal_table(refusals: Iterable[Refusal]) -> pa.Table:
    """Refusals as a table."""
    listed = [(r.message, r.row, r.reason.value, r.sentence, r.raw) for r in refusals]
    columns = zip(*listed, strict=True) if listed else [()] * len(REFUSAL_SCHEMA)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, REFUSAL_SCHEMA, strict=True)]
    return pa.Table.from_arrays(arrays, schema=REFUSAL_SCHEMA)


def refused_alike(messages: Int64Array, reason: Reason, sentences: str | Sequence[str]) -> pa.Table:
    """Whole messages that are refused for one reason, with one sentence or one each."""
    count = len(messages)
    words = pa.repeat(sentences, count) if isinstance(sentences, str) else pa.array(sentences, pa.string())
    arrays = [
        pa.array(messages),
        pa.nulls(count, pa.int32()),
        pa.repeat(reason.value, count),
        words,
        pa.nulls(count, pa.binary()),
    ]
    return pa.Table.from_arrays(arrays, schema=REFUSAL_SCHEMA)


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows that were read together, in the order of the messages.

    Attributes:
        draft: The rows.
        messages: int64, the index of each row's message among those read.
        rows: int64, the row within its message; None: a message is one row.
    """

    draft: Draft
    messages: Int64Array
    rows: Int64Array | None = None


@dataclass(frozen=True, slots=True)
class FileRows:
    """Rows of a file as they were read.

    Attributes:
        batch: The columns that events have, of whatever types.
        faults: Rows that are refused already, because a cell could not be read.
        texts: Such cells as they stand in the file, by column; null elsewhere, as they are in ``batch``.
    """

    batch: pa.RecordBatch
    faults: Faults
    texts: Mapping[str, pa.Array] = field(default_factory=dict)
