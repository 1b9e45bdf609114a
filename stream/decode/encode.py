"""Canonical events to messages: the inverse of the decoder, also columnar."""

import json
from bisect import bisect_right
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from freshet_graph.schemas.events import Op
from freshet_graph.stream.decode.times import SCALE_DIGITS, TimeUnit

ROWS_A_MESSAGE = 4096
"""Most rows of an Arrow message: more bring no speed."""

BYTES_A_MESSAGE = 900_000
"""Most bytes of an Arrow message: with Kafka's framing below a broker's default limit of 1,048,588."""

_END_OF_STREAM = 8

_CONTROL = r"[\x00-\x1f]"


class EventTooLongError(ValueError):
    """One event alone is longer than a message may be.

    Attributes:
        row: Its row in the events to be encoded, from 0.
        num_bytes: Its length as a message.
        limit: Most bytes of a message.
    """

    def __init__(self, row: int, num_bytes: int, limit: int) -> None:
        """Keep the row for a caller that names it in other terms."""
        super().__init__(
            f"event {row} is {num_bytes} bytes as a message of its own, at most {limit} can be sent"
        )
        self.row, self.num_bytes, self.limit = row, num_bytes, limit


def encode_json(events: pa.Table | pa.RecordBatch, *, time_unit: TimeUnit = "s") -> list[bytes]:
    """Canonical events as JSON messages, one each, in order (``freshet_graph.schemas.wire``); more columns are ignored.

    Decoding the messages gives the events back, bit for bit.
    """
    events = _table(events)
    messages: list[bytes] = []
    for batch in events.to_batches(max_chunksize=1 << 17):
        messages += _json_lines(batch, time_unit).cast(pa.binary()).to_pylist()
    return messages


def encode_arrow(
    events: pa.Table | pa.RecordBatch, *, rows: int = ROWS_A_MESSAGE, max_bytes: int = BYTES_A_MESSAGE
) -> Iterator[bytes]:
    """Canonical events as Arrow IPC streams of one record batch each, in order, each as full as ``rows`` and ``max_bytes`` allow.

    Raises:
        EventTooLongError: One event alone is longer; earlier messages were yielded.
    """
    table = _table(events)
    around = table.schema.serialize().size + _END_OF_STREAM
    first = 0
    for batch in table.combine_chunks().to_batches(max_chunksize=rows):
        while len(batch):
            fitting = _rows_within(batch, max_bytes - around)
            if fitting == 0:
                alone = pa.ipc.get_record_batch_size(batch.slice(0, 1)) + around
                raise EventTooLongError(first, alone, max_bytes)
            yield ipc_stream(batch.slice(0, fitting)).to_pybytes()
            batch = batch.slice(fitting)  # noqa: PLW2901  the rest of the same rows
            first += fitting


