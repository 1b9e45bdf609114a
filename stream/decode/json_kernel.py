"""The scanner of JSON messages: one pass over the bytes of a whole poll, straight into columns.

It knows the plain ways to write an event. Everything else (escapes in keys, exponents in ids, anything wrong) is left
to ``json_messages``, message by message, so that both together accept exactly what that module accepts.

Functions over ``data`` (uint8) take a position and the end of the message, never read beyond the end, and return −1 for
bytes that they do not know.
"""

from dataclasses import dataclass

import numpy as np

from freshet_graph.schemas.events import Op
from freshet_graph.stream.arrays.kinds import Bool, Float32, Int8, Int32, Int64, UInt8
from freshet_graph.stream.decode.mapping import FIELDS, WRITTEN, Level, Mapping
from freshet_graph.stream.decode.times import SCALE_DIGITS, TimeUnit
from freshet_graph.stream.kernels import njit

MAX_SKIPPED_DEPTH = 47
"""With the longest path above it still below ``json_messages.MAX_DEPTH``, and a bit each in an int64."""
_MAX_DIGITS = 18
"""Significant digits that an int64 always holds."""
_MAX_POWER = 60
_POWERS = np.array([float(f"1e{i}") for i in range(_MAX_POWER + 1)])
_WHOLE_POWERS = np.array([10**i for i in range(_MAX_DIGITS + 1)], np.int64)
_FLOAT32_LOW, _FLOAT32_HIGH = 1.2e-38, 3.4e38
_SLACK = 1e-15
_DAYS_BEFORE_MONTH = np.array([0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334, 365], np.int64)

# Characters as numbers: numba compares those fastest.
QUOTE, BACKSLASH, COMMA, COLON = 34, 92, 44, 58
OPEN_OBJECT, CLOSE_OBJECT, OPEN_ARRAY, CLOSE_ARRAY = 123, 125, 91, 93
MINUS, PLUS, POINT, ZERO, NINE = 45, 43, 46, 48, 57


@njit(cache=True, nogil=True, inline="always")
def byte_at(data: UInt8, i: int, end: int) -> int:
    """The byte at i; 0, which JSON never has, from the end on."""
    return int(np.int64(data[i])) if i < end else 0


@njit(cache=True, nogil=True)
def skip_space(data: UInt8, i: int, end: int) -> int:
    """The first position from i that is no white space."""
    while i < end and (data[i] == 32 or data[i] == 10 or data[i] == 13 or data[i] == 9):
        i += 1
    return i


@njit(cache=True, nogil=True)
def plain_string_end(data: UInt8, i: int, end: int) -> int:
    """The closing quote of a string whose opening quote is at i; −1 if it has escapes."""
    i += 1
    while i < end:
        c = data[i]
        if c == QUOTE:
            return i
        if c == BACKSLASH or c < 32:
            return -1
        i += 1
    return -1


@njit(cache=True, nogil=True)
def is_hex(c: int) -> bool:
    """Whether a byte is a hexadecimal digit."""
    return 48 <= c <= 57 or 65 <= c <= 70 or 97 <= c <= 102


@njit(cache=True, nogil=True)
def _skip_string(data: UInt8, i: int, end: int) -> int:
    """Past a string whose opening quote is at i."""
    if byte_at(data, i, end) != QUOTE:
        return -1
    i += 1
    while i < end:
        c = data[i]
        if c == QUOTE:
            return i + 1
        if c < 32:
            return -1
        i += 1
        if c != BACKSLASH:
            continue
        escape = byte_at(data, i, end)
        i += 1
        if escape == 117:  # \uXXXX
            for _ in range(4):
                if not is_hex(byte_at(data, i, end)):
                    return -1
                i += 1
        elif escape not in (QUOTE, BACKSLASH, 47, 98, 102, 110, 114, 116):  # / b f n r t
            return -1
    return -1


@njit(cache=True, nogil=True)
def _skip_key(data: UInt8, i: int, end: int) -> int:
    """Past a key, its colon and white space on both sides."""
    i = _skip_string(data, skip_space(data, i, end), end)
    if i < 0:
        return -1
    i = skip_space(data, i, end)
    return i + 1 if byte_at(data, i, end) == COLON else -1


