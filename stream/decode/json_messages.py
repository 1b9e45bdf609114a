"""JSON messages, one event each, to event columns.

The scanner (``json_kernel``) reads the plain messages of a whole poll at once. ``read_message`` reads the others one by one: it
is the reference that defines what is accepted, and it names what is wrong.
"""

import json
import re
from collections import Counter
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Any, NoReturn, TypeGuard

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from freshet_graph.schemas.events import IdKind, Op, Reason
from freshet_graph.schemas.fields import PathKeys
from freshet_graph.stream.decode.confluent import without_header
from freshet_graph.stream.decode.json_kernel import (
    EVENT_ID,
    FEATURES,
    LABEL,
    NODE,
    OFFSET,
    SPAN_BIT,
    VALUES,
    Columns,
    ScanPlan,
    gather_text,
    hashed,
    scan,
)
from freshet_graph.stream.decode.mapping import NATIVE, WRITTEN, Level, Mapping
from freshet_graph.stream.decode.reading import DecodedRows, Refusal, RefusedError, refusal_table
from freshet_graph.stream.decode.times import TimeUnit, number_to_us, rfc3339_to_us
from freshet_graph.stream.decode.validate import Draft, Faults, draft_schema, shorten
from freshet_graph.stream.kernels import read_only

MAX_DEPTH = 64
"""Deepest nesting of arrays and objects in a message, the message itself included."""

NOT_JSON = "not_json"
"""Reason of a message that is no JSON object, or one that contradicts itself."""

_OPENING, _CLOSING = (np.frombuffer(brackets, np.uint8) for brackets in (b"[{", b"]}"))
_STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_KEYS = re.compile(rb'"\s*:')
"""Matches each key of a message at least once."""
_PYTHON_KNOWS = re.compile(rb"\A\xef\xbb\xbf|\\u|NaN|Infinity|\d{20}")
"""Where msgspec fails, Python's parser names a byte order mark, and takes lone surrogates, infinities and long integers."""
_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?", re.ASCII)
_PLACE = re.compile(r"JSON is malformed: (.*) \((byte \d+)\)")


_NULL = object()
"""Stands for a null op, which may be a word."""


