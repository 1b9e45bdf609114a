"""The scanner of JSON messages: one pass over the bytes of a whole poll, straight into columns.

It knows the plain ways to write an event. What it doesn't know (escapes in ids, exponents in ids, anything
wrong) it leaves to ``json_message``, message by message, so that both together accept exactly what that
module accepts.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from numba import njit

from schemas.events import Op
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
    Bytes,
    at,
    is_utf8,
    plain_string_end,
    rfc3339,
    scan_number,
    skip_space,
    skip_value,
    skip_word,
    to_float32,
    to_us,
)
from stream.decode.json_message import FIELDS
from stream.decode.times import SCALE_DIGITS, TimeUnit

Int64Array = npt.NDArray[np.int64]

SRC, DST, T, OP, WEIGHT, FEATURES, LABEL, EVENT_ID, NODE, OFFSET, VALUES = (
    1 << slot for slot in range(len(FIELDS))
)
"""Bits of ``Columns.given``, in the order of ``json_message.FIELDS``."""
_KEYS = np.frombuffer("".join(FIELDS).encode(), np.uint8).copy()
_KEY_ENDS = np.cumsum([len(field) for field in FIELDS])
_INSERT, _DELETE, _NODE_OP = int(Op.INSERT), int(Op.DELETE), int(Op.NODE)
_RFC3339 = -1


@dataclass(frozen=True, slots=True)
class Columns:
    """What the scanner read; rows are messages.

    Attributes:
        known: bool [n]: read; all else about the other messages means nothing.
        given: int64 [n]: bits of the fields that are given (not null).
        op: int8 [n].
        src: int64 [n]: the id, or where its text starts in the data.
        dst: int64 [n]: likewise.
        src_bytes: int64 [n]: length of the text; 0 for int ids.
        dst_bytes: int64 [n]: likewise.
        t: int64 [n], microseconds.
        weight: float32 [n].
        feature_ends: int64 [n]: running ends in ``values``.
        values: float32, the features one after the other.
        feature_offset: int32 [n].
        label: int32 [n].
        event_id: int64 [n]: where its text starts.
        event_id_bytes: int64 [n].
    """

    known: npt.NDArray[np.bool_]
    given: Int64Array
    op: npt.NDArray[np.int8]
    src: Int64Array
    dst: Int64Array
    src_bytes: Int64Array
    dst_bytes: Int64Array
    t: Int64Array
    weight: npt.NDArray[np.float32]
    feature_ends: Int64Array
    values: npt.NDArray[np.float32]
    feature_offset: npt.NDArray[np.int32]
    label: npt.NDArray[np.int32]
    event_id: Int64Array
    event_id_bytes: Int64Array


def scan(data: Bytes, ends: Int64Array, *, text_ids: bool, unit: TimeUnit) -> Columns:
    """Read messages that stand side by side in ``data``.

    Args:
        data: uint8, the bytes.
        ends: int64 [n + 1], message i is ``data[ends[i]:ends[i + 1]]``.
        text_ids: Ids are strings.
        unit: The topic's time unit.
    """
    n = len(ends) - 1
    columns = Columns(
        known=np.zeros(n, bool),
        given=np.zeros(n, np.int64),
        op=np.zeros(n, np.int8),
        src=np.zeros(n, np.int64),
        dst=np.zeros(n, np.int64),
        src_bytes=np.zeros(n, np.int64),
        dst_bytes=np.zeros(n, np.int64),
        t=np.zeros(n, np.int64),
        weight=np.ones(n, np.float32),
        feature_ends=np.zeros(n, np.int64),
        values=np.empty(int(ends[-1] - ends[0]) // 2 + 1, np.float32),  # each takes a digit and a comma
        feature_offset=np.zeros(n, np.int32),
        label=np.zeros(n, np.int32),
        event_id=np.zeros(n, np.int64),
        event_id_bytes=np.zeros(n, np.int64),
    )
    scale = _RFC3339 if unit == "rfc3339" else SCALE_DIGITS[unit]
    _scan(data, ends, text_ids, scale, *(getattr(columns, name) for name in Columns.__dataclass_fields__))
    return columns


@njit(cache=True, nogil=True)
def gather_text(data: Bytes, starts: Int64Array, lengths: Int64Array) -> tuple[npt.NDArray[np.int32], Bytes]:
    """Copy pieces of ``data`` side by side: offsets (int32 [n + 1]) and bytes of an Arrow string array."""
    offsets = np.zeros(len(starts) + 1, np.int32)
    for i in range(len(starts)):
        offsets[i + 1] = offsets[i] + lengths[i]
    text = np.empty(offsets[-1], np.uint8)
    for i in range(len(starts)):
        for k in range(lengths[i]):
            text[offsets[i] + k] = data[starts[i] + k]
    return offsets, text


@njit(cache=True, nogil=True)
def _slot(data: Bytes, i: int, end: int) -> int:
    """The field that the key ``data[i:end]`` names; −1: none that means something."""
    start = 0
    for slot in range(len(_KEY_ENDS)):
        size = _KEY_ENDS[slot] - start
        if size == end - i:
            k = 0
            while k < size and _KEYS[start + k] == data[i + k]:
                k += 1
            if k == size:
                return slot
        start = _KEY_ENDS[slot]
    return -1


@njit(cache=True, nogil=True)
def _spells(data: Bytes, i: int, end: int, word: Bytes) -> bool:
    if end - i != len(word):
        return False
    same = True
    for k in range(len(word)):
        same &= data[i + k] == word[k]
    return same


_INSERT_WORD = np.frombuffer(b"insert", np.uint8).copy()
_DELETE_WORD = np.frombuffer(b"delete", np.uint8).copy()


@njit(cache=True, nogil=True)
def _read_floats(
    data: Bytes, i: int, end: int, values: npt.NDArray[np.float32], count: int
) -> tuple[int, int]:
    """Read an array of numbers at i into ``values[count:]``; position past it or −1, and the new count."""
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
def _read_id(data: Bytes, i: int, end: int, text: bool) -> tuple[int, int, int]:
    """Read an id at i: position past it or −1; the number, or where its text starts; the text's bytes."""
    if text:
        if at(data, i, end) != QUOTE:
            return -1, 0, 0
        close = plain_string_end(data, i, end)
        return (close + 1 if close >= 0 else -1), i + 1, close - i - 1
    i, negative, digits, power, exact, integer = scan_number(data, i, end)
    if not integer or power != 0 or not exact:
        i = -1
    return i, -digits if negative else digits, 0


