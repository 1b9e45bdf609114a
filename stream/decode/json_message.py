"""One JSON message to one event: the reference that defines what is accepted, and names faults.

The columnar scanner (``json_kernel``) gives the same result for plain messages, and leaves the others to this module.
"""

import json
import re
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from schemas.events import IdKind, Op, Reason
from stream.decode.mapping import NATIVE, Level, Mapping
from stream.decode.reading import RefusedError
from stream.decode.rules import shorten
from stream.decode.times import TimeUnit, number_to_us, rfc3339_to_us

MAX_DEPTH = 64
"""Deepest nesting of arrays and objects in a message, the message itself included."""

NOT_JSON = "not_json"
"""Reason of a message that is no JSON object, or one that contradicts itself."""

_OPENING, _CLOSING = (np.frombuffer(brackets, np.uint8) for brackets in (b"[{", b"]}"))
_STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)


class Number(str):
    """A JSON number as it was written; it is converted once its field is known, so nothing is rounded."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


@dataclass(frozen=True, slots=True)
class JsonRow:
    """One event in the types of the canonical columns; ``features`` is float32."""

    op: int
    src: int | str
    dst: int | str | None
    t: int
    weight: float
    features: npt.NDArray[np.float32] | None
    feature_offset: int | None
    label: int | None
    event_id: str | None


@dataclass(frozen=True, slots=True)
class _Found:
    """The fields of one message that are not null."""

    values: dict[str, Any]
    mapping: Mapping

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def get(self, name: str) -> Any:
        return self.values.get(name)

    def shown(self, name: str) -> str:
        return self.mapping.shown(name)


def read_message(raw: bytes, ids: IdKind, unit: TimeUnit, mapping: Mapping = NATIVE) -> JsonRow:
    """Read one message, a JSON object in UTF-8; fields that are null count as absent, unknown keys are ignored.

    Raises:
        RefusedError: With the reason and a sentence that names the field.
    """
    fields = _fields(raw, mapping)
    if "node" in fields:
        return _node_event(fields, ids, unit)
    return _edge_event(fields, ids, unit)


def _edge_event(fields: _Found, ids: IdKind, unit: TimeUnit) -> JsonRow:
    prefix = fields.mapping.prefix
    return JsonRow(
        op=_op(fields),
        src=_node_id(fields, "src", ids, prefix.src),
        dst=_node_id(fields, "dst", ids, prefix.dst),
        t=_time(fields, unit),
        weight=_weight(fields),
        features=_values(fields, "features"),
        feature_offset=None,
        label=_integer(fields, "label", 32),
        event_id=_event_id(fields),
    )


def _node_event(fields: _Found, ids: IdKind, unit: TimeUnit) -> JsonRow:
    for other in ("src", "dst"):
        if other in fields:
            _refuse(Reason.WRONG_TYPE, f"has both node and {other}, but an event is of a node or of an edge")
    if _op(fields) != Op.INSERT:
        _refuse(Reason.UNKNOWN_OP, "op is delete, which is known for edges only")
    features, offset = _values(fields, "features"), _integer(fields, "offset", 32)
    values = _values(fields, "values")
    if features is not None and (offset is not None or values is not None):
        _refuse(Reason.WRONG_TYPE, "has features and offset or values. Give the full vector or a piece of it")
    if values is not None and offset is None:
        _refuse(Reason.MISSING_FIELD, "values are given without offset")
    return JsonRow(
        op=Op.NODE,
        src=_node_id(fields, "node", ids, fields.mapping.prefix.node),
        dst=None,
        t=_time(fields, unit),
        weight=_weight(fields),
        features=features if values is None else values,
        feature_offset=offset,
        label=_integer(fields, "label", 32),
        event_id=_event_id(fields),
    )


def expected(name: str, ids: IdKind, unit: TimeUnit, mapping: Mapping) -> str:
    """The expected content of a field, for a sentence."""
    if name == "op":
        return " or ".join(f'"{word}"' for word in mapping.ops)
    if name in ("src", "dst", "node"):
        if ids == "int":
            return "a number"
        return "a string or an integer" if getattr(mapping.prefix, name) else "a string"
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


def _fields(raw: bytes, mapping: Mapping) -> _Found:
    """The fields of the message's object that are not null; numbers as ``Number``, objects as tuples."""
    if not raw:
        _refuse(NOT_JSON, "the message is empty")
    if raw.count(b"[") + raw.count(b"{") > MAX_DEPTH and _depth(raw) > MAX_DEPTH:
        _refuse(NOT_JSON, f"nested deeper than {MAX_DEPTH} levels")
    try:
        # Objects become tuples of pairs: repeated keys stay visible, and no array is mistaken for an object.
        parsed = json.loads(
            raw.decode("utf-8"),
            parse_int=Number,
            parse_float=Number,
            parse_constant=Number,
            object_pairs_hook=tuple,
        )
    except UnicodeDecodeError as error:
        _refuse(NOT_JSON, f"not UTF-8 at byte {error.start}")
    except json.JSONDecodeError as error:
        _refuse(NOT_JSON, f"not JSON: {error.msg} at character {error.pos}")
    if not isinstance(parsed, tuple):
        _refuse(NOT_JSON, f"a JSON {kind_of(parsed)} instead of an object, one per event")
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
    return _Found(values, mapping)