class Number(str):
    """A JSON number as it was written; it is converted once its field is known, so nothing is rounded."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


_DECODER = msgspec.json.Decoder(float_hook=Number)


class _Repeating(dict[str, Any]):
    """An object that has keys twice."""

    repeated: frozenset[str]


@dataclass(frozen=True, slots=True)
class JsonRow:
    """One event in the types of the canonical columns; ``features`` is float32. ``written``: see ``mapping.WRITTEN``."""

    op: int
    src: int | str
    dst: int | str | None
    t: int
    weight: float
    features: npt.NDArray[np.float32] | None
    feature_offset: int | None
    label: int | None
    event_id: str | None
    written: bytes | None = None
    converted: bool = False


@dataclass(frozen=True, slots=True)
class _Fields:
    """The fields of one message that are not null."""

    values: dict[str, Any]
    mapping: Mapping

    def __contains__(self, name: str) -> bool:
        return name in self.values or name in self.mapping.elsewhere

    def get(self, name: str) -> Any:
        return self.values.get(name)

    def shown(self, name: str) -> str:
        return self.mapping.shown(name)

    def converted(self, ids: IdKind) -> bool:
        """Whether an id is a number although ids are text, or the reverse."""
        values = [self.values[name] for name in ("src", "dst", "node") if name in self.values]
        return any(_is_number(value) == (ids == "string") for value in values)

    def written(self) -> bytes | None:
        return dumped(self.values[WRITTEN]) if WRITTEN in self.values else None


@lru_cache(maxsize=256)
def _plan(mapping: Mapping) -> ScanPlan:
    return ScanPlan.of(mapping)


def read_json(
    values: pa.LargeBinaryArray, ids: IdKind, unit: TimeUnit, mapping: Mapping = NATIVE
) -> tuple[list[DecodedRows], list[pa.Table]]:
    """Read messages of one event each, with the scanner, or with ``read_message`` if that doesn't know them.

    Confluent's serializer of JSON puts its header before a message; the message is read without it.

    Returns:
        Rows in the order of the messages, and the messages that are no events (``REFUSAL_SCHEMA``). If the mapping has a path of
        ``mapping.WRITTEN``, the rows have a column of that name besides, large_binary.
    """
    if len(values) == 0:
        return [], []
    values, framed = without_header(values)
    rows, refused = _read_plain(values, ids, unit, mapping)
    return rows, [_with_header(table, framed) for table in refused] if framed.any() else refused


def _with_header(refused: pa.Table, framed: npt.NDArray[np.bool_]) -> pa.Table:
    """Refusals that name the header of messages that are no JSON."""
    named = pc.and_(pa.array(framed[refused["message"].to_numpy()]), pc.equal(refused["reason"], NOT_JSON))
    sentence = pc.binary_join_element_wise(
        refused["sentence"], "after Confluent's header. If it is Avro, the topic's format is avro", ", "
    )
    place = refused.schema.get_field_index("sentence")
    return refused.set_column(
        place, refused.schema.field(place), pc.if_else(named, sentence, refused["sentence"])
    )


def _read_plain(
    values: pa.LargeBinaryArray, ids: IdKind, unit: TimeUnit, mapping: Mapping
) -> tuple[list[DecodedRows], list[pa.Table]]:
    _, ends_buffer, data_buffer = values.buffers()
    ends = read_only(ends_buffer, np.int64)[values.offset : values.offset + len(values) + 1]
    data = read_only(data_buffer or b"", np.uint8)
    plan = _plan(mapping)
    columns = scan(data, ends, plan, text_ids=ids == "string", unit=unit)
    batch = _scanned(columns, data, ids, mapping)
    messages = np.flatnonzero(columns.known)
    converted = int(np.count_nonzero(columns.converted & columns.known))
    if len(messages) == len(values):
        return [DecodedRows(Draft(batch, Faults.none(len(messages))), messages, converted=converted)], []

    unknown = np.flatnonzero(~columns.known)
    refused: list[pa.Table] = []
    rows: list[JsonRow] = []
    sources: list[int] = []
    refusals: list[Refusal] = []
    for i, raw in zip(unknown.tolist(), values.take(pa.array(unknown)).to_pylist(), strict=True):
        try:
            rows.append(read_message(raw, ids, unit, mapping))
            sources.append(i)
        except RefusedError as error:
            refusals.append((i, error.reason, str(error)))
    if rows:
        messages = np.concatenate((messages, np.array(sources, np.int64)))
        order = np.argsort(messages)
        together = pa.Table.from_batches([batch, _read(rows, batch.schema)]).combine_chunks().to_batches()[0]
        batch, messages = together.take(pa.array(order)), messages[order]
    if refusals:
        refused.append(refusal_table(refusals))
    converted += sum(row.converted for row in rows)
    return [DecodedRows(Draft(batch, Faults.none(len(messages))), messages, converted=converted)], refused


def written_spans(
    values: pa.LargeBinaryArray, mapping: Mapping
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Start and length of the value at the path of ``mapping.WRITTEN`` in each message (0: none); and whether it is known."""
    _, ends_buffer, data_buffer = values.buffers()
    ends = read_only(ends_buffer, np.int64)[values.offset : values.offset + len(values) + 1]
    columns = scan(read_only(data_buffer or b"", np.uint8), ends, _plan(mapping), text_ids=False, unit="s")
    lengths = np.where(columns.known, columns.written_bytes, 0)
    return columns.written, lengths, columns.known


