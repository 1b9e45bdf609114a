"""One poll of one topic partition: messages in, canonical events and refusals out."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from schemas.config import StreamConfig, Topic
from schemas.events import REJECT_SCHEMA, Reason, event_schema
from stream.arrays.kinds import Int64
from stream.decode.formats.interface import create_format
from stream.decode.reading import REFUSAL_SCHEMA, Limits, Rows, refused_alike
from stream.decode.row_text import row_texts
from stream.decode.rules import Rules
from stream.decode.validate import check
from stream.microbatch import MicroBatch, RawBatch

RAW_LIMIT_BYTES = 4096
"""Bytes of the message, or of the row as JSON, in a dead letter."""

ROWS_AT_ONCE = 1 << 18
"""Most rows of several messages decoded together: if all were refused, their sentences take a quarter of a GiB."""


def wall_time_us() -> int:
    """Now, microseconds since the epoch."""
    return time.time_ns() // 1000


class Decoder:
    """Decodes the polls of one topic in whole batches; wrong messages are named one by one.

    Every message becomes events, a reject or a counted tombstone; no content raises.

    Args:
        topic: Its format, fields and time unit.
        config: Kind of ids, feature widths, time bounds and the message limit.
        now_us: The wall clock that bounds event times, microseconds since the epoch.

    Attributes:
        config: See there.

    Raises:
        Failure: The format is unknown, or cannot read such a topic.
    """

    def __init__(
        self, topic: Topic, config: StreamConfig, *, now_us: Callable[[], int] = wall_time_us
    ) -> None:
        self.config = config
        self._now_us = now_us
        self._format = create_format(topic, config.kafka, config.ids)
        self._limits = self._format.limits
        self._schema = event_schema(config.ids).append(pa.field("offset", pa.int64(), nullable=False))
        if self._format.many:
            self._schema = self._schema.append(pa.field("row", pa.int32(), nullable=False))

    def prepare(self, raw: RawBatch) -> None:
        """Fetch what decoding a poll needs from elsewhere, such as schemas.

        Raises:
            UnavailableError: It cannot be had now. Keep the poll and try again.
        """
        self._format.prepare(raw.values)

    def batches(self, raw: RawBatch) -> Iterator[MicroBatch]:
        """Decode one poll, at most one message's limits at a time.

        Few bytes may stand for many: rows of small numbers, dictionaries of text. Messages that together have more than
        ``ROWS_AT_ONCE`` (or ``kafka.max_message_rows``) or, written out, ``kafka.max_message_bytes`` of text become several
        batches. Each is made when the one before it is taken.

        Yields:
            Batches of neighbouring offsets, together those of the poll; at least one.
        """
        first, limits = 0, self._limits
        at_once = Limits(min(limits.rows, ROWS_AT_ONCE), limits.bytes)
        while True:
            batch, done = self._decoded(raw, first, at_once)
            yield batch
            if done == len(raw.values):
                return
            first = done

    def decode(self, raw: RawBatch) -> MicroBatch:
        """Decode one poll at once, whatever its size; events and rejects are in the order of the messages."""
        return self._decoded(raw, 0, None)[0]

    def _decoded(self, whole: RawBatch, first: int, at_once: Limits | None) -> tuple[MicroBatch, int]:
        """Decode a poll from its ``first`` message; also returns the index of the next message."""
        raw = (
            whole
            if first == 0
            else replace(
                whole,
                first_offset=whole.offsets[first].as_py(),
                offsets=whole.offsets[first:],
                values=whole.values[first:],
            )
        )
        now_us = self._now_us()
        offsets = raw.offsets.to_numpy(zero_copy_only=False)
        lengths = pc.binary_length(raw.values).fill_null(-1).to_numpy(zero_copy_only=False)
        limit = self.config.kafka.max_message_bytes
        places = np.flatnonzero((lengths >= 0) & (lengths <= limit))
        wanted = raw.values if len(places) == len(lengths) else raw.values.take(pa.array(places))
        read = self._format.read(wanted, at_once)
        done = len(lengths) if read.looked_at == len(places) else int(places[read.looked_at])
        large = np.flatnonzero(lengths[:done] > limit)
        sentences = [f"{n} bytes, but config key kafka.max_message_bytes is {limit}" for n in lengths[large]]
        refusals = [refused_alike(large, Reason.TOO_LARGE, sentences)] if len(large) else []
        rules = Rules.of(self.config, now_us)
        refusals += [_placed(table, places) for table in read.refused]
        accepted = []
        for rows in read.rows:
            check(rows.draft, rules, self._format.mapping.column)
            refusals += _refused_rows(rows, places)
            accepting = rows.draft.faults.accepted
            messages = rows.messages if accepting.all() else rows.messages[accepting]
            columns = [*rows.draft.events().columns, pa.array(offsets[places][messages])]
            if rows.rows is not None:
                columns.append(pa.array(rows.rows[accepting], pa.int32()))
            accepted.append(pa.RecordBatch.from_arrays(columns, schema=self._schema))
        is_last = done == len(lengths)
        batch = MicroBatch(
            topic=raw.topic,
            partition=raw.partition,
            first_offset=raw.first_offset,
            end_offset=raw.end_offset if is_last else int(offsets[done]),
            high_watermark=raw.high_watermark,
            events=_joined(accepted, self._schema),
            rejects=_rejects(raw, offsets, refusals),
            tombstones=int(np.count_nonzero(lengths[:done] < 0)),
            wall_time_us=now_us,
            quiet=raw.quiet if is_last else None,
            skipped=raw.skipped if first == 0 else 0,
        )
        return batch, first + done


def _placed(refused: pa.Table, places: Int64) -> pa.Table:
    """Refusals of the messages that were read, by their places in the poll."""
    return refused.set_column(
        0, REFUSAL_SCHEMA.field("message"), pa.array(places[refused["message"].to_numpy()])
    )


def _refused_rows(rows: Rows, places: Int64) -> list[pa.Table]:
    faults = rows.draft.faults
    if faults.accepted.all():
        return []
    if rows.rows is None:
        return [
            refused_alike(places[rows.messages[which]], reason, sentences)
            for which, reason, sentences in faults.alike()
        ]
    tables = []
    for which, reason, sentences in faults.alike():
        table = refused_alike(places[rows.messages[which]], reason, sentences)
        within = pa.array(rows.rows[which], pa.int32())
        # The row, not the message's first bytes again.
        texts = row_texts(rows.draft.batch.take(pa.array(which)))
        columns = [table[0], within, table[2], table[3], texts]
        tables.append(pa.Table.from_arrays(columns, schema=REFUSAL_SCHEMA))
    return tables


def _joined(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    together = pa.Table.from_batches(batches, schema).combine_chunks().to_batches()
    return together[0] if together else pa.RecordBatch.from_pylist([], schema)


def _rejects(raw: RawBatch, offsets: Int64, refusals: list[pa.Table]) -> pa.RecordBatch:
    if not refusals:
        return pa.RecordBatch.from_pylist([], schema=REJECT_SCHEMA)
    table = pa.concat_tables(refusals)
    # Null rows stand for whole messages, which have no others.
    table = table.take(
        pc.sort_indices(table, [("message", "ascending"), ("row", "ascending")])
    ).combine_chunks()
    messages, whole = table["message"], table["raw"].is_null().combine_chunks()
    own = pc.binary_slice(raw.values.take(messages.filter(whole).combine_chunks()), 0, RAW_LIMIT_BYTES)
    first_bytes = pc.binary_slice(table["raw"].combine_chunks(), 0, RAW_LIMIT_BYTES)
    columns = {
        "topic": pa.repeat(raw.topic, len(table)),
        "partition": pa.repeat(pa.scalar(raw.partition, pa.int32()), len(table)),
        "offset": pa.array(offsets[messages.to_numpy()]),
        "row": table["row"],
        "reason": table["reason"],
        "sentence": table["sentence"],
        "raw": pc.replace_with_mask(first_bytes, whole, own.cast(pa.binary())),
    }
    found = pa.table([columns[field.name] for field in REJECT_SCHEMA], schema=REJECT_SCHEMA)
    return found.combine_chunks().to_batches()[0]
