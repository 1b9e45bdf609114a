"""The scanner of JSON messages: one pass over the bytes of a whole poll, straight into columns.

It knows the plain ways to write an event. Everything else (escapes in keys, exponents in ids, anything wrong) is left
to ``json_message``, message by message, so that both together accept exactly what that module accepts.
"""

from dataclasses import dataclass

import numpy as np

from schemas.events import Op
from stream.arrays.kinds import Bool, Float32, Int8, Int32, Int64, UInt8
from stream.decode.json_grammar import (
    CLOSE_ARRAY,
    CLOSE_OBJECT,
    COLON,
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
    skip_word,
    to_float32,
    to_us,
)
from stream.decode.json_paths import (
    ALSO,
    CHILD,
    DST,
    FEATURE_PART,
    FEATURES,
    LABEL,
    NODE,
    OFFSET,
    OP,
    PART,
    SLOT,
    SRC,
    VALUES,
    WEIGHT,
    ScanPlan,
    T,
    find_entry,
)
from stream.decode.json_text import is_utf8, spelled, unescape
from stream.decode.times import SCALE_DIGITS, TimeUnit
from stream.kernels import njit

PART_BIT = 1 << FEATURE_PART
_INSERT, _NODE_OP = int(Op.INSERT), int(Op.NODE)
NO_NUMBER = 100
"""Scale of times that are texts only; greater than any of ``SCALE_DIGITS``."""


def time_scale(unit: TimeUnit) -> int:
    """Decimal places between numbers of ``t`` and the microsecond, or ``NO_NUMBER``."""
    return NO_NUMBER if unit == "rfc3339" else SCALE_DIGITS[unit]


@dataclass(frozen=True, slots=True)
class Columns:
    """The result of the scanner; rows are messages.

    Attributes:
        known: bool [n]: whether the message was read; other columns mean nothing if not.
        given: int64 [n]: bits of the fields that are given (not null).
        op: int8 [n].
        src, dst: int64 [n]: the id, or the start of its text in the data.
        src_bytes, dst_bytes: int64 [n]: length of the text; 0 for int ids.
        t: int64 [n], microseconds.
        weight: float32 [n].
        feature_ends: int64 [n]: running ends in ``values``.
        values: float32, all features in order.
        feature_offset, label: int32 [n].
        event_id, event_id_bytes: int64 [n]: start and length of its text.
        unescaped: uint8, texts that had escapes: a start beyond the data lies in here.
    """

    known: Bool
    given: Int64
    op: Int8
    src: Int64
    dst: Int64
    src_bytes: Int64
    dst_bytes: Int64
    t: Int64
    weight: Float32
    feature_ends: Int64
    values: Float32
    feature_offset: Int32
    label: Int32
    event_id: Int64
    event_id_bytes: Int64
    unescaped: UInt8


_KINDS: dict[str, type] = {
    **dict.fromkeys(("src", "dst", "src_bytes", "dst_bytes", "event_id", "event_id_bytes"), np.int64),
    **dict.fromkeys(("given", "t", "feature_ends"), np.int64),
    **dict.fromkeys(("feature_offset", "label"), np.int32),
    **{"known": np.bool_, "op": np.int8},
}