def _scanned(columns: Columns, data: npt.NDArray[np.uint8], ids: IdKind, mapping: Mapping) -> pa.RecordBatch:
    """The messages known to the scanner, as columns."""
    known = columns.known
    every = bool(known.all())

    def of_known(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return values if every else values[known]

    given = of_known(columns.given)

    def given_bits(bits: int) -> npt.NDArray[np.bool_]:
        return np.asarray((given & bits) != 0)

    is_node = given_bits(NODE)

    def texts(
        starts: npt.NDArray[np.int64],
        lengths: npt.NDArray[np.int64],
        missing: npt.NDArray[np.bool_] | None,
        prefix: str = "",
        of_nodes: str = "",
    ) -> pa.Array:
        before, other = (np.frombuffer(text.encode(), np.uint8) for text in (prefix, of_nodes))
        offsets, text = gather_text(
            data, columns.unescaped, of_known(starts), of_known(lengths), before, other, is_node
        )
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(text)]
        array = pa.Array.from_buffers(pa.string(), len(offsets) - 1, buffers)
        return array if missing is None else pc.if_else(pa.array(missing), None, array)

    def optional(values: npt.NDArray[Any], bit: int) -> pa.Array:
        present = given_bits(bit)
        if not present.any():
            return pa.nulls(len(given), pa.from_numpy_dtype(values.dtype))
        return pa.array(of_known(values), mask=~present)

    no_dst = is_node if is_node.any() else None
    if ids == "string":
        prefix = mapping.prefix
        src = texts(columns.src, columns.src_bytes, None, prefix.src, prefix.node)
        dst = texts(columns.dst, columns.dst_bytes, no_dst, prefix.dst)
    else:
        src = pa.array(of_known(columns.src))
        dst = pa.array(of_known(columns.dst), mask=no_dst)
    has_features, has_event_id = given_bits(FEATURES | VALUES), given_bits(EVENT_ID)
    features = pa.nulls(len(given), pa.list_(pa.float32()))
    if has_features.any():
        # Unknown messages left no values, so the ends of known ones are running ends.
        ends = np.concatenate(([0], of_known(columns.feature_ends))).astype(np.int32)
        flat = pa.array(columns.values[: ends[-1]].copy())
        features = pa.ListArray.from_arrays(ends, flat, mask=pa.array(~has_features))
    event_id = pa.nulls(len(given), pa.string())
    if has_event_id.any():
        event_id = texts(columns.event_id, columns.event_id_bytes, ~has_event_id)
    schema = _row_schema(ids, mapping)
    arrays = {
        "op": pa.array(of_known(columns.op)),
        "src": src,
        "dst": dst,
        "t": pa.array(of_known(columns.t)),
        "weight": pa.array(of_known(columns.weight)),
        "features": features,
        "feature_offset": optional(columns.feature_offset, OFFSET),
        "label": optional(columns.label, LABEL),
        "event_id": event_id,
    }
    if WRITTEN in schema.names:
        absent = ~given_bits(SPAN_BIT)
        arrays[WRITTEN] = texts(columns.written, columns.written_bytes, absent).cast(_BINARY)
    return pa.RecordBatch.from_arrays([arrays[name] for name in schema.names], schema=schema)


_BINARY = pa.large_binary()


def _row_schema(ids: IdKind, mapping: Mapping) -> pa.Schema:
    schema = draft_schema(ids)
    return schema.append(pa.field(WRITTEN, _BINARY)) if WRITTEN in mapping.names else schema


def _read(rows: list[JsonRow], schema: pa.Schema) -> pa.RecordBatch:
    """The messages known to ``read_message``, as columns."""
    return pa.RecordBatch.from_arrays(
        [pa.array([getattr(row, field.name) for row in rows], field.type) for field in schema], schema=schema
    )


def read_message(raw: bytes, ids: IdKind, unit: TimeUnit, mapping: Mapping = NATIVE) -> JsonRow:
    """Read one message, a JSON object in UTF-8; fields that are null count as absent, unknown keys are ignored.

    Raises:
        RefusedError: With the reason and a sentence that names the field.
    """
    fields = _fields(raw, mapping)
    if "node" in fields or mapping.of_nodes:
        return _node_event(fields, ids, unit)
    return _edge_event(fields, ids, unit)


