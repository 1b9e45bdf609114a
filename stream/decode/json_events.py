"""JSON messages of a whole poll to event columns."""

import numpy as np
import pyarrow as pa

from schemas.events import IdKind
from stream.decode.json_message import JsonRow, read_message
from stream.decode.reading import Refusal, RefusedError, Rows
from stream.decode.times import TimeUnit
from stream.decode.validate import Draft, Faults, draft_schema


def read_json(values: pa.LargeBinaryArray, ids: IdKind, unit: TimeUnit) -> tuple[list[Rows], list[Refusal]]:
    """Read messages of one event each.

    Returns:
        Rows in the order of the messages, and the messages that are no events.
    """
    rows: list[JsonRow] = []
    sources: list[int] = []
    refusals: list[Refusal] = []
    for i, value in enumerate(values.to_pylist()):
        try:
            rows.append(read_message(value, ids, unit))
            sources.append(i)
        except RefusedError as error:
            refusals.append(Refusal(i, None, error.reason, str(error)))
    draft = Draft(_batch(rows, ids), Faults.none(len(rows)))
    return [Rows(draft, np.array(sources, np.int64))], refusals


def _batch(rows: list[JsonRow], ids: IdKind) -> pa.RecordBatch:
    schema = draft_schema(ids)
    return pa.RecordBatch.from_arrays(
        [pa.array([getattr(row, field.name) for row in rows], field.type) for field in schema], schema=schema
    )
