"""One poll of one topic partition: messages in, canonical events and refusals out."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from traceback import walk_tb

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from freshet_graph.schemas.config import StreamConfig, Topic
from freshet_graph.schemas.errors import FreshetError, one_line
from freshet_graph.schemas.events import REJECT_SCHEMA, Reason, event_schema
from freshet_graph.schemas.fields import RecordColumn
from freshet_graph.stream.arrays.kinds import Bool, Int64
from freshet_graph.stream.decode.beside import BesideFields
from freshet_graph.stream.decode.confluent import SchemaHeader
from freshet_graph.stream.decode.features import MadeFeatures
from freshet_graph.stream.decode.formats.interface import MessageFormat, UnavailableError, create_format
from freshet_graph.stream.decode.labels import LabelRows, require_label
from freshet_graph.stream.decode.reading import REFUSAL_SCHEMA, DecodedRows, Limits, refused_alike, renumbered
from freshet_graph.stream.decode.validate import Draft, Faults, Rules, check
from freshet_graph.stream.microbatch import MicroBatch, RawBatch
from freshet_graph.stream.service.heartbeat import beat


def row_texts(batch: pa.RecordBatch) -> pa.Array:
    """Each row as a JSON object (binary, UTF-8), nulls included; NaN and infinities by Python's names."""
    pieces: list[pa.Array | str] = []
    for i, (name, column) in enumerate(zip(batch.schema.names, batch.columns, strict=True)):
        pieces += [("{" if i == 0 else ", ") + json.dumps(name) + ": ", _texts(column)]
    texts = pc.binary_join_element_wise(*pieces, "}", "")
    # Where no column has a value, all rows have one text.
    return (texts if isinstance(texts, pa.Array) else pa.repeat(texts, batch.num_rows)).cast(pa.binary())


def _texts(column: pa.Array) -> pa.Array | str:
    if column.null_count == len(column):
        return "null"
    if pt.is_integer(column.type):
        return column.cast(pa.string()).fill_null("null")
    if pt.is_floating(column.type):
        return _spelled(column.cast(pa.string()).fill_null("null"))
    # Texts may need escapes, and lists are rare: one by one, but each value once.
    words = column.dictionary_encode() if pt.is_string(column.type) else None
    if words is None:
        return pa.array([json.dumps(value) for value in column.to_pylist()])
    quoted = [*map(json.dumps, words.dictionary.to_pylist()), "null"]
    places = words.indices.fill_null(len(quoted) - 1).to_numpy(zero_copy_only=False).astype(np.int64)
    return pa.array(quoted).take(pa.array(places))


def _spelled(texts: pa.Array) -> pa.Array:
    """Numbers without a JSON form, as Python writes them."""
    for spelling, word in (("nan", "NaN"), ("-nan", "NaN"), ("inf", "Infinity"), ("-inf", "-Infinity")):
        texts = pc.if_else(pc.equal(texts, spelling), word, texts)
    return texts


RAW_LIMIT_BYTES = 4096
"""Bytes of the message, or of the row as JSON, in a dead letter."""

ROWS_AT_ONCE = 1 << 18
"""Most rows of several messages decoded together: if all were refused, their sentences take a quarter of a GiB."""


def wall_time_us() -> int:
    """Now, microseconds since the epoch."""
    return time.time_ns() // 1000


_Events = tuple[pa.RecordBatch, Int64, Int64 | None]
"""Accepted events under the canonical schema, their messages (int64), and from formats with several rows per message the rows."""


@dataclass(frozen=True, slots=True)
class _DecodedMessages:
    """Answers to messages, which are named by their index among those read.

    Attributes:
        events: Those that were accepted.
        refused: ``REFUSAL_SCHEMA``.
        looked_at: Number of messages read.
        empty: int64, messages without an event.
        converted: Rows with an id of the other kind than the graph's.
    """

    events: list[_Events]
    refused: list[pa.Table]
    looked_at: int
    empty: Int64 = field(default_factory=lambda: np.empty(0, np.int64))
    converted: int = 0

    def require(self, count: int, reasons: set[str]) -> None:
        """Check that each message has an answer, and only those there are.

        Raises:
            ValueError: The format's ``read`` breaks its promise; nothing would be said of the message.
        """
        named = [messages for _, messages, _ in self.events]
        named += [*(table["message"].to_numpy() for table in self.refused), self.empty]
        answered = np.zeros(count, bool)
        for messages in named:
            if len(messages) and not 0 <= messages.min() <= messages.max() < self.looked_at <= count:
                raise ValueError(f"an answer is about a message that is not among the {self.looked_at} read")
            answered[messages] = True
        if self.looked_at < 1 or not answered[: self.looked_at].all():
            raise ValueError("it is neither rows nor a refusal")
        others = {
            reason for table in self.refused for reason in table["reason"].unique().to_pylist()
        } - reasons
        if others:
            raise ValueError(f"the format does not list the reason {others.pop()}")

    def followed_by(self, later: "_DecodedMessages") -> "_DecodedMessages":
        """Both together; the later messages are counted from the end of these."""
        first = self.looked_at
        return _DecodedMessages(
            [*self.events, *((batch, messages + first, rows) for batch, messages, rows in later.events)],
            [*self.refused, *(renumbered(table, lambda places: places + first) for table in later.refused)],
            first + later.looked_at,
            np.concatenate([self.empty, later.empty + first]),
            self.converted + later.converted,
        )


