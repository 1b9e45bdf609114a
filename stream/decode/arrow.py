"""Arrow messages to event columns: the frames of IPC streams, their columns, and the rows of many messages."""

import json
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, pairwise
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from freshet_graph.schemas.errors import one_line
from freshet_graph.schemas.events import MAX_ID_BYTES, IdKind, Op, Reason, event_schema
from freshet_graph.schemas.fields import PathKeys
from freshet_graph.stream.arrays.kinds import Int64
from freshet_graph.stream.decode.columns import (
    NULL_KINDS,
    buckets,
    canonical,
    decimals,
    decoded,
    float32s,
    is_text,
    is_valid,
    nulls,
    plain,
    side_by_side,
)
from freshet_graph.stream.decode.confluent import HEADER_BYTES
from freshet_graph.stream.decode.json_messages import read_json
from freshet_graph.stream.decode.mapping import INNER, NATIVE, VALUE, Mapping
from freshet_graph.stream.decode.merging import Merging, whole_draft
from freshet_graph.stream.decode.reading import DecodedRows, Limits, Refusal, RefusedError
from freshet_graph.stream.decode.times import TimeUnit
from freshet_graph.stream.decode.validate import Draft, Faults

NOT_ARROW = "not_arrow"
"""Reason of a message that is no Arrow IPC stream of rows."""

_CONTINUATION = 0xFFFFFFFF
_FRAME = struct.Struct("<Ii")
_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3
# Positions of the fields in their tables' vtables.
_HEADER_TYPE, _HEADER, _BODY_LENGTH = 1, 2, 3
_DICTIONARY_DATA = 1
_LENGTH, _COMPRESSION = 0, 3


def inspect_frames(value: bytes | memoryview, limits: Limits) -> None:
    """Check every frame of a stream up to its end.

    Raises:
        RefusedError: Not framed as a stream, compressed, or with too many rows.
    """
    try:
        _inspect(value, limits)
    except (struct.error, IndexError) as error:
        raise RefusedError(NOT_ARROW, "not an Arrow IPC stream: a header points outside it") from error


def _inspect(value: bytes | memoryview, limits: Limits) -> None:
    if value[:6] == b"ARROW1":
        raise RefusedError(
            NOT_ARROW,
            "an Arrow file, expected an Arrow stream. Write messages with a stream writer",
        )
    begin = bytes(value[: HEADER_BYTES + 4])
    if begin[:1] == b"\0" and begin[HEADER_BYTES:] == b"\xff" * 4:
        raise RefusedError(
            NOT_ARROW,
            "an Arrow stream behind Confluent's header. Write messages as bytes, without that serializer",
        )
    offset = 0
    rows = {_DICTIONARY_BATCH: 0, _RECORD_BATCH: 0}
    while offset < len(value):
        mark, size = _FRAME.unpack_from(value, offset)
        if mark != _CONTINUATION or size < 0:
            raise RefusedError(NOT_ARROW, f"not an Arrow IPC stream: no frame begins at byte {offset}")
        offset += _FRAME.size
        if size == 0:
            if offset < len(value):
                raise RefusedError(
                    NOT_ARROW,
                    f"{len(value) - offset} bytes after the end of its stream. Write one stream per message",
                )
            return
        kind, more, body = _check_message(bytes(value[offset : offset + size]))
        offset += size + body
        if more:
            rows[kind] += more
            _check_rows(rows[kind], len(value), limits)


def _check_rows(rows: int, size: int, limits: Limits) -> None:
    if rows > limits.rows:
        raise RefusedError(
            Reason.TOO_LARGE, f"{rows} rows, but config key kafka.max_message_rows is {limits.rows}"
        )
    if rows > size:  # src and t alone take a byte each: only columns of nothing, or of runs, have so many
        raise RefusedError(NOT_ARROW, f"claims {rows} rows in {size} bytes, fewer than a row can take")


