"""The element of the pipeline: one poll of one topic partition, from the broker to the committed log."""

from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa


class Quiet(NamedTuple):
    """A time over which brokers have said, again and again, that a topic partition has nothing unread.

    Ages, not moments, so that they mean the same in another process.

    Attributes:
        since_s: Seconds ago when it began.
        until_s: Seconds ago when they last said so; nobody knows about the time after.
    """

    since_s: float
    until_s: float


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
        values: The messages' values side by side, large_binary; null for a tombstone.
        quiet: How long there has been nothing unread; None: there is something, or no broker answers.
        skipped: Offsets among them that retention took unread; counted on a cluster, where who reads counts nothing.
        stamped_us: The newest time that a broker gave to one of them, microseconds since the epoch; 0: none did.
    """

    topic: str
    partition: int
    first_offset: int
    end_offset: int
    high_watermark: int
    offsets: pa.Array
    values: pa.LargeBinaryArray
    quiet: Quiet | None = None
    skipped: int = 0
    stamped_us: int = 0


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """A decoded poll: accepted events and refused messages travel and are committed together.

    Attributes:
        events: Canonical events (``schemas.events.event_schema``) with one more column ``offset`` int64, and of
            Arrow messages ``row`` int32, in the order of the messages.
        rejects: ``schemas.events.REJECT_SCHEMA``.
        tombstones: Null messages, skipped.
        quiet: As in ``RawBatch``.
        skipped: As in ``RawBatch``.
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
    quiet: Quiet | None = None
    skipped: int = 0