class Decoder:
    """Decodes the polls of one topic in whole batches; wrong messages are named one by one.

    Every message becomes events, a reject or a counted tombstone; no content raises. If the format's code raises, the
    message that it cannot read is found by halving the batch, and refused as ``decoder_error``.

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
        self._labels = LabelRows(topic, config.ids) if topic.kind == "labels" else None
        if topic.labels_events:  # whose ids are text, whatever those of nodes are
            config = config.model_copy(update={"ids": "string"})
        self.config = config
        self._now_us = now_us
        self._format = create_format(topic, config.kafka, config.ids)
        self._reasons = {*Reason, *self._format.reasons}
        self._limits = self._format.limits
        self._beside = BesideFields(topic, config.kafka, config.ids, self._format.unit, self._format.mapping)
        self._header = SchemaHeader(config.kafka, "value")
        self._made_features = MadeFeatures.of(topic)
        many = topic.many_keys
        paths = () if many is None or topic.fields is None else topic.fields.paths()
        # An id of the whole message would make all its events but one repeats.
        self._numbers_ids = self._labels is None and any(
            name == "event_id" and (isinstance(keys[0], RecordColumn) or keys[: len(many or ())] != many)
            for name, _, keys in paths
        )
        self._shown = self._beside.shown if self._beside else self._format.mapping.column
        self._events = event_schema(config.ids)
        self._schema = self._events.append(pa.field("offset", pa.int64(), nullable=False))
        self._many = self._format.many or topic.many is not None
        if self._many:
            self._schema = self._schema.append(pa.field("row", pa.int32(), nullable=False))

    def prepare(self, raw: RawBatch) -> str | None:
        """Fetch what decoding a poll needs from elsewhere, such as schemas, for a few seconds.

        Returns:
            None: everything is there. Otherwise how far it is: call again.

        Raises:
            UnavailableError: It cannot be had now, or the format raised a ``FreshetError`` or ``OSError``. Keep the poll and
                try again.
        """
        waits = self._beside.prepare(raw)
        if waits is not None or type(self._format).prepare is MessageFormat.prepare:
            return waits
        return self._prepare(self._header.as_confluent(raw.values, raw.beside))

    def _prepare(self, values: pa.LargeBinaryArray) -> str | None:
        try:
            return self._format.prepare(values)
        except UnavailableError:
            raise
        except (FreshetError, OSError) as error:  # of a file or a service, not of a message
            raise UnavailableError(one_line(error)) from error
        except Exception:  # noqa: BLE001  a format's code may raise anything on content
            half = len(values) // 2
            if not half:  # one message alone is named when it is read
                return None
            beat()
            return self._prepare(values[:half]) or self._prepare(values[half:])

    def batches(self, raw: RawBatch) -> Iterator[MicroBatch]:
        """Decode one poll that ``prepare`` has seen, at most one message's limits at a time.

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
        """Decode one poll at once, whatever its size; events and rejects are in the order of the messages.

        Raises:
            UnavailableError: See ``prepare``.
        """
        while self.prepare(raw) is not None:
            beat()
        return self._decoded(raw, 0, None)[0]

    def _decoded(self, whole: RawBatch, first: int, at_once: Limits | None) -> tuple[MicroBatch, int]:
        """Decode a poll from its ``first`` message; also returns the index of the next message."""
        raw = whole if first == 0 else replace(whole[first:], first_offset=whole.offsets[first].as_py())
        now_us = self._now_us()
        offsets = raw.offsets.to_numpy(zero_copy_only=False)
        lengths = pc.binary_length(raw.values).fill_null(-1).to_numpy(zero_copy_only=False)
        limit = self.config.kafka.max_message_bytes
        rules, beside = Rules.of(self.config, now_us), self._beside.read(raw)
        is_blank = self._beside.without_value(beside, lengths <= 0)
        places = np.flatnonzero((lengths >= 0) & (lengths <= limit) & ~is_blank)
        wanted = raw.values if len(places) == len(lengths) else raw.values.take(pa.array(places))
        wanted = self._header.as_confluent(wanted, raw.beside, places)
        reading = _Reading(at_once, rules, beside, places)
        answers = self._answers(wanted, 0, reading)
        done = len(lengths) if answers.looked_at == len(places) else int(places[answers.looked_at])
        large = np.flatnonzero(lengths[:done] > limit)
        sentences = [f"{n} bytes, but config key kafka.max_message_bytes is {limit}" for n in lengths[large]]
        refusals = [refused_alike(large, Reason.TOO_LARGE, sentences)] if len(large) else []
        refusals += [renumbered(table, lambda messages: places[messages]) for table in answers.refused]
        accepted = [
            self._placed(events, offsets[places[messages]], rows) for events, messages, rows in answers.events
        ]
        blank = np.flatnonzero(is_blank[:done])
        if len(blank):
            alone = self._beside.filled(self._beside.blank(blank), beside, blank)
            rows = np.zeros(len(blank), np.int64) if self._many else None
            (events, messages, rows), refused = self._checked(replace(alone, rows=rows), rules)
            accepted.append(self._placed(events, offsets[messages], rows))
            refusals += refused
        is_last = done == len(lengths)
        events = _joined(accepted, self._schema, in_order=not len(blank))
        batch = MicroBatch(
            topic=raw.topic,
            partition=raw.partition,
            first_offset=raw.first_offset,
            end_offset=raw.end_offset if is_last else int(offsets[done]),
            high_watermark=raw.high_watermark,
            events=events if self._labels is None else events[:0],
            rejects=_rejects(raw, offsets, refusals),
            tombstones=_count(lengths[:done] < 0) - _count(lengths[blank] < 0) + len(answers.empty),
            converted=0 if self._labels is not None else answers.converted,
            wall_time_us=now_us,
            quiet=raw.quiet if is_last else None,
            skipped=raw.skipped if first == 0 else 0,
            labels=None if self._labels is None else self._labels.of(events),
        )
        return batch, first + done

    def _placed(self, events: pa.RecordBatch, offsets: Int64, rows: Int64 | None) -> pa.RecordBatch:
        columns = [*events.columns, pa.array(offsets)]
        if rows is not None:
            columns.append(pa.array(rows, pa.int32()))
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _answers(self, values: pa.LargeBinaryArray, first: int, reading: "_Reading") -> _DecodedMessages:
        """Read messages, those of a poll from its ``first``; one on which the format's code raises is refused alone."""
        if len(values) == 0:
            return _DecodedMessages([], [], 0)
        try:
            return self._read(values, first, reading)
        except UnavailableError:
            raise
        except Exception as error:  # noqa: BLE001  a format's code may raise anything on content
            if len(values) == 1:
                cause = _raised(error, type(self._format).__module__)
                sentence = f"the code of format {self._format.name} failed: {cause}"
                return _DecodedMessages(
                    [], [refused_alike(np.zeros(1, np.int64), Reason.DECODER_ERROR, sentence)], 1
                )
        beat()
        half = len(values) // 2
        first_half = self._answers(values[:half], first, reading)
        at_once = reading.at_once
        if at_once is not None:
            rows = sum(batch.num_rows for batch, *_ in first_half.events)
            at_once = Limits(
                at_once.rows - rows, at_once.bytes - sum(batch.nbytes for batch, *_ in first_half.events)
            )
            if min(at_once.rows, at_once.bytes) <= 0:
                return first_half
        if first_half.looked_at < half:
            return first_half
        later = replace(reading, at_once=at_once)
        return first_half.followed_by(self._answers(values[half:], first + half, later))

    def _read(self, values: pa.LargeBinaryArray, first: int, reading: "_Reading") -> _DecodedMessages:
        read = self._format.read(values, reading.at_once)
        converted = sum(rows.converted for rows in read.rows)
        answers = _DecodedMessages([], [*read.refused], read.looked_at, read.empty, converted)
        for rows in read.rows:
            whole = self._beside.filled(rows, reading.beside, reading.records[first + rows.messages])
            if self._numbers_ids and rows.rows is not None:
                whole = _with_numbered_ids(whole, rows.rows)
            events, refused = self._checked(whole, reading.rules)
            answers.events.append(events)
            answers.refused.extend(refused)
        answers.require(len(values), self._reasons)
        return answers

    def _checked(self, rows: DecodedRows, rules: Rules) -> tuple[_Events, list[pa.Table]]:
        """The rows that keep the rules, and the refusals of the others."""
        rows = self._made_features.made(rows)
        if self._labels is not None:
            require_label(rows.draft, self._shown)
        check(rows.draft, rules, self._shown)
        faults = rows.draft.faults
        accepted, named = faults.accepted, rows
        if self._format.atomic and not accepted.all():
            accepted, faults = _together(rows.messages, faults)
            named = replace(rows, rows=None)
        refused = _refused_rows(
            named, faults, self._labels.as_labels if self._labels is not None else _as_it_is
        )
        events = rows.draft.events(accepted)
        for wanted, column in zip(self._events, events.columns, strict=True):
            if column.null_count and not wanted.nullable:
                raise ValueError(f"column {wanted.name} has nulls")
        events.validate(full=True)
        within = None if rows.rows is None else rows.rows[accepted]
        return (events, rows.messages[accepted], within), refused


