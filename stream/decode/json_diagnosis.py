"""Why the scanner refused messages, without reading each in Python.

A kernel finds in each message the first fault that ``json_message`` would name, as far as it is sure of it. Sentences
are then made from the fault and its bytes. Everything else is left to ``json_message``. So a producer that gets every
message wrong costs little more than one that gets them right.
"""

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from schemas.events import IdKind, Reason
from stream.arrays.kinds import Int64, UInt8
from stream.decode.json_fault import MESSAGES, count_characters, json_fault
from stream.decode.json_grammar import (
    CLOSE_OBJECT,
    COMMA,
    MINUS,
    NINE,
    OPEN_ARRAY,
    OPEN_OBJECT,
    QUOTE,
    ZERO,
    at,
    plain_string_end,
    rfc3339,
    scan_number,
    skip_space,
    skip_value,
    to_us,
)
from stream.decode.json_kernel import NO_NUMBER, time_scale
from stream.decode.json_message import MAX_DEPTH, NOT_JSON, Number, expected, found, kind_of
from stream.decode.json_paths import (
    ALSO,
    CHILD,
    DST,
    EVENT_ID,
    FEATURE_PART,
    FEATURES,
    LABEL,
    NODE,
    OP,
    SLOT,
    SRC,
    WEIGHT,
    ScanPlan,
    T,
    find_entry,
)
from stream.decode.json_text import spelled, utf8_fault
from stream.decode.mapping import FIELDS, Mapping
from stream.decode.reading import refused_alike
from stream.decode.rules import shorten
from stream.decode.times import TimeUnit, rfc3339_to_us
from stream.kernels import njit

_UNSURE, _EMPTY, _NOT_UTF8, _NOT_JSON, _NOT_OBJECT = range(5)
_TWICE, _NO_OBJECT, _MISSING, _WRONG, _ID_TEXT, _ID_NUMBER, _NO_ID, _UNKNOWN_OP, _BAD_TIME = range(5, 14)
_SLOTS = len(FIELDS)
_GOOD, _DOUBTFUL = 0, -1
_CHECKED = tuple(
    FIELDS.index(name) for name in ("op", "src", "dst", "t", "weight", "features", "label", "event_id")
)
"""Fields in the order in which ``json_message`` checks an edge event."""
_ORDER = np.array(_CHECKED, np.int64)
_SRC, _DST, _T, _NODE, _FEATURES = (FIELDS.index(name) for name in ("src", "dst", "t", "node", "features"))


@njit(cache=True, nogil=True)
def _state(
    data: UInt8,
    i: int,
    past: int,
    slot: int,
    text_ids: bool,
    scale: int,
    time_texts: bool,
    numbers: int,
    words: UInt8,
    word_ends: Int64,
) -> int:
    """The fault of a field's value at i … past, ``_GOOD``, or ``_DOUBTFUL``."""
    bit = 1 << slot
    c = at(data, i, past)
    is_number = c == MINUS or ZERO <= c <= NINE
    close = plain_string_end(data, i, past) if c == QUOTE else -1
    if bit in (SRC, DST, NODE):
        prefixed = numbers & bit != 0
        if c == QUOTE:
            if not text_ids:
                return _ID_TEXT
            if close < 0:
                return _DOUBTFUL
            return _NO_ID if prefixed and close == i + 1 else _GOOD
        if is_number:
            if text_ids and not prefixed:
                return _ID_NUMBER
            _, _, _, power, exact, integer = scan_number(data, i, past)
            return _GOOD if integer and power == 0 and exact else _DOUBTFUL
        return _WRONG
    if bit == T:
        if c == QUOTE and time_texts:
            if close < 0:
                return _DOUBTFUL
            certain, _ = rfc3339(data, i + 1, close)
            return _GOOD if certain else _BAD_TIME
        if not is_number or scale == NO_NUMBER:
            return _WRONG
        _, negative, digits, power, exact, _ = scan_number(data, i, past)
        certain, _ = to_us(negative, digits, power + scale, exact)
        return _GOOD if certain else _DOUBTFUL
    if bit == OP:
        if c != QUOTE:
            return _WRONG
        if close < 0:
            return _DOUBTFUL
        return _GOOD if spelled(data, i + 1, close, words, word_ends) >= 0 else _UNKNOWN_OP
    if bit == WEIGHT:
        return _GOOD if is_number else _WRONG
    if bit == FEATURES:
        return _DOUBTFUL if c == OPEN_ARRAY else _WRONG
    if bit == LABEL:
        return _DOUBTFUL if is_number else _WRONG
    if bit == EVENT_ID:
        return _DOUBTFUL if is_number or (c == QUOTE and close < 0) else _GOOD if c == QUOTE else _WRONG
    return _DOUBTFUL