def _edge_event(fields: _Fields, ids: IdKind, unit: TimeUnit) -> JsonRow:
    prefix = fields.mapping.prefix
    return JsonRow(
        op=_op(fields),
        src=_node_id(fields, "src", ids, prefix.src),
        dst=_node_id(fields, "dst", ids, prefix.dst),
        t=_time(fields, unit),
        weight=_weight(fields),
        features=_values(fields, "features"),
        feature_offset=None,
        label=_label(fields),
        event_id=_event_id(fields),
        written=fields.written(),
        converted=fields.converted(ids),
    )


def _node_event(fields: _Fields, ids: IdKind, unit: TimeUnit) -> JsonRow:
    for other in ("src", "dst"):
        if other in fields.values:
            _refuse(Reason.WRONG_TYPE, f"has both node and {other}, but an event is of a node or of an edge")
    if _op(fields) != Op.INSERT:
        _refuse(Reason.UNKNOWN_OP, "op is delete, which is known for edges only")
    features, offset = _values(fields, "features"), _integer(fields, "offset", 32)
    values = _values(fields, "values")
    if features is not None and (offset is not None or values is not None):
        _refuse(Reason.WRONG_TYPE, "has features and offset or values. Give the full vector or a piece of it")
    if values is not None and "offset" not in fields:
        _refuse(Reason.MISSING_FIELD, "values are given without offset")
    return JsonRow(
        op=Op.NODE,
        src=_node_id(fields, "node", ids, fields.mapping.prefix.node),
        dst=None,
        t=_time(fields, unit),
        weight=_weight(fields),
        features=features if values is None else values,
        feature_offset=offset,
        label=_label(fields),
        event_id=_event_id(fields),
        written=fields.written(),
        converted=fields.converted(ids),
    )


def _expected(name: str, ids: IdKind, unit: TimeUnit, mapping: Mapping) -> str:
    """The expected content of a field, for a sentence."""
    if name == "op":
        return " or ".join(f'"{word}"' for word in mapping.ops)
    if name in ("src", "dst", "node"):
        if ids == "int":
            return "a number"
        return "a string or an integer"
    if name == "t":
        if unit == "rfc3339":
            return "an RFC 3339 string (the topic's time_unit)"
        if mapping.time_texts:
            return f"a number in {unit} or an RFC 3339 string (the topic has no time_unit)"
        return f"a number (the topic's time_unit is {unit})"
    if name == "event_id":
        return "a string or an integer"
    return {"weight": "a number", "features": "an array of numbers", "values": "an array of numbers"}.get(
        name, "an integer"
    )


def _fields(raw: bytes, mapping: Mapping) -> _Fields:
    """The fields of the message's object that are not null; numbers as int or ``Number``."""
    parsed = parse(raw)
    if not isinstance(parsed, dict):
        remedy = ". For an event in each element, set many: '.'" if isinstance(parsed, list) else ""
        _refuse(NOT_JSON, f"a JSON {_kind_of(parsed)} instead of an object, one per event{remedy}")
    values: dict[str, Any] = {}
    parts: dict[int, Any] = {}
    _collect(parsed, mapping.tree, "", values, parts if mapping.feature_parts else None)
    if parts:
        for part in range(mapping.feature_parts):
            if part not in parts:
                _refuse(
                    Reason.MISSING_FIELD,
                    f"{mapping.shown('features', part)} is missing, but others of features are given",
                )
        values["features"] = [parts[part] for part in range(mapping.feature_parts)]
    return _Fields(values, mapping)


def parse(raw: bytes) -> Any:
    """The value of a message; numbers as int or ``Number``.

    Raises:
        RefusedError: It is no JSON, or nested too deep.
    """
    if not raw:
        _refuse(NOT_JSON, "the message is empty")
    if raw.count(b"[") + raw.count(b"{") > MAX_DEPTH and _depth(raw) > MAX_DEPTH:
        _refuse(NOT_JSON, f"nested deeper than {MAX_DEPTH} levels")
    return _parsed(raw)