@dataclass(frozen=True, slots=True)
class _Reading:
    """Messages of a poll being read.

    Attributes:
        at_once: See ``MessageFormat.read``.
        rules: Of their events.
        beside: What is beside the values of the poll's records.
        records: int64, the index of each message's record.
    """

    at_once: Limits | None
    rules: Rules
    beside: Mapping[str, Draft]
    records: Int64


def _raised(error: Exception, module: str) -> str:
    """An error and the last line of a module on its way, or the line that raised it, for a sentence."""
    lines = list(walk_tb(error.__traceback__))
    of_module = [(frame, line) for frame, line in lines if frame.f_globals.get("__name__") == module]
    frame, line = (of_module or lines)[-1]
    place = f"{Path(frame.f_code.co_filename).name}:{line}"
    return f"{type(error).__name__}: {one_line(error)[:200]} ({place})"


def _count(mask: Bool) -> int:
    return int(np.count_nonzero(mask))


def _with_numbered_ids(rows: DecodedRows, numbers: Int64) -> DecodedRows:
    """Rows with their place in the message behind the event id, which is the message's."""
    batch = rows.draft.batch
    place = batch.schema.get_field_index("event_id")
    ids = pc.binary_join_element_wise(batch["event_id"], pa.array(numbers).cast(pa.string()), "/")
    return replace(
        rows, draft=replace(rows.draft, batch=batch.set_column(place, batch.schema.field(place), ids))
    )