@njit(cache=True, nogil=True)
def _diagnose(
    data: UInt8,
    ends: Int64,
    which: Int64,
    text_ids: bool,
    scale: int,
    time_texts: bool,
    keys: UInt8,
    levels: Int64,
    entries: Int64,
    words: UInt8,
    word_ends: Int64,
    numbers: int,
    parts: int,
    faults: Int64,
) -> None:
    """Fill ``faults`` [n, 4]: kind; field, key's entry or kind of text fault; its begin and end."""
    seen = np.full(len(entries), -1, np.int64)
    above = np.zeros(len(levels), np.int64)
    states = np.zeros(_SLOTS, np.int64)
    spans = np.zeros((_SLOTS, 2), np.int64)
    for n in range(len(which)):
        m = which[n]
        begin, end = ends[m], ends[m + 1]
        if begin == end:
            faults[n, 0] = _EMPTY
            continue
        brackets = 0
        high_bits = np.uint8(0)
        for k in range(begin, end):
            brackets += data[k] == OPEN_OBJECT or data[k] == OPEN_ARRAY
            high_bits |= data[k]
        if brackets > MAX_DEPTH or (end - begin >= 3 and data[begin] == 0xEF):  # perhaps a byte order mark
            continue
        if high_bits >= 128:
            place = utf8_fault(data, begin, end)
            if place >= 0:
                faults[n, 0], faults[n, 2] = _NOT_UTF8, place - begin
                continue
        fault, place = json_fault(data, begin, end)
        if fault:
            faults[n, 0], faults[n, 1] = _NOT_JSON, fault
            faults[n, 2] = count_characters(data, begin, place)
            continue
        i = skip_space(data, begin, end)
        if at(data, i, end) != OPEN_OBJECT:
            faults[n, 0], faults[n, 2], faults[n, 3] = _NOT_OBJECT, i, end
            continue

        # It is an object: what is at each path?
        states[:] = _MISSING
        sure = True
        level = depth = found = 0
        i = skip_space(data, i + 1, end)
        closed = at(data, i, end) == CLOSE_OBJECT
        while not closed:
            i = skip_space(data, i, end)
            close = plain_string_end(data, i, end)
            if close < 0:
                sure = False
                break
            first, last = levels[level], levels[level + 1]
            e = find_entry(data, i + 1, close, keys, entries, first, last, first)
            i = skip_space(data, skip_space(data, close + 1, end) + 1, end)
            past = -1
            if e >= 0:
                if seen[e] == n:
                    faults[n, 0], faults[n, 1] = _TWICE, e
                    break
                seen[e] = n
                if entries[e, CHILD] >= 0 and at(data, i, end) == OPEN_OBJECT:
                    i = skip_space(data, i + 1, end)
                    if at(data, i, end) != CLOSE_OBJECT:
                        above[depth] = level
                        depth += 1
                        level = entries[e, CHILD]
                        continue
                    past = i + 1
            if past < 0:
                past = skip_value(data, i, end)
                if past < 0:
                    sure = False
                    break
                if e >= 0 and at(data, i, end) != 110:  # null is absent
                    if entries[e, CHILD] >= 0:
                        faults[n, 0], faults[n, 1], faults[n, 2], faults[n, 3] = _NO_OBJECT, e, i, past
                        break
                    while e >= 0:
                        slot = entries[e, SLOT]
                        if slot == FEATURE_PART:
                            found += 1
                            states[_FEATURES] = _DOUBTFUL
                        else:
                            states[slot] = _state(
                                data, i, past, slot, text_ids, scale, time_texts, numbers, words, word_ends
                            )
                            spans[slot, 0], spans[slot, 1] = i, past
                        e = entries[e, ALSO]
            i = past
            while True:
                i = skip_space(data, i, end)
                c = at(data, i, end)
                i += 1
                if c != CLOSE_OBJECT or depth == 0:
                    break
                depth -= 1
                level = above[depth]
            closed = c != COMMA
        if faults[n, 0] or not sure or found not in (0, parts) or states[_NODE] != _MISSING:
            continue
        for slot in _ORDER:
            state = states[slot]
            if state == _MISSING and slot not in (_SRC, _DST, _T):
                continue
            if state == _DOUBTFUL:
                break
            if state != _GOOD:
                faults[n, 0], faults[n, 1] = state, slot
                faults[n, 2], faults[n, 3] = spans[slot, 0], spans[slot, 1]
                break