def ipc_stream(rows: pa.RecordBatch | pa.Table) -> pa.Buffer:
    """An Arrow IPC stream of a batch or a table."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write(rows)
    return sink.getvalue()


def _rows_within(batch: pa.RecordBatch, max_bytes: int) -> int:
    """The number of first rows within so many bytes in the IPC format, by bisection on sizes."""
    if pa.ipc.get_record_batch_size(batch) <= max_bytes:
        return len(batch)

    def size(rows: int) -> int:
        return pa.ipc.get_record_batch_size(batch.slice(0, rows))

    return bisect_right(range(1, len(batch) + 1), max_bytes, key=size)


def _table(events: pa.Table | pa.RecordBatch) -> pa.Table:
    return pa.Table.from_batches([events]) if isinstance(events, pa.RecordBatch) else events


def _json_lines(batch: pa.RecordBatch, unit: TimeUnit) -> pa.Array:
    node = pc.equal(batch["op"], int(Op.NODE))
    src, dst = _json_ids(batch["src"]), _json_ids(batch["dst"])
    pieces = [
        pc.if_else(node, '{"node":', '{"src":'),
        src,
        _optional(',"dst":', dst),
        ',"t":',
        _json_times(batch["t"], unit),
        pc.if_else(pc.equal(batch["op"], int(Op.DELETE)), ',"op":"delete"', ""),
    ]
    weight = batch["weight"]
    if pc.any(pc.not_equal(weight, 1.0)).as_py():
        text = pc.cast(weight, pa.string())
        pieces.append(_optional(',"weight":', pc.if_else(pc.equal(weight, 1.0), None, text)))
    if batch["features"].null_count < len(batch):
        offset = batch["feature_offset"]
        partial = offset.is_valid()
        pieces.append(_optional(',"offset":', pc.cast(offset, pa.string())))
        key = pc.if_else(partial, ',"values":[', ',"features":[')
        pieces.append(pc.binary_join_element_wise(key, _joined(batch["features"]), "]", ""))
    if batch["label"].null_count < len(batch):
        pieces.append(_optional(',"label":', pc.cast(batch["label"], pa.string())))
    if batch["event_id"].null_count < len(batch):
        pieces.append(_optional(',"event_id":', _quoted(batch["event_id"])))
    return pc.binary_join_element_wise(*pieces, "}", "", null_handling="replace", null_replacement="")


LABEL_FORMATS = ("json", "arrow")
"""The formats that labels are written in."""


class LabelMessages:
    """Writes labels, read as node events (``stream.decode.labels``), as messages of a label topic without ``fields``.

    Args:
        message_format: ``json``, a label per message with ``t`` in seconds, or ``arrow``.
        of_events: Whether they are labels of events, not of nodes.
    """

    def __init__(self, message_format: str, *, of_events: bool) -> None:
        self._encode = {"json": self._json, "arrow": self._arrow}[message_format]
        self._of = "event_id" if of_events else "node"

    def encode(self, rows: pa.RecordBatch) -> Iterator[tuple[bytes, int | None]]:
        """See ``MessageFormat.encode``."""
        return self._encode(rows)

    def _json(self, rows: pa.RecordBatch) -> Iterator[tuple[bytes, int | None]]:
        pieces = [
            f'{{"{self._of}":',
            _json_ids(rows["src"]),
            ',"label":',
            pc.cast(rows["label"], pa.string()),
        ]
        pieces += [
            ',"t":',
            _json_times(rows["t"], "s"),
            _optional(',"source":', _quoted(rows["event_id"])),
            "}",
            "",
        ]
        lines = pc.binary_join_element_wise(*pieces, null_handling="replace", null_replacement="")
        return ((line.encode(), row) for row, line in enumerate(lines.to_pylist()))

    def _arrow(self, rows: pa.RecordBatch) -> Iterator[tuple[bytes, int | None]]:
        names = [self._of, "label", "t", "source"]
        columns = [rows[name] for name in ("src", "label", "t", "event_id")]
        for value in encode_arrow(pa.RecordBatch.from_arrays(columns, names=names)):
            yield value, None


def _optional(key: str, text: pa.Array) -> pa.Array:
    """The key and the text; null where the text is null."""
    return pc.binary_join_element_wise(key, text, "")


def _joined(features: pa.ListArray) -> pa.Array:
    """The values of each row, comma-separated; null where the row is null."""
    values = pc.cast(features.flatten(), pa.string())  # shortest text that reads back as the same float32
    lengths = features.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    texts = pc.binary_join(pa.ListArray.from_arrays(offsets, values), ",")
    return texts if features.null_count == 0 else pc.if_else(features.is_valid(), texts, None)


def _json_ids(ids: pa.Array) -> pa.Array:
    if pt.is_integer(ids.type):
        return pc.cast(ids, pa.string())
    return _quoted(ids)


def _quoted(text: pa.Array) -> pa.Array:
    escaped = pc.replace_substring(pc.replace_substring(text, "\\", "\\\\"), '"', '\\"')
    quoted = pc.binary_join_element_wise('"', escaped, '"', "")
    control = pc.match_substring_regex(text, _CONTROL).fill_null(False)
    if not pc.any(control).as_py():
        return quoted
    rare = [json.dumps(value, ensure_ascii=False) for value in text.filter(control).to_pylist()]
    return pc.replace_with_mask(quoted, control, pa.array(rare, pa.string()))


def _json_times(t: pa.Array, unit: TimeUnit) -> pa.Array:
    micros = t.to_numpy()
    if unit == "rfc3339":
        text = pc.strftime(pa.array(micros).cast(pa.timestamp("us", "UTC")), format="%Y-%m-%dT%H:%M:%SZ")
        return pc.binary_join_element_wise('"', text, '"', "")
    digits = SCALE_DIGITS[unit]
    if digits < 0:
        text = pc.cast(pa.array(micros), pa.string())
        return pc.if_else(pa.array(micros == 0), "0", pc.binary_join_element_wise(text, "0" * -digits, ""))
    per_unit = 10**digits
    magnitude = np.abs(micros)
    whole, rest = np.divmod(magnitude, per_unit)
    text = pc.cast(pa.array(whole), pa.string())
    if rest.any():
        padded = pc.utf8_lpad(pc.cast(pa.array(rest), pa.string()), width=digits, padding="0")
        fraction = pc.ascii_rtrim(padded, characters="0")
        text = pc.if_else(pa.array(rest > 0), pc.binary_join_element_wise(text, fraction, "."), text)
    if (micros < 0).any():
        text = pc.if_else(pa.array(micros < 0), pc.binary_join_element_wise("-", text, ""), text)
    return text