def _check_message(metadata: bytes) -> tuple[int, int, int]:
    """Check one message's header; returns its kind, its rows and the bytes of its body."""
    message = _root(metadata)
    kind_at = _field(metadata, message, _HEADER_TYPE)
    header_at = _field(metadata, message, _HEADER)
    body_at = _field(metadata, message, _BODY_LENGTH)
    body = _signed(metadata, body_at, 8) if body_at else 0
    if body < 0:
        raise RefusedError(NOT_ARROW, "not an Arrow IPC stream: a body of negative length")
    if not kind_at or not header_at:
        return 0, 0, body
    kind = metadata[kind_at]
    table = _follow(metadata, header_at)
    if kind == _DICTIONARY_BATCH:
        data_at = _field(metadata, table, _DICTIONARY_DATA)
        if not data_at:
            return kind, 0, body
        table = _follow(metadata, data_at)
    rows = 0
    if kind in (_DICTIONARY_BATCH, _RECORD_BATCH):
        length_at = _field(metadata, table, _LENGTH)
        rows = _signed(metadata, length_at, 8) if length_at else 0
        if rows < 0:
            raise RefusedError(NOT_ARROW, "not an Arrow IPC stream: a negative number of rows")
        if _field(metadata, table, _COMPRESSION):
            raise RefusedError(
                NOT_ARROW, "its buffers are compressed. Leave compression to the Kafka producer"
            )
    return kind, rows, body


def _root(metadata: bytes) -> int:
    return _follow(metadata, 0)


def _follow(metadata: bytes, offset: int) -> int:
    return offset + int(struct.unpack_from("<I", metadata, offset)[0])


def _field(metadata: bytes, table: int, position: int) -> int:
    """Position of a field of a FlatBuffers table; 0 if it is absent."""
    vtable = table - _signed(metadata, table, 4)
    size = int(struct.unpack_from("<H", metadata, vtable)[0]) if vtable >= 0 else 0
    entry = 4 + 2 * position
    if entry + 2 > size:
        return 0
    offset = int(struct.unpack_from("<H", metadata, vtable + entry)[0])
    return table + offset if offset else 0


def _signed(metadata: bytes, offset: int, width: int) -> int:
    return int(struct.unpack_from("<i" if width == 4 else "<q", metadata, offset)[0])


_NAMES = {"node": "src", "offset": "feature_offset", "values": "features"}
"""Columns of events whose name differs from the field's."""
_UNKNOWN_OP = 2
"""Stands for a word that isn't an op; refused with the reason."""


def mapped(batch: pa.RecordBatch, mapping: Mapping, faults: Faults) -> pa.RecordBatch:
    """Columns named like an event's, from their places in a topic's messages.

    Types don't change, except that words of op become numbers, ids with a prefix text, and listed features one array. What is no
    number among those is added to ``faults``.

    Raises:
        RefusedError: A column is missing, or of a type that its use doesn't allow.
    """
    prefix = mapping.prefix
    if mapping.mapped:
        batch = _renamed(batch, mapping, faults)
        if "dst" not in batch.schema.names:
            prefix = prefix._replace(src=prefix.node)
            batch = batch.append_column("dst", pa.nulls(batch.num_rows))
    else:
        for place, field in enumerate(batch.schema):
            meaning = _meaning(field, (field.name,), mapping)
            if {SCALE, UNIT} & meaning.keys():
                column = _meant(field.name, batch.column(place), meaning, field.name == "t", faults)
                batch = batch.set_column(place, field.name, column)
    for name, text in (("src", prefix.src), ("dst", prefix.dst)):
        if text:
            batch = _changed(batch, name, partial(_prefixed, mapping.column(name), prefix=text))
    place = batch.schema.get_field_index("op")
    has_words = place >= 0 and is_text(batch.schema.field(place).type)
    return _changed(batch, "op", partial(_ops, mapping=mapping)) if mapping.own_ops or has_words else batch


def _changed(batch: pa.RecordBatch, name: str, change: Callable[[pa.Array], pa.Array]) -> pa.RecordBatch:
    """The batch with one column changed; a column that is missing or repeated is refused elsewhere."""
    places = batch.schema.get_all_field_indices(name)
    return batch.set_column(places[0], name, change(batch.column(places[0]))) if len(places) == 1 else batch


