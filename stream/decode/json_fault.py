"""The place and reason of wrong JSON: Python's parser as a kernel, so that refusals of a poll cost no parse each.

It finds the error that ``json.loads`` would raise, which the reference reader quotes.
"""

import numpy as np

from stream.arrays.kinds import UInt8
from stream.decode.json_grammar import (
    BACKSLASH,
    CLOSE_ARRAY,
    CLOSE_OBJECT,
    COLON,
    COMMA,
    MINUS,
    NINE,
    OPEN_ARRAY,
    OPEN_OBJECT,
    PLUS,
    POINT,
    QUOTE,
    ZERO,
    at,
    is_hex,
    skip_space,
)
from stream.kernels import njit

MESSAGES = (
    "",
    "Expecting value",
    "Expecting property name enclosed in double quotes",
    "Expecting ':' delimiter",
    "Expecting ',' delimiter",
    "Extra data",
    "Unterminated string starting at",
    "Invalid control character at",
    "Invalid \\escape",
    "Invalid \\uXXXX escape",
)
"""Python's sentences; a fault is an index among them, 0 for none."""
_VALUE, _NAME, _COLON, _COMMA, _EXTRA, _UNTERMINATED, _CONTROL, _ESCAPE, _HEX = range(1, len(MESSAGES))


@njit(cache=True, nogil=True)
def _string(data: UInt8, i: int, end: int) -> tuple[int, int]:
    """The position after a string whose opening quote is at i, and 0; or the position of the fault, and its kind."""
    begin = i
    i += 1
    while True:
        while i < end and data[i] != QUOTE and data[i] != BACKSLASH:
            if data[i] < 32:
                return i, _CONTROL
            i += 1
        if i >= end:
            return begin, _UNTERMINATED
        if data[i] == QUOTE:
            return i + 1, 0
        i += 1
        if i >= end:
            return begin, _UNTERMINATED
        c = data[i]
        if c == 117:  # \uXXXX
            if i + 5 >= end:
                return i, _HEX
            for k in range(1, 5):
                if not is_hex(data[i + k]):
                    return i, _HEX
            i += 5
        elif c in (QUOTE, BACKSLASH, 47, 98, 102, 110, 114, 116):
            i += 1
        else:
            return i - 1, _ESCAPE


@njit(cache=True, nogil=True)
def _word(data: UInt8, i: int, end: int, word: UInt8) -> bool:
    if i + len(word) > end:
        return False
    same = True
    for k in range(len(word)):
        same &= data[i + k] == word[k]
    return same


_NULL, _TRUE, _FALSE, _NAN, _INFINITY, _MINUS_INFINITY = (
    np.frombuffer(word, np.uint8).copy()
    for word in (b"null", b"true", b"false", b"NaN", b"Infinity", b"-Infinity")
)


@njit(cache=True, nogil=True)
def _scalar(data: UInt8, i: int, end: int) -> int:
    """The position after a word or a number at i; −1 if there is none."""
    c = at(data, i, end)
    if c == 110 and _word(data, i, end, _NULL):
        return i + 4
    if c == 116 and _word(data, i, end, _TRUE):
        return i + 4
    if c == 102 and _word(data, i, end, _FALSE):
        return i + 5
    if c == 78 and _word(data, i, end, _NAN):
        return i + 3
    if c == 73 and _word(data, i, end, _INFINITY):
        return i + 8
    if c == MINUS and _word(data, i, end, _MINUS_INFINITY):
        return i + 9
    if c == MINUS:
        i += 1
        c = at(data, i, end)
    if c < ZERO or c > NINE:
        return -1
    i += 1
    if c != ZERO:
        while ZERO <= at(data, i, end) <= NINE:
            i += 1
    if at(data, i, end) == POINT and ZERO <= at(data, i + 1, end) <= NINE:
        i += 2
        while ZERO <= at(data, i, end) <= NINE:
            i += 1
    if at(data, i, end) in (101, 69):  # e E
        k = i + 1
        if at(data, k, end) in (PLUS, MINUS):
            k += 1
        if ZERO <= at(data, k, end) <= NINE:
            while ZERO <= at(data, k, end) <= NINE:
                k += 1
            i = k
    return i


@njit(cache=True, nogil=True)
def json_fault(data: UInt8, i: int, end: int) -> tuple[int, int]:
    """The first fault of UTF-8 bytes that should be one JSON value, nested at most 64 deep.

    Returns:
        The index in ``MESSAGES``, 0 for none; and the position of the fault.
    """
    objects = np.uint64(0)  # bit d: level d + 1 is an object
    one = np.uint64(1)
    depth = 0
    i = skip_space(data, i, end)
    while True:
        # A value begins at i.
        c = at(data, i, end)
        if c in (OPEN_OBJECT, OPEN_ARRAY):
            is_object = c == OPEN_OBJECT
            i = skip_space(data, i + 1, end)
            if at(data, i, end) == (CLOSE_OBJECT if is_object else CLOSE_ARRAY):
                i += 1
            else:
                level = one << np.uint64(depth)
                objects = objects | level if is_object else objects & ~level
                depth += 1
                if is_object:
                    i, fault = _key(data, i, end)
                    if fault:
                        return fault, i
                continue
        elif c == QUOTE:
            i, fault = _string(data, i, end)
            if fault:
                return fault, i
        else:
            past = _scalar(data, i, end)
            if past < 0:
                return _VALUE, i
            i = past
        # It ended: continue in the array or object around it, or close that.
        while True:
            i = skip_space(data, i, end)
            if depth == 0:
                return (_EXTRA if i < end else 0), i
            c = at(data, i, end)
            in_object = (objects >> np.uint64(depth - 1)) & one == one
            if c == COMMA:
                i = skip_space(data, i + 1, end)
                if in_object:
                    i, fault = _key(data, i, end)
                    if fault:
                        return fault, i
                break
            if c != (CLOSE_OBJECT if in_object else CLOSE_ARRAY):
                return _COMMA, i
            i += 1
            depth -= 1


@njit(cache=True, nogil=True)
def _key(data: UInt8, i: int, end: int) -> tuple[int, int]:
    """The position after a key at i, its colon and white space, and 0; or the position of the fault, and its kind."""
    if at(data, i, end) != QUOTE:
        return i, _NAME
    i, fault = _string(data, i, end)
    if fault:
        return i, fault
    i = skip_space(data, i, end)
    if at(data, i, end) != COLON:
        return i, _COLON
    return skip_space(data, i + 1, end), 0


@njit(cache=True, nogil=True)
def count_characters(data: UInt8, i: int, end: int) -> int:
    """Characters of well-formed UTF-8."""
    count = 0
    for k in range(i, end):
        count += data[k] & 0xC0 != 0x80
    return count