def _parsed(raw: bytes) -> Any:
    """The value of a message, an object with a repeated key as ``_Repeating``.

    msgspec takes a seventh of the time of Python's parser, which reads what msgspec does not know or would hide.
    """
    try:
        parsed = _DECODER.decode(raw)
    except ValueError as error:
        try:
            raw.decode("utf-8")
        except UnicodeDecodeError as fault:
            _refuse(NOT_JSON, f"not UTF-8 at byte {fault.start}")
        if not _PYTHON_KNOWS.search(raw):
            place = _PLACE.fullmatch(str(error))
            words = f"{place[1]} at {place[2]}" if place else f"cut off at byte {len(raw)}"
            _refuse(NOT_JSON, f"not JSON: {words}")
    else:
        if not isinstance(parsed, dict) or len(_KEYS.findall(raw)) == _keys_in(parsed):
            return parsed
    try:
        return json.loads(
            raw.decode("utf-8"),
            parse_int=Number,
            parse_float=Number,
            parse_constant=Number,
            object_pairs_hook=_object,
        )
    except json.JSONDecodeError as error:
        _refuse(NOT_JSON, f"not JSON: {error.msg} at character {error.pos}")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) == len(pairs):
        return content
    repeating = _Repeating(content)
    counts = Counter(key for key, _ in pairs)
    repeating.repeated = frozenset(key for key, count in counts.items() if count > 1)
    return repeating


def dumped(value: Any) -> bytes:
    """A parsed value as JSON: numbers as they were written, repeated keys twice."""
    return _dumped(value).encode("utf-8", "surrogatepass")


def _dumped(value: Any) -> str:
    if isinstance(value, dict):
        pairs = [*value.items()]
        if isinstance(value, _Repeating):
            pairs += [(key, value[key]) for key in value.repeated]
        return "{" + ",".join(f"{json.dumps(key)}:{_dumped(below)}" for key, below in pairs) + "}"
    if isinstance(value, list):
        return f"[{','.join(map(_dumped, value))}]"
    return str(value) if isinstance(value, Number) else json.dumps(value)


def array_elements(raw: bytes, *, lines: bool) -> list[bytes]:
    """The elements of an array, each as JSON: the reference of ``json_kernel.find_elements`` for texts that are arrays.

    Raises:
        RefusedError: It is no array.
    """
    value = parse(raw)
    if not isinstance(value, list):
        expected = "an array, or an object per line" if lines else "an array"
        _refuse(Reason.WRONG_TYPE, f"{_quoted(value)}, expected {expected}")
    return [dumped(element) for element in value]


def with_inner(raw: bytes, keys: PathKeys) -> bytes | None:
    """A message in which the text at a path is the JSON value that it holds; None: there is none."""
    try:
        whole = parse(raw)
        above = whole
        for key in keys[:-1]:
            above = above[key]
        above[keys[-1]] = parse(above[keys[-1]].encode())
        return dumped(whole)
    except (RefusedError, LookupError, TypeError, AttributeError, UnicodeEncodeError):
        return None


def _keys_in(value: dict[str, Any] | list[Any]) -> int:
    """Keys of all objects in a value."""
    count = len(value) if isinstance(value, dict) else 0
    for below in value.values() if isinstance(value, dict) else value:
        if isinstance(below, (dict, list)):
            count += _keys_in(below)
    return count


def _collect(
    content: dict[str, Any],
    level: Level,
    above: str,
    values: dict[str, Any],
    parts: dict[int, Any] | None,
) -> None:
    """Put the values at the keys of one object into ``values``, and pieces of features into ``parts``."""
    if isinstance(content, _Repeating):
        for key in level:
            if key in content.repeated:
                _refuse(NOT_JSON, f"the key {above}{key} stands twice")
    for key, value in content.items():
        below = level.get(key)
        if below is None:
            continue
        if value is None:
            if isinstance(below, list) and ("op", 0) in below:
                values["op"] = _NULL
            continue
        if isinstance(below, dict):
            if not isinstance(value, dict):
                _wrong(f"{above}{key}", value, "an object")
            _collect(value, below, f"{above}{key}.", values, parts)
            continue
        for name, part in below:
            if name == "features" and parts is not None:
                parts[part] = value
            else:
                values[name] = value