def _renamed(batch: pa.RecordBatch, mapping: Mapping, faults: Faults) -> pa.RecordBatch:
    columns: dict[str, pa.Array] = {}
    parts: list[pa.Array] = []
    for (name, part), keys in mapping.paths:
        column, field = _place_at(batch, keys, mapping.many)
        column = _meant(
            mapping.shown(name, part), column, _meaning(field, keys, mapping), name == "t", faults
        )
        if name == "features" and mapping.feature_parts:
            shown, width = mapping.shown(name, part), mapping.hashed[part] if mapping.hashed else 0
            parts.append(buckets(shown, column, width) if width else float32s(shown, column, faults))
        else:
            columns[_NAMES.get(name, name)] = column
    if parts:
        columns["features"] = side_by_side(parts, batch.num_rows)
    for name in mapping.elsewhere & {"src", "dst", "t", "node"}:
        columns[_NAMES.get(name, name)] = pa.nulls(batch.num_rows)
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


_ELEMENTS = "\0elements"
"""Column of the elements of ``Mapping.many``."""


def exploded(batch: pa.RecordBatch, many: PathKeys) -> tuple[pa.RecordBatch, Int64]:
    """A row for each element of the lists at ``many``, and the row that each came from (int64).

    Raises:
        RefusedError: There is no such column, or it has no lists.
    """
    column = _column_at(batch, many)
    if pt.is_null(column.type):
        column = pa.nulls(len(column), pa.list_(pa.null()))
    if not (pt.is_list(column.type) or pt.is_large_list(column.type) or pt.is_fixed_size_list(column.type)):
        raise RefusedError(
            Reason.WRONG_TYPE, f"column {'.'.join(many)} is {column.type}, expected a list (topic key many)"
        )
    parents = pc.list_parent_indices(column).cast(pa.int64())
    rows = batch.take(parents).append_column(_ELEMENTS, column.flatten())
    return rows, parents.to_numpy(zero_copy_only=False)


def _meaning(field: pa.Field, keys: PathKeys, mapping: Mapping) -> dict[bytes, bytes]:
    """What a field's schema says of it (``SCALE``, ``UNIT``), or the topic says of its bytes."""
    scale = dict(mapping.scales).get(keys)
    is_bytes = pt.is_binary(field.type) or pt.is_large_binary(field.type)
    given = {SCALE: str(scale).encode()} if scale is not None and is_bytes else {}
    return given | (field.metadata or {})


def _meant(
    shown: str, column: pa.Array, metadata: dict[bytes, bytes], is_time: bool, faults: Faults
) -> pa.Array:
    """A column by the meaning that its schema gives it (``SCALE``, ``UNIT``): a decimal as text, a time as timestamps."""
    scale, unit = metadata.get(SCALE), metadata.get(UNIT)
    if scale == VARIABLE:
        values, scales = pc.struct_field(column, ["value"]), pc.struct_field(column, ["scale"])
        texts = pa.nulls(len(column), pa.string())
        for one in range(-MOST_SCALE, MOST_SCALE + 1) if len(column) else ():
            has = pc.equal(scales, one).fill_null(False)
            if pc.any(has).as_py():
                texts = pc.if_else(has, decimals(shown, pc.if_else(has, values, None), one, faults), texts)
        known = is_valid(texts) | ~is_valid(values)
        faults.refuse(
            ~known, Reason.WRONG_TYPE, lambda i: f"{shown} is a decimal of scale {scales[i].as_py()}"
        )
        return texts
    if scale is not None:
        return decimals(shown, column, int(scale), faults)
    if unit is None or not is_time:
        return plain(column)
    if unit == b"days":
        days = np.clip(column.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False), -(10**9), 10**9)
        return pa.array(days * 86_400, mask=~is_valid(column)).cast(pa.timestamp("s"))
    return column.cast(pa.int64()).cast(pa.timestamp(unit.decode()))


SCALE, UNIT, VARIABLE = b"freshet.scale", b"freshet.unit", b"variable"
"""Keys of a field's metadata: the scale of a decimal in bytes, or that it is a struct of scale and value; and the unit of a time
(``days``, or as Arrow's)."""
MOST_SCALE = 38


def _column_at(batch: pa.RecordBatch, keys: PathKeys, many: PathKeys | None = None) -> pa.Array:
    """The column at a path, which may lead through the elements of ``many``."""
    return _place_at(batch, keys, many)[0]


