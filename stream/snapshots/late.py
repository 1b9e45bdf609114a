"""Late events under the policy ``dead-letter``: refused like any other message, with a sentence that says why."""

import pyarrow as pa

from schemas.events import REJECT_SCHEMA, Reason
from stream.decode.encode import encode_json

RAW_LIMIT_BYTES = 4096
"""A dead letter keeps this much of the event."""


def late_rejects(events: pa.Table, topic: str, partition: int, sealed_through: int) -> pa.Table:
    """Rejects for events whose snapshot is sealed.

    Args:
        events: Canonical events with the columns ``offset`` and ``tau`` (the event's own τ); of Arrow messages also
            ``row``.
        topic: Where they came from.
        partition: Where they came from.
        sealed_through: Last τ that is closed.

    Returns:
        ``REJECT_SCHEMA``, a row an event; ``raw`` is the event as JSON with ``t`` in microseconds, because the
        message may hold others that were accepted.
    """
    rows = events.num_rows
    sentences = [
        f"its snapshot {tau} is sealed (all up to {sealed_through} are); raw is the event, t in microseconds"
        for tau in events["tau"].to_pylist()
    ]
    raw = [message[:RAW_LIMIT_BYTES] for message in encode_json(events, time_unit="us")]
    return pa.table(
        {
            "topic": pa.repeat(topic, rows),
            "partition": pa.repeat(pa.scalar(partition, pa.int32()), rows),
            "offset": events["offset"],
            "row": events["row"] if "row" in events.column_names else pa.nulls(rows, pa.int32()),
            "reason": pa.repeat(Reason.LATE.value, rows),
            "sentence": pa.array(sentences, pa.string()),
            "raw": pa.array(raw, pa.binary()),
        },
        schema=REJECT_SCHEMA,
    )