def _depth(raw: bytes) -> int:
    text = np.frombuffer(_STRINGS.sub(b"", raw), np.uint8)
    opened = np.isin(text, _OPENING).astype(np.int8) - np.isin(text, _CLOSING).astype(np.int8)
    return int(np.cumsum(opened, dtype=np.int64).max(initial=0))


def _op(fields: _Fields) -> Op:
    value = fields.get("op")
    ops = fields.mapping.ops
    if value is None or value is _NULL:
        return ops.get("null", Op.INSERT) if value is _NULL else Op.INSERT
    words = _expected("op", "int", "s", fields.mapping)
    word = json.dumps(value) if isinstance(value, bool) else str(value)
    if word not in ops:
        if type(value) is not str:
            _wrong(fields.shown("op"), value, words)
        _refuse(Reason.UNKNOWN_OP, f"{fields.shown('op')} is {shorten(value)}, expected {words}")
    return ops[word]


def _node_id(fields: _Fields, name: str, ids: IdKind, prefix: str) -> int | str:
    if name in fields.mapping.elsewhere:
        return 0 if ids == "int" else ""
    shown = fields.shown(name)
    if name not in fields:
        _refuse(Reason.MISSING_FIELD, f"{shown} is missing")
    value = fields.get(name)
    if ids == "int":
        value = _number_in(value)
    if _is_number(value):
        if ids == "int":
            return _whole(shown, value, 64, Reason.BAD_ID)
        return f"{prefix}{_whole(shown, value, 64, Reason.BAD_ID, text=True)}"
    if isinstance(value, str):
        if ids == "int":
            _refuse(
                Reason.BAD_ID, f"{shown} is the string {shorten(value)}, but ids are int64 (config key ids)"
            )
        if prefix and not value:
            _refuse(Reason.BAD_ID, f"{shown} is an empty string")
        return prefix + _text(shown, value)
    _wrong(shown, value, _expected(name, ids, "s", fields.mapping))


def _time(fields: _Fields, unit: TimeUnit) -> int:
    if "t" in fields.mapping.elsewhere:
        return 0
    shown = fields.shown("t")
    if "t" not in fields:
        _refuse(Reason.MISSING_FIELD, f"{shown} is missing")
    value = fields.get("t")
    dates = unit == "rfc3339" or (fields.mapping.time_texts and not _is_number(_number_in(value)))
    if type(value) is str and dates:
        try:
            return rfc3339_to_us(value)
        except ValueError as error:
            _refuse(Reason.WRONG_TYPE, f"{shown} is {shorten(value)}, which {error}")
    value = value if unit == "rfc3339" else _number_in(value)
    if unit == "rfc3339" or not _is_number(value):
        _wrong(shown, value, _expected("t", "int", unit, fields.mapping))
    text = str(value)
    if text[-1] in "yN":  # Infinity, NaN
        _refuse(Reason.NOT_FINITE, f"{shown} is {text}")
    return number_to_us(text, unit)


def _weight(fields: _Fields) -> float:
    value = fields.get("weight")
    if value is None:
        return 1.0
    value = _number_in(value)
    if not _is_number(value):
        _wrong(fields.shown("weight"), value, "a number")
    return float(_float32([value])[0])


def _values(fields: _Fields, name: str) -> npt.NDArray[np.float32] | None:
    value = fields.get(name)
    if value is None:
        return None
    listed = name == "features" and fields.mapping.feature_parts > 0
    if not isinstance(value, list):
        _wrong(fields.shown(name), value, "an array of numbers")
    buckets = fields.mapping.hashed if listed else ()
    value = [
        _bucket(item, buckets[i]) if i < len(buckets) and buckets[i] else _number_in(item)
        for i, item in enumerate(value)
    ]
    for i, item in enumerate(value):
        if not _is_number(item):
            shown = fields.mapping.shown(name, i) if listed else f"{fields.shown(name)}[{i}]"
            _refuse(Reason.WRONG_TYPE, f"{shown} is {_quoted(item)}, expected a number")
    return _float32(value)