def diagnose(
    data: UInt8,
    ends: Int64,
    which: Int64,
    plan: ScanPlan,
    ids: IdKind,
    unit: TimeUnit,
    mapping: Mapping,
) -> tuple[list[pa.Table], Int64]:
    """Find the faults of the messages ``which``; ``data`` and ``ends`` are those of ``json_kernel.scan``.

    Returns:
        Refused messages (``REFUSAL_SCHEMA``), and those left to ``json_message``.
    """
    faults = np.zeros((len(which), 4), np.int64)
    scale, paths = time_scale(unit), plan.paths
    _diagnose(
        data,
        ends,
        which,
        ids == "string",
        scale,
        plan.time_texts or scale == NO_NUMBER,
        paths.keys,
        paths.levels,
        paths.entries,
        plan.words,
        plan.word_ends,
        plan.numbers,
        plan.parts,
        faults,
    )
    kinds = faults[:, 0] * 64 + faults[:, 1] % 64
    refused = []
    for kind in np.unique(kinds[faults[:, 0] != _UNSURE]).tolist():
        rows = np.flatnonzero(kinds == kind)
        spans = zip(faults[rows, 2].tolist(), faults[rows, 3].tolist(), strict=True)
        say = _Words(data.data, ids, unit, mapping, paths.names)
        reason, sentences = say.of(int(faults[rows[0], 0]), faults[rows, 1], list(spans))
        refused.append(refused_alike(which[rows], reason, sentences))
    return refused, which[faults[:, 0] == _UNSURE]


@dataclass(frozen=True, slots=True)
class _Words:
    """The sentences of ``json_message`` about faults."""

    data: memoryview
    ids: IdKind
    unit: TimeUnit
    mapping: Mapping
    paths: tuple[str, ...]

    def of(self, kind: int, whats: Int64, spans: list[tuple[int, int]]) -> tuple[str, str | list[str]]:
        """Reason and sentences of messages with one kind of fault in the same field (or text fault)."""
        what = int(whats[0])
        if kind == _EMPTY:
            return NOT_JSON, "the message is empty"
        if kind == _NOT_UTF8:
            return NOT_JSON, [f"not UTF-8 at byte {place}" for place, _ in spans]
        if kind == _NOT_JSON:
            words = MESSAGES[what]
            return NOT_JSON, [f"not JSON: {words} at character {place}" for place, _ in spans]
        if kind == _NOT_OBJECT:
            return NOT_JSON, [
                f"a JSON {kind_of(self._value(*span))} instead of an object, one per event" for span in spans
            ]
        if kind == _TWICE:
            return NOT_JSON, [f"the key {self.paths[e]} stands twice" for e in whats.tolist()]
        if kind == _NO_OBJECT:
            return Reason.WRONG_TYPE, [
                f"{self.paths[e]} is {found(self._value(*span))}, expected an object"
                for e, span in zip(whats.tolist(), spans, strict=True)
            ]
        name = FIELDS[what]
        return self._of_field(kind, name, self.mapping.shown(name), spans)

    def _of_field(
        self, kind: int, name: str, shown: str, spans: list[tuple[int, int]]
    ) -> tuple[str, str | list[str]]:
        if kind == _MISSING:
            return Reason.MISSING_FIELD, f"{shown} is missing"
        if kind == _NO_ID:
            return Reason.BAD_ID, f"{shown} is an empty string"
        wanted = expected(name, self.ids, self.unit, self.mapping)
        values = (self._value(*span) for span in spans)
        if kind == _WRONG:
            return Reason.WRONG_TYPE, [f"{shown} is {found(value)}, expected {wanted}" for value in values]
        if kind == _UNKNOWN_OP:
            return Reason.UNKNOWN_OP, [f"{shown} is {shorten(value)}, expected {wanted}" for value in values]
        if kind == _BAD_TIME:
            return Reason.WRONG_TYPE, [
                f"{shown} is {shorten(value)}, which {_why(value)}" for value in values
            ]
        what, but = ("string", "int64") if kind == _ID_TEXT else ("number", "strings")
        return Reason.BAD_ID, [
            f"{shown} is the {what} {shorten(value)}, but ids are {but} (config key ids)" for value in values
        ]

    def _value(self, start: int, end: int) -> Any:
        """A value as ``json_message`` has it, as far as sentences need it: without the content of arrays and objects."""
        text = str(self.data[start:end], "utf-8").rstrip()
        first = text[0]
        if first == '"':
            return json.loads(text) if "\\" in text else text[1:-1]
        if first in "[{":
            return [] if first == "[" else ()
        return {"t": True, "f": False, "n": None}[first] if first in "tfn" else Number(text)


def _why(text: str) -> str:
    try:
        rfc3339_to_us(text)
    except ValueError as error:
        return str(error)
    raise AssertionError(f"{text!r} is a time")  # its kernel and its twin disagree