@njit(cache=True, nogil=True)
def skip_word(data: UInt8, i: int, end: int) -> int:
    """Past true, false or null."""
    c = byte_at(data, i, end)
    if c == 110:
        return _skip_letters(data, i, end, 110, 117, 108, 108, 0)
    if c == 116:
        return _skip_letters(data, i, end, 116, 114, 117, 101, 0)
    return _skip_letters(data, i, end, 102, 97, 108, 115, 101)


@njit(cache=True, nogil=True)
def _skip_letters(data: UInt8, i: int, end: int, a: int, b: int, c: int, d: int, e: int) -> int:
    if i + 4 > end or data[i] != a or data[i + 1] != b or data[i + 2] != c or data[i + 3] != d:
        return -1
    if e == 0:
        return i + 4
    return i + 5 if byte_at(data, i + 4, end) == e else -1


@njit(cache=True, nogil=True)
def skip_value(data: UInt8, i: int, end: int) -> int:
    """Past any JSON value and the white space before it."""
    depth = 0
    objects = 0  # bit d: level d is an object
    while True:
        i = skip_space(data, i, end)
        c = byte_at(data, i, end)
        if c in (OPEN_OBJECT, OPEN_ARRAY):
            if depth == MAX_SKIPPED_DEPTH:
                return -1
            is_object = c == OPEN_OBJECT
            i = skip_space(data, i + 1, end)
            if byte_at(data, i, end) == (CLOSE_OBJECT if is_object else CLOSE_ARRAY):
                i += 1
            else:
                depth += 1
                if is_object:
                    objects |= 1 << depth
                    i = _skip_key(data, i, end)
                    if i < 0:
                        return -1
                else:
                    objects &= ~(1 << depth)
                continue
        elif c == QUOTE:
            i = _skip_string(data, i, end)
        elif c == MINUS or ZERO <= c <= NINE:
            i = scan_number(data, i, end)[0]
        else:
            i = skip_word(data, i, end)
        if i < 0:
            return -1
        # A value ended: continue in the array or object around it, or close it.
        while True:
            if depth == 0:
                return i
            i = skip_space(data, i, end)
            c = byte_at(data, i, end)
            in_object = (objects >> depth) & 1
            i += 1
            if c == COMMA:
                if in_object:
                    i = _skip_key(data, i, end)
                    if i < 0:
                        return -1
                break
            if c != (CLOSE_OBJECT if in_object else CLOSE_ARRAY):
                return -1
            depth -= 1


@njit(cache=True, nogil=True)
def scan_number(data: UInt8, i: int, end: int) -> tuple[int, bool, int, int, bool, bool]:
    """Read a number's digits.

    Returns:
        Position past it or −1; whether it is negative; up to 18 significant digits; the power of ten that
        they are to be multiplied with; whether no digit but zeros is left out; whether it is written as an
        integer (without point and exponent).
    """
    negative = byte_at(data, i, end) == MINUS
    if negative:
        i += 1
    digits = 0
    count = power = 0
    exact = True
    c = byte_at(data, i, end)
    if c < ZERO or c > NINE:
        return -1, False, 0, 0, False, False
    if c == ZERO:
        i += 1
        c = byte_at(data, i, end)
        if ZERO <= c <= NINE:
            return -1, False, 0, 0, False, False
    while ZERO <= c <= NINE:
        if count < _MAX_DIGITS:
            digits = digits * 10 + (c - ZERO)
            count += 1
        else:
            power += 1
            exact &= c == ZERO
        i += 1
        c = byte_at(data, i, end)
    integer = True
    if c == POINT:
        integer = False
        i += 1
        c = byte_at(data, i, end)
        if c < ZERO or c > NINE:
            return -1, False, 0, 0, False, False
        while ZERO <= c <= NINE:
            if count < _MAX_DIGITS:
                digits = digits * 10 + (c - ZERO)
                count += digits > 0
                power -= 1
            else:
                exact &= c == ZERO
            i += 1
            c = byte_at(data, i, end)
    if c in (101, 69):  # e E
        integer = False
        i += 1
        c = byte_at(data, i, end)
        sign = -1 if c == MINUS else 1
        if c in (MINUS, PLUS):
            i += 1
            c = byte_at(data, i, end)
        exponent = 0
        first = i
        while ZERO <= c <= NINE:
            exponent = exponent * 10 + (c - ZERO)
            i += 1
            c = byte_at(data, i, end)
        if i == first or i - first > 4:
            return -1, False, 0, 0, False, False
        power += sign * exponent
    return i, negative, digits, power, exact, integer