def _place_at(
    batch: pa.RecordBatch, keys: PathKeys, many: PathKeys | None = None
) -> tuple[pa.Array, pa.Field]:
    """The column at a path, and its field."""
    shown, whole = ".".join(keys), keys
    if many is not None and keys[: len(many)] == many:
        keys = _ELEMENTS, *keys[len(many) :]
    places = batch.schema.get_all_field_indices(keys[0])
    if not places:
        names = ", ".join(batch.schema.names) or "none"
        raise RefusedError(Reason.MISSING_FIELD, f"column {shown} is missing; found {names}")
    if len(places) > 1:
        raise RefusedError(Reason.WRONG_TYPE, f"column {keys[0]} stands {len(places)} times")
    column, field = batch.column(places[0]), batch.schema.field(places[0])
    for i, key in enumerate(keys[1:], start=1):
        above = ".".join(whole[: len(whole) - len(keys) + i])
        if not pt.is_struct(column.type):
            raise RefusedError(Reason.WRONG_TYPE, f"column {above} is {column.type}, expected a struct")
        inside = column.type.get_all_field_indices(key)
        if len(inside) != 1:
            names = ", ".join(field.name for field in column.type) or "none"
            raise RefusedError(Reason.MISSING_FIELD, f"column {shown} is missing; {above} has {names}")
        field = column.type.field(inside[0])
        column = pc.struct_field(column, inside)
        if pt.is_dictionary(column.type):  # only text of columns is limited once written out
            raise RefusedError(
                Reason.WRONG_TYPE,
                f"column {shown} is {column.type}, expected plain values inside of a struct",
            )
    return column, field


def _prefixed(name: str, column: pa.Array, *, prefix: str) -> pa.Array:
    column = decoded(name, column) if pt.is_dictionary(column.type) else column
    if pt.is_null(column.type):
        return pa.nulls(len(column), pa.string())
    if not (pt.is_string(column.type) or pt.is_large_string(column.type) or pt.is_integer(column.type)):
        raise RefusedError(
            Reason.BAD_ID,
            f"column {name} is {column.type}, expected strings or integers (config key id_prefix)",
        )
    texts = pc.cast(column, pa.string())
    # An empty id stays empty, and so is refused.
    return pc.if_else(pc.equal(texts, ""), "", pc.binary_join_element_wise(prefix, texts, ""))


def _ops(column: pa.Array, *, mapping: Mapping) -> pa.Array:
    name = mapping.column("op")
    column = decoded(name, column) if pt.is_dictionary(column.type) else column
    if pt.is_boolean(column.type) or pt.is_integer(column.type) or pt.is_null(column.type):
        column = column.cast(pa.string())
    if not (pt.is_string(column.type) or pt.is_large_string(column.type)):
        raise RefusedError(
            Reason.WRONG_TYPE,
            f"column {name} is {column.type}, expected strings, integers or booleans (topic key ops has the words)",
        )
    words, meanings = zip(*mapping.words, strict=True)
    place = pc.index_in(column, pa.array(words, column.type)).fill_null(len(words))
    ops = pa.array([*map(int, meanings), _UNKNOWN_OP], pa.int8()).take(place)
    of_null = int(mapping.ops.get("null", Op.INSERT))
    return pc.if_else(column.is_null(), pa.scalar(of_null, pa.int8()), ops)


def event_rows(
    batch: pa.RecordBatch,
    messages: Int64,
    ids: IdKind,
    unit: TimeUnit,
    mapping: Mapping,
    faults: Faults | None = None,
) -> DecodedRows:
    """Columns of one row per message, as rows of events: one each, or one for each element of ``mapping.many``.

    Args:
        batch: Columns under the names of a message's fields, which the topic's ``fields`` may lead to.
        messages: int64, the index of each row's message among those read.
        ids: Kind of node ids of the graph.
        unit: The topic's time unit, for numeric times.
        mapping: Places of the fields in the topic's messages.
        faults: Earlier faults of rows; more are added.

    Raises:
        RefusedError: A column is missing, or of a wrong type.
    """
    rows = None
    if mapping.many is not None:
        batch, parents = exploded(batch, mapping.many)
        messages = messages[parents]
        rows = numbered(messages)
    faults = Faults.none(batch.num_rows) if faults is None else faults
    draft, converted = _draft(batch, ids, unit, mapping, faults)
    return DecodedRows(draft, messages, rows, converted)