def _together(messages: Int64, faults: Faults) -> tuple[Bool, Faults]:
    """The rows of messages without a fault, and of each other message only the first fault."""
    faulty = faults.refused_rows()
    refused, first = np.unique(messages[faulty], return_index=True)
    only = Faults(np.zeros_like(faults.code), faults.kinds)
    only.code[faulty[first]] = faults.code[faulty[first]]
    return ~np.isin(messages, refused), only


def _as_it_is(rows: pa.RecordBatch) -> pa.RecordBatch:
    return rows


def _refused_rows(
    rows: DecodedRows, faults: Faults, shown: Callable[[pa.RecordBatch], pa.RecordBatch]
) -> list[pa.Table]:
    if faults.accepted.all():
        return []
    if rows.rows is None:
        return [
            refused_alike(rows.messages[which], reason, sentences)
            for which, reason, sentences in faults.alike()
        ]
    tables = []
    for which, reason, sentences in faults.alike():
        table = refused_alike(rows.messages[which], reason, sentences)
        within = pa.array(rows.rows[which], pa.int32())
        # The row, not the message's first bytes again.
        texts = row_texts(shown(rows.draft.batch.take(pa.array(which))))
        columns = [table[0], within, table[2], table[3], texts]
        tables.append(pa.Table.from_arrays(columns, schema=REFUSAL_SCHEMA))
    return tables


def _joined(batches: list[pa.RecordBatch], schema: pa.Schema, *, in_order: bool) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    table = pa.Table.from_batches(batches, schema)
    if not in_order:
        table = table.sort_by([(name, "ascending") for name in ("offset", "row") if name in schema.names])
    together = table.combine_chunks().to_batches()
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
    message_bytes = pc.binary_slice(
        raw.values.take(messages.filter(whole).combine_chunks()), 0, RAW_LIMIT_BYTES
    )
    first_bytes = pc.binary_slice(table["raw"].combine_chunks(), 0, RAW_LIMIT_BYTES)
    columns = {
        "topic": pa.repeat(raw.topic, len(table)),
        "partition": pa.repeat(pa.scalar(raw.partition, pa.int32()), len(table)),
        "offset": pa.array(offsets[messages.to_numpy()]),
        "row": table["row"],
        "reason": table["reason"],
        "sentence": table["sentence"],
        "raw": pc.replace_with_mask(first_bytes, whole, message_bytes.cast(pa.binary())),
    }
    rejects = pa.table([columns[field.name] for field in REJECT_SCHEMA], schema=REJECT_SCHEMA)
    return rejects.combine_chunks().to_batches()[0]