@njit(cache=True, nogil=True)
def _scan_quoted(data: UInt8, i: int, end: int) -> tuple[int, bool, int, int, bool, bool]:
    """``scan_number``, also of a number that is a string."""
    quoted = byte_at(data, i, end) == QUOTE
    past, negative, digits, power, exact, integer = scan_number(data, i + 1 if quoted else i, end)
    if quoted and past > 0:
        past = past + 1 if byte_at(data, past, end) == QUOTE else -1
    return past, negative, digits, power, exact, integer


@njit(cache=True, nogil=True)
def to_float32(negative: bool, digits: int, power: int, exact: bool) -> tuple[bool, np.float32]:
    """The float32 of a scanned number, rounded like its correctly rounded float64.

    The product below may be a few float64 ulps off. That cannot change the float32 unless a border between two of them
    lies within those ulps, which is tested.

    Returns:
        Whether that is certain, and the number.
    """
    if digits == 0 and exact:
        return True, np.float32(-0.0 if negative else 0.0)
    if power > _MAX_POWER or power < -_MAX_POWER:
        return False, np.float32(0)
    value = digits * _POWERS[power] if power >= 0 else digits / _POWERS[-power]
    if not _FLOAT32_LOW < value < _FLOAT32_HIGH:
        return False, np.float32(0)
    nearest = np.float32(value)
    # Clinger 1990: an exact quotient or product of two exact float64 is correctly rounded.
    is_rounded_right = exact and digits < 2**53 and -22 <= power <= 22
    if not is_rounded_right and np.float32(value * (1 - _SLACK)) != np.float32(value * (1 + _SLACK)):
        return False, np.float32(0)
    return True, -nearest if negative else nearest


@njit(cache=True, nogil=True)
def to_us(negative: bool, digits: int, power: int, exact: bool) -> tuple[bool, int]:
    """A scanned number times ten to ``power`` (the unit's included) as microseconds, halves away from zero.

    Returns:
        Whether that is certain, and the time.
    """
    if not exact or power > _MAX_DIGITS or power < -_MAX_DIGITS:
        return False, 0
    if power >= 0:
        factor = _WHOLE_POWERS[power]
        if digits > 2**62 // factor:
            return False, 0
        micros = digits * factor
    else:
        divisor = _WHOLE_POWERS[-power]
        micros = digits // divisor
        rest = digits - micros * divisor
        micros += rest >= divisor - rest
    return True, -micros if negative else micros


@njit(cache=True, nogil=True)
def _two_digits(data: UInt8, i: int, end: int) -> int:
    tens, ones = byte_at(data, i, end), byte_at(data, i + 1, end)
    if tens < ZERO or tens > NINE or ones < ZERO or ones > NINE:
        return -1
    return (tens - ZERO) * 10 + ones - ZERO


