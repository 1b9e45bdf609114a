"""The element of the pipeline: one poll of one topic partition, from the broker to the committed log."""

from dataclasses import dataclass, field

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class RawBatch:
    """Messages of one poll of one topic partition, undecoded.

    Attributes:
        topic: Topic name.
        partition: Partition number.
        first_offset: Where the poll began: all offsets in [first_offset, end_offset) were offered or are
            holes (transaction markers, compaction).
        end_offset: Offset to read next.
        high_watermark: End of the partition as the broker last said; end_offset == high_watermark: nothing unread.
        offsets: int64 offsets of the messages, ascending.
        values: The messages' values; None for a tombstone.
    """

    topic: str
    partition: int
    first_offset: int
    end_offset: int
    high_watermark: int
    offsets: pa.Array
    values: list[bytes | None]


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """A decoded poll: accepted events and refused messages travel and are committed together.

    Attributes:
        events: Canonical events (``schemas.events.event_schema``) with one more column ``offset`` int64, in
            the order of the messages.
        rejects: ``schemas.events.REJECT_SCHEMA``.
        tombstones: Null messages, skipped.
    """

    topic: str
    partition: int
    first_offset: int
    end_offset: int
    high_watermark: int
    events: pa.RecordBatch
    rejects: pa.RecordBatch
    tombstones: int = 0
    wall_time_us: int = field(default=0)