def _draft(
    batch: pa.RecordBatch, ids: IdKind, unit: TimeUnit, mapping: Mapping, faults: Faults
) -> tuple[Draft, int]:
    """Rows of columns as events, those fields included that lie in texts that are JSON; and how many ids were converted."""
    parts = mapping.around_text()
    base = parts[VALUE]
    mapped_batch = mapped(batch, base, faults)
    draft = canonical(
        mapped_batch, ids, unit, faults=faults, shown=mapping.column, time_texts=mapping.time_texts
    )
    if INNER in parts and batch.num_rows:
        all_rows = np.arange(batch.num_rows)
        inner = {INNER: _inner(batch, ids, unit, parts[INNER])}
        draft = (
            Merging(mapping, parts, VALUE, ids).filled(DecodedRows(draft, all_rows), inner, all_rows).draft
        )
    return draft, _converted(mapped_batch, ids)


def _inner(batch: pa.RecordBatch, ids: IdKind, unit: TimeUnit, mapping: Mapping) -> Draft:
    """The fields in the texts at ``mapping.text``, which are read as messages with nothing else."""
    assert mapping.text is not None, "it has fields"
    shown, column = ".".join(mapping.text), _column_at(batch, mapping.text, mapping.many)
    if not (is_text(column.type) or pt.is_null(column.type)):
        raise RefusedError(
            Reason.WRONG_TYPE, f"column {shown} is {column.type}, expected texts (topic key json)"
        )
    before = b"".join(b"{" + json.dumps(key).encode() + b":" for key in mapping.text)
    ends = (pa.scalar(piece, pa.large_binary()) for piece in (before, b"}" * len(mapping.text), b""))
    first, last, between = ends
    texts = column.cast(pa.large_binary()).fill_null(b"null")
    values = pc.binary_join_element_wise(first, texts, last, between)
    rows, refused = read_json(values, ids, unit, replace(mapping, many=None))
    return whole_draft(batch.num_rows, ids, rows, refused, f"{shown} is no text of a JSON object")


def _converted(batch: pa.RecordBatch, ids: IdKind) -> int:
    """Rows with an id of the other kind than the graph's."""
    other = [
        is_valid(batch[name])
        for name in ("src", "dst")
        if name in batch.schema.names
        and (is_text(batch[name].type) if ids == "int" else pt.is_integer(batch[name].type))
    ]
    return int(np.count_nonzero(np.any(other, axis=0))) if other else 0


def numbered(messages: Int64) -> Int64:
    """The number of each row within its message, whose rows are neighbours."""
    _, first, counts = np.unique(messages, return_index=True, return_counts=True)
    return np.arange(len(messages)) - np.repeat(first, counts)


_LONGEST_WORD = 4 * (MAX_ID_BYTES + 1)
"""Most bytes of a dictionary's word: ``columns`` cuts longer ones after so many characters."""

_KNOWN = frozenset(event_schema("int").names)
# What corrupt schemas and bodies raise has many types; all of them mean the same.
_CORRUPT = (pa.ArrowException, ValueError, TypeError, LookupError, OSError, MemoryError, OverflowError)


@dataclass(frozen=True, slots=True)
class Known:
    """The wanted columns of a message's schema.

    Attributes:
        whole: The schema.
        places: Indices of the columns.
        schema: The columns.
        alone: Whether messages are read one by one, because each has its own dictionaries.
    """

    whole: pa.Schema
    places: list[int]
    schema: pa.Schema
    alone: bool

    @classmethod
    def of(cls, whole: pa.Schema, names: frozenset[str]) -> Self:
        """The columns of some names."""
        places = [i for i, name in enumerate(whole.names) if name in names]
        schema = pa.schema([whole.field(i) for i in places])
        return cls(whole, places, schema, any("dictionary<" in str(field.type) for field in schema))