@njit(cache=True, nogil=True)
def rfc3339(data: UInt8, i: int, end: int) -> tuple[bool, int]:
    """The time written at exactly i … end, as ``times.rfc3339_to_us`` reads it.

    Returns:
        Whether it is one, and the microseconds since the epoch.
    """
    no = (False, 0)
    if end - i < 20:
        return no
    century, year = _two_digits(data, i, end), _two_digits(data, i + 2, end)
    month, day = _two_digits(data, i + 5, end), _two_digits(data, i + 8, end)
    hour, minute = _two_digits(data, i + 11, end), _two_digits(data, i + 14, end)
    second = _two_digits(data, i + 17, end)
    if min(century, year, month, day, hour, minute, second) < 0:
        return no
    between = data[i + 10]
    if data[i + 4] != MINUS or data[i + 7] != MINUS or data[i + 13] != COLON or data[i + 16] != COLON:
        return no
    if between not in (84, 116, 32):  # T t space
        return no
    year += century * 100
    leap = (year % 4 == 0 and year % 100 != 0) or year % 400 == 0
    if year < 1 or month < 1 or month > 12 or day < 1 or hour > 23 or minute > 59 or second > 60:
        return no
    month_days = _DAYS_BEFORE_MONTH[month] - _DAYS_BEFORE_MONTH[month - 1] + (leap and month == 2)
    if day > month_days:
        return no
    before = year - 1
    days = before * 365 + before // 4 - before // 100 + before // 400 - 719_162
    days += _DAYS_BEFORE_MONTH[month - 1] + (leap and month > 2) + day - 1
    micros = 0
    i += 19
    if data[i] == POINT:
        i += 1
        first = i
        c = byte_at(data, i, end)
        while ZERO <= c <= NINE:
            place = i - first
            if place < 6:
                micros += (c - ZERO) * _WHOLE_POWERS[5 - place]
            elif place == 6:
                micros += c >= ZERO + 5
            i += 1
            c = byte_at(data, i, end)
        if i == first:
            return no
    ahead = 0
    c = byte_at(data, i, end)
    if c in (90, 122):  # Z z
        i += 1
    elif c in (PLUS, MINUS):
        hours, minutes = _two_digits(data, i + 1, end), _two_digits(data, i + 4, end)
        if byte_at(data, i + 3, end) != COLON or not (0 <= hours <= 23 and 0 <= minutes <= 59):
            return no
        ahead = hours * 3600 + minutes * 60
        if c == MINUS:
            ahead = -ahead
        i += 6
    else:
        return no
    if i != end:
        return no
    return True, (days * 86_400 + hour * 3600 + minute * 60 + second - ahead) * 1_000_000 + micros


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
            c = byte_at(data, i, end)
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
    """Whether the bytes are well-formed UTF-8: no overlong forms, no surrogates, nothing above U+10FFFF."""
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
            return False
        for k in range(1, more + 1):
            follower = byte_at(data, i + k, end)
            if follower < low or follower > high:
                return False
            low, high = 0x80, 0xBF
        i += more + 1
    return True


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
        place = offsets[i]
        if is_other[i]:
            for k in range(len(other)):
                text[place + k] = other[k]
            place += len(other)
        else:
            for k in range(len(prefix)):
                text[place + k] = prefix[k]
            place += len(prefix)
        start = starts[i] - len(data)
        if start < 0:
            for k in range(lengths[i]):
                text[place + k] = data[starts[i] + k]
        else:
            for k in range(lengths[i]):
                text[place + k] = unescaped[start + k]
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


SRC, DST, T, OP, WEIGHT, FEATURES, LABEL, EVENT_ID, NODE, OFFSET, VALUES = (
    1 << slot for slot in range(len(FIELDS))
)
"""Bits of ``Columns.given``, in the order of ``FIELDS``."""

NO_OP = -100
_OP_SLOT = FIELDS.index("op")

FEATURE_PART = len(FIELDS)
"""Slot of one of the paths that features are put together from."""

SPAN = len(FIELDS) + 1
"""Slot of a value that is left as it is written."""

CHILD, SLOT, PART, ALSO, BUCKETS = 2, 3, 4, 5, 6
"""Columns of ``PathTable.entries`` after the key's start and end."""


@dataclass(frozen=True, slots=True)
class PathTable:
    """Entries are meaningful keys, level by level.

    Attributes:
        keys: uint8, the keys' bytes.
        levels: int64 [levels + 1], first entry of each level; level 0 is the message.
        entries: int64 [entries, 7]: start and end in ``keys``; the level below or −1; slot of the field (as in
            ``FIELDS``) or −1; place among the paths of features; another entry that reads the same value or −1;
            number of buckets of a category or 0.
    """

    keys: UInt8
    levels: Int64
    entries: Int64

    @classmethod
    def of(cls, mapping: Mapping) -> "PathTable":
        """The table of a mapping."""
        keys = b""
        levels: list[int] = []
        rows: list[list[int]] = []
        more: list[tuple[int, list[int]]] = []
        waiting: list[Level] = [mapping.tree]
        while waiting:
            level = waiting.pop(0)
            levels.append(len(rows))
            for key, below in level.items():
                text = key.encode("utf-8", "surrogatepass")
                row = [len(keys), len(keys) + len(text), -1, -1, 0, -1, 0]
                keys += text
                if isinstance(below, dict):
                    waiting.append(below)
                    row[CHILD] = len(levels) + len(waiting) - 1
                else:
                    for target, part in below:
                        is_part = target == "features" and mapping.feature_parts > 0
                        slot = (
                            FEATURE_PART if is_part else SPAN if target == WRITTEN else FIELDS.index(target)
                        )
                        buckets = mapping.hashed[part] if is_part and mapping.hashed else 0
                        if row[SLOT] < 0:
                            row[SLOT], row[PART], row[BUCKETS] = slot, part, buckets
                        else:
                            more.append((len(rows), [0, 0, -1, slot, part, -1, buckets]))
                rows.append(row)
        levels.append(len(rows))
        for owner, row in more:  # beyond all levels, so no key leads to them
            row[ALSO], rows[owner][ALSO] = rows[owner][ALSO], len(rows)
            rows.append(row)
        return cls(
            np.frombuffer(keys, np.uint8).copy(),
            np.array(levels, np.int64),
            np.array(rows, np.int64).reshape(-1, 7),
        )