@njit(cache=True, nogil=True)
def _scan(
    data: Bytes,
    ends: Int64Array,
    text_ids: bool,
    scale: int,
    known: npt.NDArray[np.bool_],
    given: Int64Array,
    op: npt.NDArray[np.int8],
    src: Int64Array,
    dst: Int64Array,
    src_bytes: Int64Array,
    dst_bytes: Int64Array,
    t: Int64Array,
    weight: npt.NDArray[np.float32],
    feature_ends: Int64Array,
    values: npt.NDArray[np.float32],
    feature_offset: npt.NDArray[np.int32],
    label: npt.NDArray[np.int32],
    event_id: Int64Array,
    event_id_bytes: Int64Array,
) -> None:
    count = 0
    for m in range(len(ends) - 1):
        i, end = ends[m], ends[m + 1]
        first = count
        seen = has = 0
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
            if close < 0:  # {} as well, which has no event in it
                ok = False
                break
            slot = _slot(data, i + 1, close)
            i = skip_space(data, close + 1, end)
            if at(data, i, end) != COLON:
                ok = False
                break
            i = skip_space(data, i + 1, end)
            c = at(data, i, end)
            bit = (1 << slot) if slot >= 0 else 0
            if seen & bit:
                ok = False
                break
            seen |= bit
            if slot < 0:
                i = skip_value(data, i, end)
            elif c == 110:
                i = skip_word(data, i, end)
            else:
                has |= bit
                if bit in (SRC, NODE):
                    i, src[m], src_bytes[m] = _read_id(data, i, end, text_ids)
                elif bit == DST:
                    i, dst[m], dst_bytes[m] = _read_id(data, i, end, text_ids)
                elif bit == T:
                    if scale >= 0:
                        i, negative, digits, power, exact, _ = scan_number(data, i, end)
                        certain, t[m] = to_us(negative, digits, power + scale, exact)
                    else:
                        close = plain_string_end(data, i, end) if c == QUOTE else -1
                        certain, t[m] = rfc3339(data, i + 1, close)
                        i = close + 1
                    ok &= certain
                elif bit == OP:
                    close = plain_string_end(data, i, end) if c == QUOTE else -1
                    if _spells(data, i + 1, close, _DELETE_WORD):
                        op[m] = _DELETE
                    elif not _spells(data, i + 1, close, _INSERT_WORD):
                        ok = False
                    i = close + 1
                elif bit == WEIGHT:
                    i, negative, digits, power, exact, _ = scan_number(data, i, end)
                    certain, weight[m] = to_float32(negative, digits, power, exact)
                    ok &= certain
                elif bit in (FEATURES, VALUES):
                    i, count = _read_floats(data, i, end, values, count)
                elif bit in (LABEL, OFFSET):
                    i, number, _ = _read_id(data, i, end, False)
                    ok &= -(2**31) <= number < 2**31
                    if bit == LABEL:
                        label[m] = number
                    else:
                        feature_offset[m] = number
                else:  # EVENT_ID
                    start = i
                    if c == MINUS or ZERO <= c <= NINE:
                        i, number, _ = _read_id(data, i, end, False)
                        # -0 is the event id 0.
                        ok &= number != 0 or c != MINUS
                        event_id[m], event_id_bytes[m] = start, i - start
                    else:
                        i, event_id[m], event_id_bytes[m] = _read_id(data, i, end, True)
            if i <= 0:
                ok = False
                break
            i = skip_space(data, i, end)
            c = at(data, i, end)
            i += 1
            closed = c == CLOSE_OBJECT
            ok &= closed or c == COMMA
        ok = ok and skip_space(data, i, end) == end
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