class Opener:
    """Opens the messages of a poll, and reuses what it knows of a schema for the next message."""

    def __init__(self, names: frozenset[str], limits: Limits) -> None:
        self._names, self._limits = names, limits
        self._known: Known | None = None

    def open(self, value: bytes | memoryview) -> tuple[pa.RecordBatch, Known, int]:
        """The known columns of one message, validated to the last offset, and the bytes of ``_check_text``.

        Raises:
            RefusedError: It is no Arrow stream of rows, or is too large.
        """
        inspect_frames(value, self._limits)
        try:
            with pa.ipc.open_stream(pa.py_buffer(value)) as reader:
                known = self._of(reader.schema)
                batches = [batch.select(known.places) for batch in reader]
            if not batches:
                raise RefusedError(NOT_ARROW, "an Arrow stream without a record batch")
            if not any(batch.num_rows for batch in batches):
                raise RefusedError(NOT_ARROW, "an Arrow stream without a row")
            written_bytes = 0
            for batch in batches:
                batch.validate(full=True)
                written_bytes += _check_text(batch, self._limits) if known.alone else 0
            if len(batches) == 1:
                return batches[0], known, written_bytes
            together = pa.Table.from_batches(batches, known.schema).combine_chunks().to_batches()
            return together[0] if together else batches[0], known, written_bytes
        except _CORRUPT as error:
            raise _corrupt(error) from error

    def _of(self, schema: pa.Schema) -> Known:
        if self._known is None or not schema.equals(self._known.whole, check_metadata=True):
            self._known = Known.of(schema, self._names)
        return self._known


Message = tuple[int, pa.RecordBatch, Known]
"""A message's index and all its rows."""


def views(values: pa.LargeBinaryArray) -> list[memoryview]:
    """Each message in place, without a copy; there must be no nulls."""
    _, ends, data = values.buffers()
    if len(values) == 0 or data is None:
        return [memoryview(b"")] * len(values)
    bounds = np.frombuffer(ends, np.int64)[values.offset : values.offset + len(values) + 1].tolist()
    whole = memoryview(data)
    return [whole[start:end] for start, end in pairwise(bounds)]


def read_arrow(
    values: Sequence[bytes | memoryview],
    ids: IdKind,
    unit: TimeUnit,
    limits: Limits,
    mapping: Mapping = NATIVE,
    *,
    at_once: Limits | None = None,
) -> tuple[list[DecodedRows], list[Refusal], int]:
    """Read messages of many events each; a fault of one message refuses only that one.

    Neighbouring messages of one schema are read together, so that the cost is theirs and not each message's.

    Args:
        values: The messages.
        ids: Kind of node ids of the graph.
        unit: The topic's time unit, for numeric times.
        limits: Of one message.
        mapping: Places of the fields in the topic's messages.
        at_once: Rows read together, and bytes of text that dictionaries write out. Messages from the one beyond it are
            left, but never the first. None: all are read.

    Returns:
        Runs of rows in the order of the messages, the messages that are no Arrow stream of events, and the number of
        messages looked at.
    """
    names = frozenset(keys[0] for _, keys in mapping.paths) if mapping.mapped else _KNOWN
    messages: list[Message] = []
    refusals: list[Refusal] = []
    rows = text_bytes = 0
    looked_at = len(values)
    opener = Opener(names, limits)
    for i, value in enumerate(values):
        try:
            batch, known, written_bytes = opener.open(value)
        except RefusedError as error:
            refusals.append((i, error.reason, str(error)))
            continue
        try:
            more = batch.num_rows if mapping.many is None else _num_elements(batch, mapping.many, limits)
        except RefusedError as error:
            refusals.append((i, error.reason, str(error)))
            continue
        rows, text_bytes = rows + more, text_bytes + written_bytes
        if at_once is not None and messages and (rows > at_once.rows or text_bytes > at_once.bytes):
            looked_at = i
            break
        messages.append((i, batch, known))
    read: list[DecodedRows] = []
    for _, run in groupby(messages, key=_company):
        _read_run(list(run), ids, unit, mapping, read, refusals)
    return read, refusals, looked_at