def _float32(numbers: list[int | Number]) -> npt.NDArray[np.float32]:
    with np.errstate(over="ignore"):  # beyond float32 becomes infinite, which the column check refuses
        # By text: an int beyond float64 raises, its digits become infinite.
        return np.array([float(str(number)) for number in numbers], np.float64).astype(np.float32)


def _integer(fields: _Fields, name: str, bits: int) -> int | None:
    value = _number_in(fields.get(name))
    if value is None:
        return None
    if not _is_number(value):
        _wrong(fields.shown(name), value, "an integer")
    return _whole(fields.shown(name), value, bits, Reason.WRONG_TYPE)


def _label(fields: _Fields) -> int | None:
    value = fields.get("label")
    return int(value) if isinstance(value, bool) else _integer(fields, "label", 32)


def _event_id(fields: _Fields) -> str | None:
    value = fields.get("event_id")
    shown = fields.shown("event_id")
    if value is None:
        return None
    if _is_number(value):
        return str(_whole(shown, value, 64, Reason.BAD_ID, text=True))
    if isinstance(value, str):
        return _text(shown, value)
    _wrong(shown, value, "a string or an integer")


def _whole(name: str, value: int | Number, bits: int, reason: Reason, *, text: bool = False) -> int:
    """An integer however it is written (5, 5.0, 5e0), within ``bits`` signed bits; ``text``: the field takes text, too."""
    limit = 2 ** (bits - 1)
    try:
        number = Decimal(value)
    except InvalidOperation:  # an exponent of twenty digits
        number = Decimal("NaN")
    if number.is_zero():
        return 0
    if number.is_finite() and number.adjusted() < 20:  # before int(): 1e999999999 has as many digits
        whole = int(number)
        if whole == number and -limit <= whole < limit:
            return whole
    _refuse(reason, f"{name} is {shorten(value)}, expected {'a string or ' if text else ''}an int{bits}")


def _text(name: str, value: str) -> str:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        _refuse(Reason.BAD_ID, f"{name} holds half of a surrogate pair, which is no character")
    return value


def _is_number(value: Any) -> TypeGuard[int | Number]:
    return type(value) in (int, Number)


def _bucket(value: Any, buckets: int) -> Any:
    """The bucket of a category; an array and an object as they are."""
    if isinstance(value, list | dict):
        return value
    text = json.dumps(value) if isinstance(value, bool) else str(value)
    content = np.frombuffer(text.encode("utf-8", "replace"), np.uint8)
    return int(hashed(content, 0, len(content)) % np.uint64(buckets))


def _number_in(value: Any) -> Any:
    """The number that a text is, if it is written as JSON writes one; else the value."""
    return Number(value) if type(value) is str and _NUMBER.fullmatch(value) else value


def _kind_of(value: Any) -> str:
    """JSON's word for a parsed value."""
    if _is_number(value):
        return "number"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, str):
        return "string"
    if isinstance(value, list):
        return "array"
    return "object" if isinstance(value, dict) else "null"


def _quoted(value: Any) -> str:
    """A value for a sentence."""
    kind = _kind_of(value)
    if kind == "boolean":
        return str(value).lower()
    if kind in ("string", "number"):
        return f"the {kind} {shorten(value)}"
    return "null" if value is None else f"an {kind}"


def _wrong(name: str, value: Any, expected: str) -> NoReturn:
    _refuse(Reason.WRONG_TYPE, f"{name} is {_quoted(value)}, expected {expected}")


def _refuse(reason: str, sentence: str) -> NoReturn:
    raise RefusedError(reason, sentence)
