"""Numbers that Kafka Connect writes into JSON in a form of its own: decimals as bytes, and times in a unit that the schema names.

They are replaced by plain numbers before a message is read.
"""

import base64
import binascii
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from freshet_graph.schemas.fields import PathKeys
from freshet_graph.stream.arrays.kinds import Bool
from freshet_graph.stream.decode.json_kernel import replace_spans
from freshet_graph.stream.decode.json_lists import buffers_of, pieces_of, written_at
from freshet_graph.stream.decode.times import SCALE_DIGITS, TIME_UNITS, TimeUnit

MOST_SCHEMAS = 1024
"""Most schemas whose meanings are remembered."""
MOST_TEXT_BYTES = 64
"""Longest text of a decimal."""
VARIABLE = "VariableScaleDecimal"
_SCALE = re.compile(r"-?\d{1,2}", re.ASCII)

Meaning = Callable[[bytes], bytes | None]
"""From a value as it is written in JSON to the number that it means; None: it is none."""


class Meanings:
    """Values of Kafka Connect by the schema around their message (``{"schema": …, "payload": …}``), or by a given scale.

    Args:
        paths: Of the values.
        of_time: The path of the event's time, whose unit a schema may name.
        unit: The unit that the time is wanted in.
        scales: Scale of decimals, by path; for messages without their schema.
    """

    def __init__(
        self,
        paths: Iterable[PathKeys],
        of_time: Iterable[PathKeys],
        unit: TimeUnit,
        scales: Mapping[PathKeys, int],
    ) -> None:
        self._paths, self._of_time, self._unit = [*dict.fromkeys(paths)], {*of_time}, unit
        self._scales = {keys: _decimal(scale) for keys, scale in scales.items()}
        self._known: dict[bytes, dict[PathKeys, Meaning]] = {}

    def read(self, values: pa.LargeBinaryArray, may_be_wrapped: Bool) -> pa.LargeBinaryArray:
        """Messages with plain numbers; of those that may have their schema around them it is looked for."""
        for keys, meaning in self._scales.items():
            values = _replaced(values, keys, np.zeros(len(values), np.int64), [meaning])
        if not may_be_wrapped.any():
            return values
        starts, lengths, _ = written_at(values, ("schema",))
        lengths = np.where(may_be_wrapped, lengths, 0)
        schemas = pieces_of(buffers_of(values)[0], starts, lengths).cast(pa.binary()).dictionary_encode()
        meanings = [self._of(schema) for schema in schemas.dictionary.to_pylist()]
        codes = schemas.indices.to_numpy()
        for keys in dict.fromkeys(keys for known in meanings for keys in known):
            choices = [known.get(keys) for known in meanings]
            values = _replaced(values, ("payload", *keys), codes, choices)
        return values

    def _of(self, schema: bytes) -> dict[PathKeys, Meaning]:
        """The meanings of one schema's fields."""
        known = self._known.get(schema)
        if known is None:
            try:
                parsed = msgspec.json.decode(schema) if schema else None
            except (ValueError, RecursionError):
                parsed = None
            named = ((keys, self._meaning(_field(parsed, keys), keys)) for keys in self._paths)
            known = {keys: meaning for keys, meaning in named if meaning is not None}
            if len(self._known) >= MOST_SCHEMAS:
                self._known.clear()
            self._known[schema] = known
        return known

    def _meaning(self, field: Any, keys: PathKeys) -> Meaning | None:
        if not isinstance(field, dict):
            return None
        kind = str(field.get("name", "")).rpartition(".")[2]
        if kind == VARIABLE:
            return _variable
        if kind == "Decimal":
            parameters = field.get("parameters")
            scale = str(parameters.get("scale", "0")) if isinstance(parameters, dict) else "0"
            return _decimal(int(scale)) if _SCALE.fullmatch(scale) else None
        unit = TIME_UNITS.get(kind)
        if unit is None or keys not in self._of_time or self._unit == "rfc3339":
            return None
        seconds = 86_400 if unit == "days" else 1
        places = (0 if unit == "days" else SCALE_DIGITS[unit] - 6) - (SCALE_DIGITS[self._unit] - 6)
        return _time(seconds, places)


def _field(schema: Any, keys: PathKeys) -> Any:
    """The schema of a field inside of another."""
    for key in keys:
        fields = schema.get("fields") if isinstance(schema, dict) else None
        named = (
            (one for one in fields if isinstance(one, dict) and one.get("field") == key)
            if isinstance(fields, list)
            else ()
        )
        schema = next(iter(named), None)
    return schema


def _decimal(scale: int) -> Meaning:
    def number(text: bytes) -> bytes | None:
        if text[:1] != b'"' or len(text) > MOST_TEXT_BYTES:
            return None
        try:
            content = base64.b64decode(text[1:-1], validate=True)
        except binascii.Error:
            return None
        if not content:
            return None
        digits = int.from_bytes(content, "big", signed=True)
        return b"%d" % digits if scale == 0 else b"%dE%d" % (digits, -scale)

    return number


def _variable(text: bytes) -> bytes | None:
    try:
        parsed = msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(parsed, dict):
        return None
    scale, value = parsed.get("scale"), parsed.get("value")
    if type(scale) is not int or abs(scale) > 999 or not isinstance(value, str):
        return None
    return _decimal(scale)(b'"%b"' % value.encode("utf-8", "replace"))


def _time(factor: int, places: int) -> Meaning:
    def number(text: bytes) -> bytes | None:
        if not text.lstrip(b"-").isdigit() or len(text) > MOST_TEXT_BYTES:
            return None
        return b"%dE%d" % (int(text) * factor, places)

    return number


def _replaced(
    values: pa.LargeBinaryArray, keys: PathKeys, codes: Any, meanings: list[Meaning | None]
) -> pa.LargeBinaryArray:
    """Messages in which the value at a path is the number that it means, by the meaning that each message's code has."""
    if len(values) == 0:
        return values
    starts, lengths, _ = written_at(values, keys)
    data, ends = buffers_of(values)
    wanted = np.flatnonzero((lengths > 0) & np.array([meaning is not None for meaning in meanings])[codes])
    numbers: list[bytes | None] = []
    for code, text in zip(
        codes[wanted].tolist(), pieces_of(data, starts[wanted], lengths[wanted]).to_pylist(), strict=True
    ):
        meaning = meanings[code]
        numbers.append(None if meaning is None else meaning(text))
    known = np.array([number is not None for number in numbers], bool)
    places = wanted[known]
    if not len(places):
        return values
    texts = pa.array([number for number in numbers if number is not None], pa.large_binary())
    new_data, new_ends = buffers_of(texts)
    which = np.full(len(values), -1)
    which[places] = np.arange(len(places))
    room = int(ends[-1] - ends[0]) + len(new_data)
    out, out_ends = np.empty(room, np.uint8), np.empty(len(values) + 1, np.int64)
    replace_spans(data, ends, starts, lengths, which, new_data, new_ends, out, out_ends)
    buffers = [None, pa.py_buffer(out_ends), pa.py_buffer(out)]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(values), buffers)