def _collect(
    pairs: tuple[tuple[str, Any], ...],
    level: Level,
    above: str,
    values: dict[str, Any],
    parts: dict[int, Any] | None,
) -> None:
    """Put the values at the keys of one object into ``values``, and pieces of features into ``parts``."""
    seen: set[str] = set()
    for key, value in pairs:
        below = level.get(key)
        if below is None:
            continue
        if key in seen:
            _refuse(NOT_JSON, f"the key {above}{key} stands twice")
        seen.add(key)
        if value is None:
            continue
        if isinstance(below, dict):
            if not isinstance(value, tuple):
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


def _op(fields: _Found) -> Op:
    value = fields.get("op")
    if value is None:
        return Op.INSERT
    ops = fields.mapping.ops
    words = expected("op", "int", "s", fields.mapping)
    if isinstance(value, Number) or not isinstance(value, str):
        _wrong(fields.shown("op"), value, words)
    if value not in ops:
        _refuse(Reason.UNKNOWN_OP, f"{fields.shown('op')} is {shorten(value)}, expected {words}")
    return ops[value]


def _node_id(fields: _Found, name: str, ids: IdKind, prefix: str) -> int | str:
    shown = fields.shown(name)
    if name not in fields:
        _refuse(Reason.MISSING_FIELD, f"{shown} is missing")
    value = fields.get(name)
    if isinstance(value, Number):
        if ids == "string" and not prefix:
            _refuse(
                Reason.BAD_ID, f"{shown} is the number {shorten(value)}, but ids are strings (config key ids)"
            )
        if not prefix:
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
    _wrong(shown, value, expected(name, ids, "s", fields.mapping))


def _time(fields: _Found, unit: TimeUnit) -> int:
    shown = fields.shown("t")
    if "t" not in fields:
        _refuse(Reason.MISSING_FIELD, f"{shown} is missing")
    value = fields.get("t")
    is_text = isinstance(value, str) and not isinstance(value, Number)
    if is_text and (unit == "rfc3339" or fields.mapping.time_texts):
        try:
            return rfc3339_to_us(value)
        except ValueError as error:
            _refuse(Reason.WRONG_TYPE, f"{shown} is {shorten(value)}, which {error}")
    if unit == "rfc3339" or not isinstance(value, Number):
        _wrong(shown, value, expected("t", "int", unit, fields.mapping))
    if value[-1] in "yN":  # Infinity, NaN
        _refuse(Reason.NOT_FINITE, f"{shown} is {value}")
    return number_to_us(value, unit)


def _weight(fields: _Found) -> float:
    value = fields.get("weight")
    if value is None:
        return 1.0
    if not isinstance(value, Number):
        _wrong(fields.shown("weight"), value, "a number")
    return float(_float32([value])[0])


def _values(fields: _Found, name: str) -> npt.NDArray[np.float32] | None:
    value = fields.get(name)
    if value is None:
        return None
    listed = name == "features" and fields.mapping.feature_parts > 0
    if not isinstance(value, list):
        _wrong(fields.shown(name), value, "an array of numbers")
    for i, item in enumerate(value):
        if not isinstance(item, Number):
            shown = fields.mapping.shown(name, i) if listed else f"{fields.shown(name)}[{i}]"
            _refuse(Reason.WRONG_TYPE, f"{shown} is {found(item)}, expected a number")
    return _float32(value)


def _float32(numbers: list[Number]) -> npt.NDArray[np.float32]:
    with np.errstate(over="ignore"):  # beyond float32 becomes infinite, which the column check refuses
        return np.array([float(number) for number in numbers], np.float64).astype(np.float32)


def _integer(fields: _Found, name: str, bits: int) -> int | None:
    value = fields.get(name)
    if value is None:
        return None
    if not isinstance(value, Number):
        _wrong(fields.shown(name), value, "an integer")
    return _whole(fields.shown(name), value, bits, Reason.WRONG_TYPE)


def _event_id(fields: _Found) -> str | None:
    value = fields.get("event_id")
    shown = fields.shown("event_id")
    if value is None:
        return None
    if isinstance(value, Number):
        return str(_whole(shown, value, 64, Reason.BAD_ID, text=True))
    if isinstance(value, str):
        return _text(shown, value)
    _wrong(shown, value, "a string or an integer")


def _whole(name: str, value: Number, bits: int, reason: Reason, *, text: bool = False) -> int:
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


def kind_of(value: Any) -> str:
    """JSON's word for a parsed value."""
    if isinstance(value, Number):
        return "number"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, str):
        return "string"
    if isinstance(value, list):
        return "array"
    return "object" if isinstance(value, tuple) else "null"


def found(value: Any) -> str:
    """A value for a sentence."""
    kind = kind_of(value)
    if kind == "boolean":
        return str(value).lower()
    if kind in ("string", "number"):
        return f"the {kind} {shorten(value)}"
    return "null" if value is None else f"an {kind}"


def _wrong(name: str, value: Any, expected: str) -> NoReturn:
    _refuse(Reason.WRONG_TYPE, f"{name} is {found(value)}, expected {expected}")


def _refuse(reason: str, sentence: str) -> NoReturn:
    raise RefusedError(reason, sentence)
