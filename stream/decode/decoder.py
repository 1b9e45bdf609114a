"""One poll of one topic partition: messages in, canonical events and refusals out."""

import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from schemas.config import StreamConfig, Topic
from schemas.events import REJECT_SCHEMA, Reason, event_schema
from stream.decode.arrow_events import read_arrow, views
from stream.decode.arrow_frames import Limits
from stream.decode.json_events import read_json
from stream.decode.mapping import Mapping
from stream.decode.reading import (
    REFUSAL_SCHEMA,
    Int64Array,
    Rows,
    refusal_table,
    refused_alike,
)
from stream.decode.row_text import row_texts
from stream.decode.rules import Rules
from stream.decode.validate import check
from stream.microbatch import MicroBatch, RawBatch

RAW_LIMIT_BYTES = 4096
"""A dead letter keeps this much of the message, or of the row as JSON."""


def wall_time_us() -> int:
    """Now, microseconds since the epoch."""
    return time.time_ns() // 1000


class Decoder:
    """Decodes the polls of one topic: whole batches at once, wrong messages named one by one.

    Every message ends as events, as a reject or as a counted tombstone; nothing it holds raises.

    Args:
        topic: Format and time unit.
        config: Kind of ids, feature widths, time bounds and the message limit.
        now_us: The wall clock that bounds event times, microseconds since the epoch.
    """

    def __init__(
        self, topic: Topic, config: StreamConfig, *, now_us: Callable[[], int] = wall_time_us
    ) -> None:
        self._topic = topic
        self._config = config
        self._now_us = now_us
        self._limits = Limits(config.kafka.max_message_rows, config.kafka.max_message_bytes)
        self._mapping = Mapping.of(topic)
        self._schema = event_schema(config.ids).append(pa.field("offset", pa.int64(), nullable=False))

    def decode(self, raw: RawBatch) -> MicroBatch:
        """Decode one poll; events and rejects are in the order of the messages."""
        now_us = self._now_us()
        offsets = raw.offsets.to_numpy(zero_copy_only=False)
        lengths = pc.binary_length(raw.values).fill_null(-1).to_numpy(zero_copy_only=False)
        limit = self._config.kafka.max_message_bytes
        large = np.flatnonzero(lengths > limit)
        sentences = [f"{n} bytes, but config key kafka.max_message_bytes is {limit}" for n in lengths[large]]
        refusals = [refused_alike(large, Reason.TOO_LARGE, sentences)] if len(large) else []
        places = np.flatnonzero((lengths >= 0) & (lengths <= limit))
        rules = Rules.of(self._config, now_us)
        read, refused = self._read(raw.values, places)
        refusals += [_placed(table, places) for table in refused]
        accepted = []
        for rows in read:
            check(rows.draft, rules)
            refusals += _refused_rows(rows, places)
            accepting = rows.draft.faults.accepted
            messages = rows.messages if accepting.all() else rows.messages[accepting]
            kept = offsets[places][messages]
            accepted.append(rows.draft.events().append_column(self._schema.field("offset"), pa.array(kept)))
        return MicroBatch(
            topic=raw.topic,
            partition=raw.partition,
            first_offset=raw.first_offset,
            end_offset=raw.end_offset,
            high_watermark=raw.high_watermark,
            events=_joined(accepted, self._schema),
            rejects=_rejects(raw, offsets, refusals),
            tombstones=int(np.count_nonzero(lengths < 0)),
            wall_time_us=now_us,
            quiet=raw.quiet,
        )

    def _read(self, values: pa.LargeBinaryArray, places: Int64Array) -> tuple[list[Rows], list[pa.Table]]:
        ids, unit = self._config.ids, self._topic.unit
        wanted = values if len(places) == len(values) else values.take(pa.array(places))
        if self._topic.format == "json":
            return read_json(wanted, ids, unit, self._mapping)
        rows, refusals = read_arrow(views(wanted), ids, unit, self._limits, self._mapping)
        return rows, [refusal_table(refusals)] if refusals else []


def _placed(refused: pa.Table, places: Int64Array) -> pa.Table:
    """Refusals of the messages that were read, as refusals of the poll's."""
    return refused.set_column(
        0, REFUSAL_SCHEMA.field("message"), pa.array(places[refused["message"].to_numpy()])
    )


def _refused_rows(rows: Rows, places: Int64Array) -> list[pa.Table]:
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
        # Not the message's first bytes again for each of its rows, but the row.
        texts = row_texts(rows.draft.batch.take(pa.array(which)))
        columns = [table[0], within, table[2], table[3], texts]
        tables.append(pa.Table.from_arrays(columns, schema=REFUSAL_SCHEMA))
    return tables


def _joined(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    together = pa.Table.from_batches(batches, schema).combine_chunks().to_batches()
    return together[0] if together else pa.RecordBatch.from_pylist([], schema)


def _rejects(raw: RawBatch, offsets: Int64Array, refusals: list[pa.Table]) -> pa.RecordBatch:
    if not refusals:
        return pa.RecordBatch.from_pylist([], schema=REJECT_SCHEMA)
    table = pa.concat_tables(refusals)
    # Null rows, whole messages, have no others beside them.
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
