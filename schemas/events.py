"""The canonical event: one timestamped change of the graph, as Arrow columns.

``docs/semantics.md`` defines every column; this module has types and names only.
"""

from datetime import UTC, datetime, timedelta
from enum import IntEnum, StrEnum
from typing import Literal

import pyarrow as pa

IdKind = Literal["int", "string"]

MAX_ID_BYTES = 256
"""Longest external id, in UTF-8 bytes."""

US_PER_S = 1_000_000

EARLIEST_US = -62_135_596_800 * US_PER_S
"""Year 1: the earliest time that prints as a date."""
LATEST_US = 253_402_300_799 * US_PER_S
"""Year 9999; also keeps every sum of two times within int64."""
OUT_OF_RANGE_US = 2**63 - 1
"""Stands for any time that int64 microseconds cannot hold; outside every bound."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Op(IntEnum):
    """The change that an event makes to the graph (column ``op``, int8)."""

    DELETE = -1
    NODE = 0
    INSERT = 1


class Reason(StrEnum):
    """Reasons of refusals in any format, of a message or a row of it; a small set, fit for a metric label.

    A format adds its own (``freshet_graph.stream.decode.formats.interface.MessageFormat.reasons``).
    """

    MISSING_FIELD = "missing_field"
    WRONG_TYPE = "wrong_type"
    BAD_ID = "bad_id"
    ID_TOO_LONG = "id_too_long"
    UNKNOWN_OP = "unknown_op"
    NOT_FINITE = "not_finite"
    FEATURE_WIDTH = "feature_width"
    TIME_OUT_OF_BOUNDS = "time_out_of_bounds"
    TOO_LARGE = "too_large"
    DECODER_ERROR = "decoder_error"
    LATE = "late"


def show_time(t_us: int) -> str:
    """A time in a sentence: RFC 3339, or plain seconds if it has no date."""
    if EARLIEST_US <= t_us <= LATEST_US:
        return (_EPOCH + timedelta(microseconds=t_us)).isoformat()[: -len("+00:00")] + "Z"
    return f"{t_us / US_PER_S:.0f} s{' or further away' if abs(t_us) >= OUT_OF_RANGE_US else ''}"


def id_type(ids: IdKind) -> pa.DataType:
    """Arrow type of external node ids: int64, or UTF-8 string."""
    return pa.int64() if ids == "int" else pa.string()


def event_schema(ids: IdKind) -> pa.Schema:
    """Canonical schema of events on the wire (Arrow format), between stages and in the log.

    ``t`` is int64 microseconds since the epoch. ``dst`` is null for a node event. ``features`` replaces the values from
    ``feature_offset`` on, or is the full vector if that is null.
    """
    return pa.schema(
        [
            pa.field("op", pa.int8(), nullable=False),
            pa.field("src", id_type(ids), nullable=False),
            pa.field("dst", id_type(ids)),
            pa.field("t", pa.int64(), nullable=False),
            pa.field("weight", pa.float32(), nullable=False),
            pa.field("features", pa.list_(pa.float32())),
            pa.field("feature_offset", pa.int32()),
            pa.field("label", pa.int32()),
            pa.field("event_id", pa.string()),
        ]
    )


def log_event_schema(ids: IdKind) -> pa.Schema:
    """Schema of ``events.arrow`` in a sealed snapshot: the canonical event and its dense node ids.

    ``src_node`` and ``dst_node`` are int64, dense from 0 in order of first appearance in the log; −1 if ``dst`` is null.
    Readers need no id dictionary.
    """
    return pa.schema(
        [
            *event_schema(ids),
            pa.field("src_node", pa.int64(), nullable=False),
            pa.field("dst_node", pa.int64(), nullable=False),
        ]
    )


ARRIVAL_SCHEMA = pa.schema([pa.field("commit", pa.int32(), nullable=False)])
"""Schema of ``arrivals.arrow`` in a sealed snapshot: the commit that each of its events came with, in their order.

−1 is unknown: the event came before this release kept it.
"""


def label_schema(ids: IdKind) -> pa.Schema:
    """Schema of the labels of label topics, as readers of the log get them; ``docs/labels.md`` defines every column.

    ``t`` and ``visible_us`` are int64 microseconds since the epoch. ``event_id`` is null for a label of a node, ``node`` for one
    of an event. ``priority`` is 0 for a source that the topic does not rank.
    """
    return pa.schema(
        [
            pa.field("event_id", pa.string()),
            pa.field("node", id_type(ids)),
            pa.field("label", pa.int32(), nullable=False),
            pa.field("t", pa.int64(), nullable=False),
            pa.field("visible_us", pa.int64(), nullable=False),
            pa.field("commit", pa.int32(), nullable=False),
            pa.field("source", pa.string()),
            pa.field("priority", pa.int32(), nullable=False),
        ]
    )


def node_schema(ids: IdKind) -> pa.Schema:
    """Schema of ``nodes.arrow``: the ids first seen in a sealed snapshot, in dense order."""
    return pa.schema(
        [pa.field("node", pa.int64(), nullable=False), pa.field("id", id_type(ids), nullable=False)]
    )


REJECT_SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("row", pa.int32()),  # the row of an Arrow message; null: the whole message
        pa.field("reason", pa.string(), nullable=False),
        pa.field("sentence", pa.string(), nullable=False),
        pa.field("raw", pa.binary()),  # the message's first bytes
    ]
)
"""Schema of refused messages: the dead letters, and ``rejects/<n>.arrow`` in the log."""