@dataclass(frozen=True, slots=True)
class ScanPlan:
    """A topic's mapping as the scanner takes it.

    Attributes:
        paths: Keys and fields.
        words: uint8, the words of op side by side.
        word_ends: int64, their ends.
        word_ops: int8, what each means.
        prefixed: Bits of the ids that get a prefix, and so must not be empty before it.
        parts: Paths that features are put together from.
        time_texts: Whether ``t`` may be an RFC 3339 text in a unit of numbers.
        null_op: What a null op means; ``NO_OP``: it is absent.
        elsewhere: Bits of the fields that a message needs not have; their columns mean nothing.
    """

    paths: PathTable
    words: UInt8
    word_ends: Int64
    word_ops: Int8
    prefixed: int
    parts: int
    time_texts: bool
    null_op: int
    elsewhere: int

    @classmethod
    def of(cls, mapping: Mapping) -> "ScanPlan":
        """The plan of a mapping."""
        words = [word.encode("utf-8", "surrogatepass") for word in mapping.ops]
        prefix = mapping.prefix
        prefixed = (SRC if prefix.src else 0) | (DST if prefix.dst else 0) | (NODE if prefix.node else 0)
        return cls(
            paths=PathTable.of(mapping),
            words=np.frombuffer(b"".join(words), np.uint8).copy(),
            word_ends=np.cumsum([len(word) for word in words]).astype(np.int64),
            word_ops=np.array(list(mapping.ops.values()), np.int8),
            prefixed=prefixed,
            parts=mapping.feature_parts,
            time_texts=mapping.time_texts,
            null_op=int(mapping.ops.get("null", NO_OP)),
            elsewhere=sum(1 << FIELDS.index(name) for name in mapping.elsewhere),
        )


@njit(cache=True, nogil=True)
def find_entry(
    data: UInt8, i: int, end: int, keys: UInt8, entries: Int64, first: int, last: int, guess: int
) -> int:
    """The entry among [first, last) with the key ``data[i:end]``, looked for from ``guess``; −1: none."""
    size = end - i
    e = guess
    for _ in range(last - first):
        if e >= last:
            e = first
        start = entries[e, 0]
        if entries[e, 1] - start == size:
            k = 0
            while k < size and keys[start + k] == data[i + k]:
                k += 1
            if k == size:
                return e
        e += 1
    return -1


PART_BIT, SPAN_BIT = 1 << FEATURE_PART, 1 << SPAN
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
        written, written_bytes: int64 [n]: start and length of the value at the path of ``mapping.WRITTEN``.
        converted: bool [n]: whether an id is a number although ids are text, or the reverse.
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
    written: Int64
    written_bytes: Int64
    converted: Bool
    unescaped: UInt8


_KINDS: dict[str, type] = {
    **dict.fromkeys(("src", "dst", "src_bytes", "dst_bytes", "event_id", "event_id_bytes"), np.int64),
    **dict.fromkeys(("given", "t", "feature_ends", "written", "written_bytes"), np.int64),
    **dict.fromkeys(("feature_offset", "label"), np.int32),
    **{"known": np.bool_, "converted": np.bool_, "op": np.int8},
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
        plan.prefixed,
        plan.parts,
        plan.elsewhere,
        plan.null_op,
        *(getattr(columns, name) for name in Columns.__dataclass_fields__),
    )
    return columns