def scan(data: UInt8, ends: Int64, plan: ScanPlan, *, text_ids: bool, unit: TimeUnit) -> Columns:
    """Read messages that stand side by side in ``data``.

    Args:
        data: uint8, the bytes.
        ends: int64 [n + 1], message i is ``data[ends[i]:ends[i + 1]]``.
        plan: The topic's mapping.
        text_ids: Ids are strings.
        unit: The topic's time unit.
    """
    n, num_bytes = len(ends) - 1, int(ends[-1] - ends[0])
    columns = Columns(
        **{name: np.zeros(n, kind) for name, kind in _KINDS.items()},
        weight=np.ones(n, np.float32),
        # Each takes a digit and a comma; those of several paths are reserved at once.
        values=np.empty(num_bytes // 2 + 1 + plan.parts, np.float32),
        unescaped=np.empty(4 * num_bytes, np.uint8),  # memory is used only as far as it is written
    )
    scale, paths = time_scale(unit), plan.paths
    _scan(
        data,
        ends,
        text_ids,
        scale,
        plan.time_texts or scale == NO_NUMBER,
        paths.keys,
        paths.levels,
        paths.entries,
        plan.words,
        plan.word_ends,
        plan.word_ops,
        plan.numbers,
        plan.parts,
        *(getattr(columns, name) for name in Columns.__dataclass_fields__),
    )
    return columns


@njit(cache=True, nogil=True)
def _read_floats(data: UInt8, i: int, end: int, values: Float32, count: int) -> tuple[int, int]:
    """Read an array of numbers at i into ``values[count:]``; position after it or −1, and the new count."""
    if at(data, i, end) != OPEN_ARRAY:
        return -1, count
    i = skip_space(data, i + 1, end)
    if at(data, i, end) == CLOSE_ARRAY:
        return i + 1, count
    while True:
        i, negative, digits, power, exact, _ = scan_number(data, i, end)
        if i < 0:
            return -1, count
        certain, value = to_float32(negative, digits, power, exact)
        if not certain:
            return -1, count
        values[count] = value
        count += 1
        i = skip_space(data, i, end)
        c = at(data, i, end)
        if c == CLOSE_ARRAY:
            return i + 1, count
        if c != COMMA:
            return -1, count
        i = skip_space(data, i + 1, end)


@njit(cache=True, nogil=True)
def _read_text(
    data: UInt8, i: int, end: int, or_number: bool, unescaped: UInt8, used: int
) -> tuple[int, int, int, int]:
    """Read a text at i; a whole number's digits are its text.

    Returns:
        Position after it or −1, its start (for ``gather_text``), its bytes, and the bytes now used of ``unescaped``.
    """
    c = at(data, i, end)
    if c == QUOTE:
        close = plain_string_end(data, i, end)
        if close >= 0:
            return close + 1, i + 1, close - i - 1, used
        past, after = unescape(data, i, end, unescaped, used)
        return past, len(data) + used, after - used, after
    if or_number and (c == MINUS or ZERO <= c <= NINE):
        past, number = _read_whole(data, i, end)
        # -0 is the number 0.
        return (-1 if number == 0 and c == MINUS else past), i, past - i, used
    return -1, 0, 0, used


@njit(cache=True, nogil=True)
def _read_whole(data: UInt8, i: int, end: int) -> tuple[int, int]:
    """Read an integer at i: position after it or −1, and the number."""
    i, negative, digits, power, exact, integer = scan_number(data, i, end)
    if not integer or power != 0 or not exact:
        i = -1
    return i, -digits if negative else digits


@njit(cache=True, nogil=True)
def _scan(
    data: UInt8,
    ends: Int64,
    text_ids: bool,
    scale: int,
    time_texts: bool,
    keys: UInt8,
    levels: Int64,
    entries: Int64,
    words: UInt8,
    word_ends: Int64,
    word_ops: Int8,
    numbers: int,
    parts: int,
    known: Bool,
    given: Int64,
    op: Int8,
    src: Int64,
    dst: Int64,
    src_bytes: Int64,
    dst_bytes: Int64,
    t: Int64,
    weight: Float32,
    feature_ends: Int64,
    values: Float32,
    feature_offset: Int32,
    label: Int32,
    event_id: Int64,
    event_id_bytes: Int64,
    unescaped: UInt8,
) -> None:
    count = used = 0
    seen = np.full(len(entries), -1, np.int64)  # the last message with each key
    guesses = levels[:-1].copy()  # keys mostly have the order of the previous message
    above = np.zeros(len(levels), np.int64)
    for m in range(len(ends) - 1):
        i, end = ends[m], ends[m + 1]
        first = count
        has = parts_found = 0
        level = depth = 0
        high_bits = np.uint8(0)
        for k in range(i, end):
            high_bits |= data[k]
        i = skip_space(data, i, end)
        ok = at(data, i, end) == OPEN_OBJECT and (high_bits < 128 or is_utf8(data, i, end))
        i += 1
        closed = False
        op[m] = _INSERT
        while ok and not closed:
            i = skip_space(data, i, end)
            close = plain_string_end(data, i, end) if at(data, i, end) == QUOTE else -1
            if close < 0:  # also {}, which has no event
                ok = False
                break
            e = find_entry(
                data, i + 1, close, keys, entries, levels[level], levels[level + 1], guesses[level]
            )
            i = skip_space(data, close + 1, end)
            if at(data, i, end) != COLON:
                ok = False
                break
            i = skip_space(data, i + 1, end)
            c = at(data, i, end)
            if e < 0:
                i = skip_value(data, i, end)
            else:
                guesses[level] = e + 1
                if seen[e] == m:
                    ok = False
                    break
                seen[e] = m
                if c == 110:
                    i = skip_word(data, i, end)
                elif entries[e, CHILD] >= 0:
                    if c != OPEN_OBJECT:
                        ok = False
                        break
                    i = skip_space(data, i + 1, end)
                    if at(data, i, end) != CLOSE_OBJECT:
                        above[depth] = level
                        depth += 1
                        level = entries[e, CHILD]
                        continue
                    i += 1
                else:
                    begin = i
                    while e >= 0:
                        i = begin
                        bit = 1 << entries[e, SLOT]
                        has |= bit
                        if bit in (SRC, NODE):
                            if text_ids:
                                i, src[m], src_bytes[m], used = _read_text(
                                    data, i, end, numbers & bit != 0, unescaped, used
                                )
                                ok &= src_bytes[m] > 0 or numbers & bit == 0
                            else:
                                i, src[m] = _read_whole(data, i, end)
                        elif bit == DST:
                            if text_ids:
                                i, dst[m], dst_bytes[m], used = _read_text(
                                    data, i, end, numbers & bit != 0, unescaped, used
                                )
                                ok &= dst_bytes[m] > 0 or numbers & bit == 0
                            else:
                                i, dst[m] = _read_whole(data, i, end)
                        elif bit == T:
                            if c == QUOTE and time_texts:
                                close = plain_string_end(data, i, end)
                                certain, t[m] = rfc3339(data, i + 1, close)
                                i = close + 1
                            else:
                                i, negative, digits, power, exact, _ = scan_number(data, i, end)
                                certain, t[m] = to_us(negative, digits, power + scale, exact)
                                certain &= scale != NO_NUMBER
                            ok &= certain
                        elif bit == OP:
                            close = plain_string_end(data, i, end) if c == QUOTE else -1
                            word = spelled(data, i + 1, close, words, word_ends)
                            if word < 0:
                                ok = False
                            else:
                                op[m] = word_ops[word]
                            i = close + 1
                        elif bit == WEIGHT:
                            i, negative, digits, power, exact, _ = scan_number(data, i, end)
                            certain, weight[m] = to_float32(negative, digits, power, exact)
                            ok &= certain
                        elif bit == PART_BIT:
                            i, negative, digits, power, exact, _ = scan_number(data, i, end)
                            certain, values[first + entries[e, PART]] = to_float32(
                                negative, digits, power, exact
                            )
                            ok &= certain
                            parts_found += 1
                        elif bit in (FEATURES, VALUES):
                            i, count = _read_floats(data, i, end, values, count)
                        elif bit in (LABEL, OFFSET):
                            i, number = _read_whole(data, i, end)
                            ok &= -(2**31) <= number < 2**31
                            if bit == LABEL:
                                label[m] = number
                            else:
                                feature_offset[m] = number
                        else:  # EVENT_ID
                            i, event_id[m], event_id_bytes[m], used = _read_text(
                                data, i, end, True, unescaped, used
                            )
                        e = entries[e, ALSO] if i > 0 else -1
            if i <= 0:
                ok = False
                break
            while True:
                i = skip_space(data, i, end)
                c = at(data, i, end)
                i += 1
                if c != CLOSE_OBJECT or depth == 0:
                    break
                depth -= 1
                level = above[depth]
            closed = c == CLOSE_OBJECT
            ok &= closed or c == COMMA
        ok = ok and skip_space(data, i, end) == end
        if parts_found:
            has = (has & ~PART_BIT) | FEATURES
            count += parts
            ok &= parts_found == parts and not has & VALUES
        if has & NODE:
            op_before = op[m]
            op[m] = _NODE_OP
            pieces = has & (FEATURES | OFFSET | VALUES)
            ok &= (
                op_before == _INSERT
                and not has & (SRC | DST)
                and pieces in (0, FEATURES, OFFSET | VALUES)
                and has & T != 0
            )
        else:
            needed = SRC | DST | T
            ok &= has & needed == needed and not has & (OFFSET | VALUES)
        if not ok:
            count = first
        feature_ends[m] = count
        known[m] = ok
        given[m] = has
