"""Exports as Kafka messages, with keys by which consumers recognise repetitions."""

import json
import math
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from schemas.events import US_PER_S
from schemas.exports import ExportCommit, ExportKind
from stream.decode.encode import encode_arrow, ipc_stream

ROWS_AT_ONCE = 4096
"""Rows turned into Python objects at a time."""

SCORES = ("score", "negative_score")


def arrow_messages(
    name: str, kind: ExportKind, commit: ExportCommit, table: pa.Table
) -> Iterator[tuple[bytes, bytes]]:
    """Arrow IPC streams of up to 4,096 rows and 900 kB each; the key is ``name/kind/export number/part``.

    The schema's metadata has ``export``, ``tau``, ``model`` and ``rows`` of the whole export. An export without rows is
    one message without rows.
    """
    said = {"export": commit.number, "tau": commit.tau, "model": commit.model, "rows": len(table)}
    plain = _plain(table).replace_schema_metadata({key: str(value) for key, value in said.items()})
    for part, value in enumerate(encode_arrow(plain) if len(plain) else [ipc_stream(plain).to_pybytes()]):
        yield f"{name}/{kind}/{commit.number}/{part}".encode(), value


def json_messages(
    name: str, kind: ExportKind, commit: ExportCommit, table: pa.Table
) -> Iterator[tuple[bytes, bytes]]:
    """One JSON object per row.

    The key of an embedding is the node's id, so a compacted topic keeps each node's newest. The key of a score is the
    event's id, or ``tau/row`` without one. ``export`` and the key identify a message: the same pair twice is a
    repetition. ``t`` is in seconds; a score that is absent or not finite is null.
    """
    plain = _plain(table)
    plain = plain.set_column(plain.schema.get_field_index("t"), "t", pc.cast(plain["t"], pa.int64()))
    for batch in plain.to_batches(ROWS_AT_ONCE):
        for row in batch.to_pylist():
            row["t"] /= US_PER_S
            row |= {column: None for column in SCORES if column in row and not _is_finite(row[column])}
            if kind == "embeddings":
                del row["node"]
                key = str(row["id"])
            else:
                key = row["event_id"] if row["event_id"] is not None else f"{commit.tau}/{row['row']}"
            said: dict[str, Any] = {**row, "tau": commit.tau, "export": commit.number, "exports": name}
            yield key.encode(), json.dumps(said, ensure_ascii=False, allow_nan=False).encode()


MESSAGES = {"json": json_messages, "arrow": arrow_messages}
"""By the format of a publication."""


def _is_finite(score: float | None) -> bool:
    return score is not None and math.isfinite(score)


def _plain(table: pa.Table) -> pa.Table:
    """The table with its dictionary written out, so that message sizes follow from rows."""
    at = table.schema.get_field_index("model_version")
    return table.set_column(at, "model_version", table["model_version"].cast(pa.string()))