@njit(cache=True, nogil=True)
def _read_floats(data: UInt8, i: int, end: int, values: Float32, count: int) -> tuple[int, int]:
    """Read an array of numbers at i into ``values[count:]``; position after it or −1, and the new count."""
    if byte_at(data, i, end) != OPEN_ARRAY:
        return -1, count
    i = skip_space(data, i + 1, end)
    if byte_at(data, i, end) == CLOSE_ARRAY:
        return i + 1, count
    while True:
        i, negative, digits, power, exact, _ = _scan_quoted(data, i, end)
        if i < 0:
            return -1, count
        certain, value = to_float32(negative, digits, power, exact)
        if not certain:
            return -1, count
        values[count] = value
        count += 1
        i = skip_space(data, i, end)
        c = byte_at(data, i, end)
        if c == CLOSE_ARRAY:
            return i + 1, count
        if c != COMMA:
            return -1, count
        i = skip_space(data, i + 1, end)


@njit(cache=True, nogil=True)
def _read_text(data: UInt8, i: int, end: int, unescaped: UInt8, used: int) -> tuple[int, int, int, int]:
    """Read a text at i; a whole number's digits are its text.

    Returns:
        Position after it or −1, its start (for ``gather_text``), its bytes, and the bytes now used of ``unescaped``.
    """
    c = byte_at(data, i, end)
    if c == QUOTE:
        close = plain_string_end(data, i, end)
        if close >= 0:
            return close + 1, i + 1, close - i - 1, used
        past, after = unescape(data, i, end, unescaped, used)
        return past, len(data) + used, after - used, after
    if c == MINUS or ZERO <= c <= NINE:
        past, number = _read_whole(data, i, end)
        # -0 is the number 0.
        return (-1 if number == 0 and c == MINUS else past), i, past - i, used
    return -1, 0, 0, used


@njit(cache=True, nogil=True)
def hashed(data: UInt8, i: int, end: int) -> np.uint64:
    """The hash FNV-1a of bytes, 64 bits: the same in every process, and so in every snapshot."""
    value = np.uint64(0xCBF29CE484222325)
    for k in range(i, end):
        value = (value ^ np.uint64(data[k])) * np.uint64(0x100000001B3)
    return value


@njit(cache=True, nogil=True)
def _bucket(data: UInt8, i: int, end: int, buckets: int) -> tuple[int, int]:
    """The bucket of a text, number or boolean at i; position after it or −1, and its number."""
    c = byte_at(data, i, end)
    if c in (OPEN_OBJECT, OPEN_ARRAY):
        return -1, 0
    past = plain_string_end(data, i, end) + 1 if c == QUOTE else skip_value(data, i, end)
    if past <= 0 or (c == MINUS and past == i + 2 and data[i + 1] == ZERO):  # -0 is the number 0
        return -1, 0
    start, stop = (i + 1, past - 1) if c == QUOTE else (i, past)
    return past, int(hashed(data, start, stop) % np.uint64(buckets))


