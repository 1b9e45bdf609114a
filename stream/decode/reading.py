"""Results of the readers of messages: rows with their places, and refusals."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from freshet_graph.stream.arrays.kinds import Int64
from freshet_graph.stream.decode.validate import Draft, Faults


class RefusedError(Exception):
    """A message, or a column of a file, that cannot be read as events; the text is fit for users."""

    def __init__(self, reason: str, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Limits:
    """Most content of one message, or of what is decoded at a time.

    Attributes:
        rows: Rows of all its record batches together; also of its dictionaries.
        bytes: Bytes of the message, and of each column of text once its dictionary is written out.
    """

    rows: int
    bytes: int


Refusal = tuple[int, str, str]
"""A message that became no event: its index among those read, the reason, and a sentence."""

REFUSAL_SCHEMA = pa.schema(
    [
        pa.field("message", pa.int64()),
        pa.field("row", pa.int32()),
        pa.field("reason", pa.string()),
        pa.field("sentence", pa.string()),
        pa.field("raw", pa.binary()),
    ]
)
"""Many refusals: the message's index among those read, the row of one with several (null: the whole message), why, and the
content of the dead letter (null: the message itself)."""


def refusal_table(refusals: Sequence[Refusal]) -> pa.Table:
    """At least one refusal as a table (``REFUSAL_SCHEMA``)."""
    messages, reasons, sentences = zip(*refusals, strict=True)
    table = refused_alike(np.array(messages), "", sentences)
    return table.set_column(2, REFUSAL_SCHEMA.field("reason"), pa.array([*map(str, reasons)], pa.string()))


def refused_alike(messages: Int64, reason: str, sentences: str | Sequence[str]) -> pa.Table:
    """Whole messages refused for one reason, with one sentence or one each."""
    count = len(messages)
    words = pa.repeat(sentences, count) if isinstance(sentences, str) else pa.array(sentences, pa.string())
    arrays = [
        pa.array(messages),
        pa.nulls(count, pa.int32()),
        pa.repeat(str(reason), count),
        words,
        pa.nulls(count, pa.binary()),
    ]
    return pa.Table.from_arrays(arrays, schema=REFUSAL_SCHEMA)


def renumbered(refused: pa.Table, numbers: Callable[[Int64], Int64]) -> pa.Table:
    """Refusals with other indices of their messages."""
    return refused.set_column(
        0, REFUSAL_SCHEMA.field("message"), pa.array(numbers(refused["message"].to_numpy()))
    )


@dataclass(frozen=True, slots=True)
class DecodedRows:
    """Rows read together, in the order of the messages.

    Attributes:
        draft: The rows.
        messages: int64, the index of each row's message among those read.
        rows: int64, the row within its message; None: a message is one row.
        converted: Rows with an id that is a number although ids are text, or the reverse, as far as messages were read.
    """

    draft: Draft
    messages: Int64
    rows: Int64 | None = None
    converted: int = 0


@dataclass(frozen=True, slots=True)
class Read:
    """Messages of a poll that were read.

    Attributes:
        rows: Runs of rows in the order of the messages.
        refused: Messages and rows that became no event (``REFUSAL_SCHEMA``).
        looked_at: Number of messages read; the others are left for the next call.
        empty: int64, the indices of messages that hold no event, such as an empty array.
    """

    rows: list[DecodedRows]
    refused: list[pa.Table]
    looked_at: int
    empty: Int64 = field(default_factory=lambda: np.empty(0, np.int64))


def unanswered(rows: Sequence[DecodedRows], refused: Sequence[pa.Table], looked_at: int) -> Int64:
    """Messages (int64) that have neither rows nor a refusal: their lists are empty."""
    named = [one.messages for one in rows] + [table["message"].to_numpy() for table in refused]
    return np.setdiff1d(np.arange(looked_at), np.concatenate([*named, np.empty(0, np.int64)]))


def in_order(parts: Sequence[DecodedRows]) -> list[DecodedRows]:
    """Rows of several passes, in the order of the messages and of the rows within one.

    The parts, all with ``rows`` or all without, must each be in that order. They are returned as they are if each begins
    after the one before it ends, else as one.
    """
    parts = [part for part in parts if len(part.messages)]
    if all(before.messages[-1] < after.messages[0] for before, after in pairwise(parts)):
        return parts
    messages = np.concatenate([part.messages for part in parts])
    listed = [part.rows for part in parts if part.rows is not None]
    rows = np.concatenate(listed) if listed else None
    order = np.lexsort((messages,) if rows is None else (rows, messages))
    faults = Faults.none(len(order))
    first = 0
    for part in parts:
        part_faults, last = part.draft.faults, first + len(part.messages)
        given = part_faults.code > 0
        faults.code[first:last][given] = part_faults.code[given] + len(faults.kinds)
        for reason, sentence in part_faults.kinds:
            faults.kinds.append((reason, _moved(sentence, order, first) if callable(sentence) else sentence))
        first = last
    faults.code = faults.code[order]
    batches = [part.draft.batch for part in parts]
    (together,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
    draft = Draft(together.take(pa.array(order)), faults)
    converted = sum(part.converted for part in parts)
    return [DecodedRows(draft, messages[order], None if rows is None else rows[order], converted)]


def _moved(sentence: Callable[[int], str], order: npt.NDArray[np.intp], first: int) -> Callable[[int], str]:
    """A sentence looked up by the row's new place."""
    return lambda row: sentence(int(order[row]) - first)


@dataclass(frozen=True, slots=True)
class FileRows:
    """Rows of a file.

    Attributes:
        batch: The columns of events, of any types.
        faults: Rows that are refused already, because a cell could not be read.
        texts: Such cells as in the file, by column; null elsewhere, as they are in ``batch``.
    """

    batch: pa.RecordBatch
    faults: Faults
    texts: Mapping[str, pa.Array] = field(default_factory=dict)
