"""The elements of the pipeline: one poll of one topic partition, undecoded and decoded."""

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import pyarrow as pa


class Quiet(NamedTuple):
    """A time in which brokers have said repeatedly that a topic partition has nothing unread.

    Ages, not moments, so that they mean the same in another process.

    Attributes:
        since_s: Seconds ago when it began.
        until_s: Seconds ago when brokers last said so.
    """

    since_s: float
    until_s: float


@dataclass(frozen=True, slots=True)
class RawBatch:
    """Messages of one poll of one topic partition, undecoded.

    Attributes:
        first_offset: Begin of the poll: all offsets in [first_offset, end_offset) are messages of it or holes
            (transaction markers, compaction).
        end_offset: Offset to read next.
        high_watermark: End of the partition as the broker last said; end_offset == high_watermark: nothing unread.
        offsets: int64 offsets of the messages, ascending.
        values: The messages' values, large_binary; null for a tombstone.
        quiet: How long there has been nothing unread; None: there is something, or no broker answers.
        skipped: Offsets among them that retention deleted unread; set on a cluster, where the log's process counts them.
        stamped_us: The newest time that a broker gave to one of them, microseconds since the epoch; 0: none did.
        beside: Columns of the records beside the value, those that the topic's fields name: ``$timestamp`` (timestamp[ms]),
            ``$key`` and ``$headers.NAME`` (large_binary); one that is missing counts as null.
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
    beside: dict[str, pa.Array] = field(default_factory=dict)

    def __getitem__(self, span: slice) -> "RawBatch":
        """Some of the messages, with the same begin and end."""
        beside = {name: column[span] for name, column in self.beside.items()}
        return replace(self, offsets=self.offsets[span], values=self.values[span], beside=beside)


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """A decoded poll: accepted events and refused messages travel and are committed together.

    Attributes:
        events: Canonical events (``freshet_graph.schemas.events.event_schema``) with columns ``offset`` int64 and, from formats
            with several rows per message, ``row`` int32; in the order of the messages.
        rejects: ``freshet_graph.schemas.events.REJECT_SCHEMA``.
        tombstones: Null messages, and those without an event, skipped.
        converted: Events with an id that is a number although ids are text, or the reverse.
        quiet, skipped: See ``RawBatch``.
        labels: Of a label topic, which has no events: its labels (``freshet_graph.stream.decode.labels.taken_schema``) in the
            order of the messages.
    """

    topic: str
    partition: int
    first_offset: int
    end_offset: int
    high_watermark: int
    events: pa.RecordBatch
    rejects: pa.RecordBatch
    tombstones: int = 0
    converted: int = 0
    wall_time_us: int = field(default=0)
    quiet: Quiet | None = None
    skipped: int = 0
    labels: pa.RecordBatch | None = None