@njit(cache=True, nogil=True)
def _read_whole(data: UInt8, i: int, end: int) -> tuple[int, int]:
    """Read an integer at i: position after it or −1, and the number."""
    i, negative, digits, power, exact, integer = _scan_quoted(data, i, end)
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
    prefixed: int,
    parts: int,
    elsewhere: int,
    null_op: int,
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
    written: Int64,
    written_bytes: Int64,
    converted: Bool,
    unescaped: UInt8,
) -> None:
    count = used = 0
    seen = np.full(len(entries), -1, np.int64)  # the last message with each key
    guesses = levels[:-1].copy()  # keys mostly have the order of the previous message
    above = np.zeros(len(levels), np.int64)
    for m in range(len(ends) - 1):
        i, end = ends[m], ends[m + 1]
        first = count
        has, parts_found = elsewhere, 0
        level = depth = 0
        high_bits = np.uint8(0)
        for k in range(i, end):
            high_bits |= data[k]
        i = skip_space(data, i, end)
        ok = byte_at(data, i, end) == OPEN_OBJECT and (high_bits < 128 or is_utf8(data, i, end))
        i += 1
        closed = False
        op[m] = _INSERT
        while ok and not closed:
            i = skip_space(data, i, end)
            close = plain_string_end(data, i, end) if byte_at(data, i, end) == QUOTE else -1
            if close < 0:  # also {}, which has no event
                ok = False
                break
            e = find_entry(
                data, i + 1, close, keys, entries, levels[level], levels[level + 1], guesses[level]
            )
            i = skip_space(data, close + 1, end)
            if byte_at(data, i, end) != COLON:
                ok = False
                break
            i = skip_space(data, i + 1, end)
            c = byte_at(data, i, end)
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
                    is_op = entries[e, CHILD] < 0 and entries[e, SLOT] == _OP_SLOT
                    if null_op != NO_OP and entries[e, ALSO] >= 0:
                        ok = False
                        break
                    if null_op != NO_OP and is_op:
                        op[m] = null_op
                elif entries[e, CHILD] >= 0:
                    if c != OPEN_OBJECT:
                        ok = False
                        break
                    i = skip_space(data, i + 1, end)
                    if byte_at(data, i, end) != CLOSE_OBJECT:
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
                                i, src[m], src_bytes[m], used = _read_text(data, i, end, unescaped, used)
                                ok &= src_bytes[m] > 0 or prefixed & bit == 0
                            else:
                                i, src[m] = _read_whole(data, i, end)
                            converted[m] |= (c == QUOTE) != text_ids
                        elif bit == DST:
                            if text_ids:
                                i, dst[m], dst_bytes[m], used = _read_text(data, i, end, unescaped, used)
                                ok &= dst_bytes[m] > 0 or prefixed & bit == 0
                            else:
                                i, dst[m] = _read_whole(data, i, end)
                            converted[m] |= (c == QUOTE) != text_ids
                        elif bit == T:
                            certain = False
                            if c == QUOTE and time_texts:
                                close = plain_string_end(data, begin, end)
                                certain, t[m] = rfc3339(data, begin + 1, close)
                                i = close + 1
                            if not certain:
                                i, negative, digits, power, exact, _ = _scan_quoted(data, begin, end)
                                certain, t[m] = to_us(negative, digits, power + scale, exact)
                                certain &= scale != NO_NUMBER
                            ok &= certain
                        elif bit == OP:
                            if c == QUOTE:
                                close = plain_string_end(data, i, end)
                                word = spelled(data, i + 1, close, words, word_ends)
                                i = close + 1
                            else:  # a boolean, or a number written as the word is
                                i = skip_value(data, i, end)
                                word = spelled(data, begin, i, words, word_ends)
                            if word < 0:
                                ok = False
                            else:
                                op[m] = word_ops[word]
                        elif bit == WEIGHT:
                            i, negative, digits, power, exact, _ = _scan_quoted(data, i, end)
                            certain, weight[m] = to_float32(negative, digits, power, exact)
                            ok &= certain
                        elif bit == PART_BIT and entries[e, BUCKETS] > 0:
                            i, number = _bucket(data, i, end, entries[e, BUCKETS])
                            values[first + entries[e, PART]] = number
                            parts_found += 1
                        elif bit == PART_BIT:
                            i, negative, digits, power, exact, _ = _scan_quoted(data, i, end)
                            certain, values[first + entries[e, PART]] = to_float32(
                                negative, digits, power, exact
                            )
                            ok &= certain
                            parts_found += 1
                        elif bit == SPAN_BIT:
                            i = skip_value(data, i, end)
                            written[m], written_bytes[m] = begin, i - begin
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
                                data, i, end, unescaped, used
                            )
                        e = entries[e, ALSO] if i > 0 else -1
            if i <= 0:
                ok = False
                break
            while True:
                i = skip_space(data, i, end)
                c = byte_at(data, i, end)
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
                and not has & ~elsewhere & (SRC | DST)
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


@njit(cache=True, nogil=True)
def find_elements(data: UInt8, ends: Int64, lines: bool, starts: Int64, lengths: Int64, counts: Int64) -> int:
    """Find the elements of arrays, or with ``lines`` also the lines of texts that are none.

    Args:
        data: uint8, texts side by side.
        ends: int64 [n + 1], text i is ``data[ends[i]:ends[i + 1]]``.
        lines: Whether a text that is no array has a value per line.
        starts: int64, gets the begin of each element in order; a byte of an array is room for one.
        lengths: int64, gets their bytes.
        counts: int64 [n], gets the number of elements of each text; −1: not known here.

    Returns:
        The number of all elements.
    """
    total = 0
    for m in range(len(counts)):
        i, end, first = skip_space(data, ends[m], ends[m + 1]), ends[m + 1], total
        counts[m] = -1
        if byte_at(data, i, end) == OPEN_ARRAY:
            i = skip_space(data, i + 1, end)
            closed = byte_at(data, i, end) == CLOSE_ARRAY
            while i < end and not closed:
                begin = i
                i = skip_value(data, i, end)
                if i < 0:
                    break
                starts[total], lengths[total] = begin, i - begin
                total += 1
                i = skip_space(data, i, end)
                closed = byte_at(data, i, end) == CLOSE_ARRAY
                if not closed and byte_at(data, i, end) != COMMA:
                    break
                i = i if closed else skip_space(data, i + 1, end)
            closed = closed and skip_space(data, i + 1, end) == end
            if closed and is_utf8(data, ends[m], end):
                counts[m] = total - first
            else:
                total = first
        elif lines:
            while i < end:
                begin = i
                while i < end and data[i] != 10:
                    i += 1
                starts[total], lengths[total] = begin, i - begin
                total += 1
                i = skip_space(data, i, end)
            counts[m] = total - first
    return total


