"""Texts in JSON messages, as kernels: escapes, UTF-8, words, and many texts into one Arrow array."""

import numpy as np

from stream.arrays.kinds import Bool, Int32, Int64, UInt8
from stream.decode.json_grammar import BACKSLASH, NINE, QUOTE, at, is_hex
from stream.kernels import njit


@njit(cache=True, nogil=True)
def _code_unit(data: UInt8, i: int, end: int) -> int:
    r"""The 16 bits of a \uXXXX escape whose backslash is at i; −1: there is none."""
    if i + 6 > end or data[i] != BACKSLASH or data[i + 1] != 117:
        return -1
    unit = 0
    for k in range(2, 6):
        c = int(np.int64(data[i + k]))
        if not is_hex(c):
            return -1
        unit = unit * 16 + (c - 48 if c <= NINE else (c & 0xDF) - 55)
    return unit


@njit(cache=True, nogil=True)
def unescape(data: UInt8, i: int, end: int, out: UInt8, used: int) -> tuple[int, int]:
    """Write a string whose opening quote is at i, escapes resolved, to ``out[used:]``, which is large enough.

    Returns:
        Position after it, or −1 if it is wrong or holds half of a surrogate pair; and the bytes now used.
    """
    i += 1
    after = used
    while i < end:
        c = int(np.int64(data[i]))
        if c == QUOTE:
            return i + 1, after
        if c < 32:
            break
        i += 1
        if c == BACKSLASH:
            c = at(data, i, end)
            i += 1
            if c == 117:
                c = _code_unit(data, i - 2, end)
                if c < 0 or 0xDC00 <= c <= 0xDFFF:
                    break
                i += 4
                if 0xD800 <= c <= 0xDBFF:
                    low = _code_unit(data, i, end)
                    if low < 0xDC00 or low > 0xDFFF:
                        break
                    i += 6
                    c = 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00)
                after = _put_character(out, after, c)
                continue
            if c == 98:
                c = 8
            elif c == 102:
                c = 12
            elif c == 110:
                c = 10
            elif c == 114:
                c = 13
            elif c == 116:
                c = 9
            elif c not in (QUOTE, BACKSLASH, 47):
                break
        out[after] = c
        after += 1
    return -1, used


@njit(cache=True, nogil=True)
def _put_character(out: UInt8, i: int, c: int) -> int:
    """Write a character as UTF-8 to ``out[i:]``; the position past it."""
    if c < 0x80:
        out[i] = c
        return i + 1
    if c < 0x800:
        out[i] = 0xC0 | c >> 6
        i += 1
    else:
        if c < 0x10000:
            out[i] = 0xE0 | c >> 12
            i += 1
        else:
            out[i] = 0xF0 | c >> 18
            out[i + 1] = 0x80 | c >> 12 & 0x3F
            i += 2
        out[i] = 0x80 | c >> 6 & 0x3F
        i += 1
    out[i] = 0x80 | c & 0x3F
    return i + 1


@njit(cache=True, nogil=True)
def is_utf8(data: UInt8, i: int, end: int) -> bool:
    """Whether the bytes are well-formed UTF-8."""
    return utf8_fault(data, i, end) < 0


@njit(cache=True, nogil=True)
def utf8_fault(data: UInt8, i: int, end: int) -> int:
    """The first position that is not well-formed UTF-8 (overlong forms, surrogates, above U+10FFFF); −1 if there is none."""
    while i < end:
        c = data[i]
        if c < 0x80:
            i += 1
            continue
        low, high = 0x80, 0xBF
        if 0xC2 <= c <= 0xDF:
            more = 1
        elif 0xE0 <= c <= 0xEF:
            more = 2
            if c == 0xE0:
                low = 0xA0
            elif c == 0xED:
                high = 0x9F
        elif 0xF0 <= c <= 0xF4:
            more = 3
            if c == 0xF0:
                low = 0x90
            elif c == 0xF4:
                high = 0x8F
        else:
            return i
        for k in range(1, more + 1):
            follower = at(data, i + k, end)
            if follower < low or follower > high:
                return i
            low, high = 0x80, 0xBF
        i += more + 1
    return -1


@njit(cache=True, nogil=True)
def gather_text(
    data: UInt8,
    unescaped: UInt8,
    starts: Int64,
    lengths: Int64,
    prefix: UInt8,
    other: UInt8,
    is_other: Bool,
) -> tuple[Int32, UInt8]:
    """Copy pieces of ``data`` side by side, each after a prefix (``other`` where ``is_other``).

    Pieces that start beyond ``data`` are taken from ``unescaped``, which is thought to follow it.

    Returns:
        Offsets (int32 [n + 1]) and bytes of an Arrow string array.
    """
    offsets = np.zeros(len(starts) + 1, np.int32)
    for i in range(len(starts)):
        offsets[i + 1] = offsets[i] + lengths[i] + (len(other) if is_other[i] else len(prefix))
    text = np.empty(offsets[-1], np.uint8)
    for i in range(len(starts)):
        at_ = offsets[i]
        if is_other[i]:
            for k in range(len(other)):
                text[at_ + k] = other[k]
            at_ += len(other)
        else:
            for k in range(len(prefix)):
                text[at_ + k] = prefix[k]
            at_ += len(prefix)
        start = starts[i] - len(data)
        if start < 0:
            for k in range(lengths[i]):
                text[at_ + k] = data[starts[i] + k]
        else:
            for k in range(lengths[i]):
                text[at_ + k] = unescaped[start + k]
    return offsets, text


@njit(cache=True, nogil=True)
def spelled(data: UInt8, i: int, end: int, words: UInt8, word_ends: Int64) -> int:
    """The index of ``data[i:end]`` among words that stand side by side; −1 if it is none."""
    start = 0
    for w in range(len(word_ends)):
        size = word_ends[w] - start
        if size == end - i:
            k = 0
            while k < size and words[start + k] == data[i + k]:
                k += 1
            if k == size:
                return w
        start = word_ends[w]
    return -1