def _num_elements(batch: pa.RecordBatch, many: PathKeys, limits: Limits) -> int:
    """Elements of all lists of a message.

    Raises:
        RefusedError: There are too many, or no lists.
    """
    lists = _column_at(batch, many)
    is_list = pt.is_list(lists.type) or pt.is_large_list(lists.type) or pt.is_fixed_size_list(lists.type)
    count = (pc.sum(pc.list_value_length(lists)).as_py() or 0) if is_list else 0
    if count > limits.rows:
        raise RefusedError(
            Reason.TOO_LARGE, f"{count} elements, but config key kafka.max_message_rows is {limits.rows}"
        )
    return int(count)


def _check_text(batch: pa.RecordBatch, limits: Limits) -> int:
    """Upper bound of the bytes of text columns once their dictionaries are written out.

    Raises:
        RefusedError: One column is too long: a few long words named by many rows can be a thousand times the message.
    """
    written_bytes = 0
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if not pt.is_dictionary(column.type) or not len(column) or not len(column.dictionary):
            continue
        if not (pt.is_string(column.type.value_type) or pt.is_large_string(column.type.value_type)):
            continue
        lengths = pc.min_element_wise(pc.binary_length(column.dictionary), _LONGEST_WORD)
        text_bytes = (pc.max(lengths).as_py() or 0) * len(column)
        if text_bytes > limits.bytes:
            text_bytes = pc.sum(lengths.take(column.indices)).as_py() or 0
        if text_bytes > limits.bytes:
            raise RefusedError(
                Reason.TOO_LARGE,
                f"column {name} written out is longer than config key kafka.max_message_bytes, {limits.bytes}",
            )
        written_bytes += text_bytes
    return written_bytes


def _company(message: Message) -> tuple[int, pa.Schema | None]:
    """Equal for messages that may be read together."""
    i, _, known = message
    return (i, None) if known.alone else (-1, known.schema)


def _read_run(
    run: list[Message],
    ids: IdKind,
    unit: TimeUnit,
    mapping: Mapping,
    read: list[DecodedRows],
    refusals: list[Refusal],
) -> None:
    try:
        read += _rows(run, ids, unit, mapping)
    except RefusedError as error:  # a fault of their schema
        refusals += [(i, error.reason, str(error)) for i, *_ in run]
    except _CORRUPT as error:
        if len(run) == 1:
            refusals.append((run[0][0], NOT_ARROW, str(_corrupt(error))))
            return
        for message in run:
            _read_run([message], ids, unit, mapping, read, refusals)


def _rows(run: list[Message], ids: IdKind, unit: TimeUnit, mapping: Mapping) -> list[DecodedRows]:
    lengths = [batch.num_rows for _, batch, _ in run]
    messages = np.repeat([i for i, *_ in run], lengths)
    rows = np.concatenate([np.arange(length) for length in lengths])
    together: list[DecodedRows] = []
    first = 0
    # More than one batch is left only if a column exceeds 2 GiB.
    for batch in one_table([batch for _, batch, _ in run]).to_batches():
        span = slice(first, first + batch.num_rows)
        row_messages, within = messages[span], rows[span]
        events = batch
        if mapping.many is not None:
            events, parents = exploded(batch, mapping.many)
            row_messages = row_messages[parents]
            within = numbered(row_messages)
        draft, converted = _draft(events, ids, unit, mapping, Faults.none(events.num_rows))
        together.append(DecodedRows(draft, row_messages, within, converted))
        first = span.stop
    return together


def one_table(batches: list[pa.RecordBatch]) -> pa.Table:
    """The rows of batches of one schema; columns without a value are not copied."""
    whole = pa.Table.from_batches(batches)
    if not whole.num_columns:  # which pa.table would give no rows
        return whole.combine_chunks()
    columns = [
        nulls(column.type, len(column))
        if column.null_count == len(column) and column.type in NULL_KINDS
        else column.combine_chunks()
        for column in whole.columns
    ]
    return pa.table(columns, schema=whole.schema)


def _corrupt(error: BaseException) -> RefusedError:
    return RefusedError(NOT_ARROW, f"not an Arrow IPC stream: {one_line(error)[:200]}")