@njit(cache=True, nogil=True)
def splice_texts(
    data: UInt8, ends: Int64, starts: Int64, lengths: Int64, out: UInt8, out_ends: Int64
) -> None:
    """Copy texts, and replace a string in each by the JSON value that it holds.

    Args:
        data: uint8, texts side by side.
        ends: int64 [n + 1], text i is ``data[ends[i]:ends[i + 1]]``.
        starts: int64 [n], the begin of the value in each; one that is no string of one JSON value stays.
        lengths: int64 [n], its bytes; 0: there is none.
        out: uint8, gets the texts; as long as ``data``.
        out_ends: int64 [n + 1], gets their ends.
    """
    used = 0
    out_ends[0] = 0
    for m in range(len(starts)):
        start, after = starts[m], starts[m] + lengths[m]
        if lengths[m] == 0:
            start = after = ends[m + 1]
        for k in range(ends[m], start):
            out[used] = data[k]
            used += 1
        past = -1
        if byte_at(data, start, after) == QUOTE:
            past, inside = unescape(data, start, after, out, used)
            value_end = skip_value(out, used, inside) if past == after else -1
            if value_end > 0 and skip_space(out, value_end, inside) == inside:
                used = inside
            else:
                past = -1
        if past < 0:
            for k in range(start, after):
                out[used] = data[k]
                used += 1
        for k in range(after, ends[m + 1]):
            out[used] = data[k]
            used += 1
        out_ends[m + 1] = used


@njit(cache=True, nogil=True)
def copy_pieces(data: UInt8, starts: Int64, lengths: Int64) -> tuple[Int64, UInt8]:
    """Copy pieces of ``data`` side by side; their n + 1 ends (int64), and the bytes."""
    ends = np.zeros(len(starts) + 1, np.int64)
    for i in range(len(starts)):
        ends[i + 1] = ends[i] + lengths[i]
    out = np.empty(ends[-1], np.uint8)
    for i in range(len(starts)):
        out[ends[i] : ends[i + 1]] = data[starts[i] : starts[i] + lengths[i]]
    return ends, out


@njit(cache=True, nogil=True)
def replace_spans(
    data: UInt8,
    ends: Int64,
    starts: Int64,
    lengths: Int64,
    which: Int64,
    new_data: UInt8,
    new_ends: Int64,
    out: UInt8,
    out_ends: Int64,
) -> None:
    """Copy texts, and replace a piece of some by another text.

    Args:
        data: uint8, texts side by side.
        ends: int64 [n + 1], text i is ``data[ends[i]:ends[i + 1]]``.
        starts: int64 [n], the begin of each piece.
        lengths: int64 [n], its bytes.
        which: int64 [n], the number of the new text; −1: the text stays.
        new_data: uint8, the new texts side by side.
        new_ends: int64, their ends.
        out: uint8, gets the texts; as long as both together.
        out_ends: int64 [n + 1], gets their ends.
    """
    used = 0
    out_ends[0] = 0
    for m in range(len(which)):
        start = ends[m + 1] if which[m] < 0 else starts[m]
        for k in range(ends[m], start):
            out[used] = data[k]
            used += 1
        if which[m] >= 0:
            for k in range(new_ends[which[m]], new_ends[which[m] + 1]):
                out[used] = new_data[k]
                used += 1
            for k in range(start + lengths[m], ends[m + 1]):
                out[used] = data[k]
                used += 1
        out_ends[m + 1] = used
