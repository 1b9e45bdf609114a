"""JSON's grammar over bytes, as kernels: the ends of values, and the values of numbers and times.

Every function takes ``data`` (uint8), a position and the end of the message, never reads beyond the end, and returns −1
for bytes that it doesn't know: ``json_message`` then reads the message.
"""

import numpy as np

from stream.arrays.kinds import UInt8
from stream.kernels import njit

MAX_SKIPPED_DEPTH = 47
"""With the longest path above it still below ``json_message.MAX_DEPTH``, and a bit each in an int64."""
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
def at(data: UInt8, i: int, end: int) -> int:
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
    if at(data, i, end) != QUOTE:
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
        escape = at(data, i, end)
        i += 1
        if escape == 117:  # \uXXXX
            for _ in range(4):
                if not is_hex(at(data, i, end)):
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
    return i + 1 if at(data, i, end) == COLON else -1


@njit(cache=True, nogil=True)
def skip_word(data: UInt8, i: int, end: int) -> int:
    """Past true, false or null."""
    c = at(data, i, end)
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
    return i + 5 if at(data, i + 4, end) == e else -1


@njit(cache=True, nogil=True)
def skip_value(data: UInt8, i: int, end: int) -> int:
    """Past any JSON value and the white space before it."""
    depth = 0
    objects = 0  # bit d: level d is an object
    while True:
        i = skip_space(data, i, end)
        c = at(data, i, end)
        if c in (OPEN_OBJECT, OPEN_ARRAY):
            if depth == MAX_SKIPPED_DEPTH:
                return -1
            is_object = c == OPEN_OBJECT
            i = skip_space(data, i + 1, end)
            if at(data, i, end) == (CLOSE_OBJECT if is_object else CLOSE_ARRAY):
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
            c = at(data, i, end)
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
    negative = at(data, i, end) == MINUS
    if negative:
        i += 1
    digits = 0
    count = power = 0
    exact = True
    c = at(data, i, end)
    if c < ZERO or c > NINE:
        return -1, False, 0, 0, False, False
    if c == ZERO:
        i += 1
        c = at(data, i, end)
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
        c = at(data, i, end)
    integer = True
    if c == POINT:
        integer = False
        i += 1
        c = at(data, i, end)
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
            c = at(data, i, end)
    if c in (101, 69):  # e E
        integer = False
        i += 1
        c = at(data, i, end)
        sign = -1 if c == MINUS else 1
        if c in (MINUS, PLUS):
            i += 1
            c = at(data, i, end)
        exponent = 0
        first = i
        while ZERO <= c <= NINE:
            exponent = exponent * 10 + (c - ZERO)
            i += 1
            c = at(data, i, end)
        if i == first or i - first > 4:
            return -1, False, 0, 0, False, False
        power += sign * exponent
    return i, negative, digits, power, exact, integer


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
    tens, ones = at(data, i, end), at(data, i + 1, end)
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
        c = at(data, i, end)
        while ZERO <= c <= NINE:
            place = i - first
            if place < 6:
                micros += (c - ZERO) * _WHOLE_POWERS[5 - place]
            elif place == 6:
                micros += c >= ZERO + 5
            i += 1
            c = at(data, i, end)
        if i == first:
            return no
    ahead = 0
    c = at(data, i, end)
    if c in (90, 122):  # Z z
        i += 1
    elif c in (PLUS, MINUS):
        hours, minutes = _two_digits(data, i + 1, end), _two_digits(data, i + 4, end)
        if at(data, i + 3, end) != COLON or not (0 <= hours <= 23 and 0 <= minutes <= 59):
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
