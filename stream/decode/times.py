"""Event times in any unit a producer uses, exact to the microsecond: the reference for single values.

A finer time is rounded to the nearest microsecond, halves away from zero.
"""

import re
from datetime import date
from decimal import MAX_EMAX, MIN_EMIN, ROUND_HALF_UP, Context, Decimal
from typing import Literal

from freshet_graph.schemas.events import OUT_OF_RANGE_US, US_PER_S

TimeUnit = Literal["s", "ms", "us", "ns", "rfc3339"]
SCALE_DIGITS = {"s": 6, "ms": 3, "us": 0, "ns": -3}
"""Decimal places between a unit and the microsecond."""

TIME_UNITS: dict[str, TimeUnit | Literal["days"]] = {
    "date": "days",
    "Date": "days",
    "Timestamp": "ms",
    "MicroTimestamp": "us",
    "NanoTimestamp": "ns",
}
"""Units of times by the last part of the name that Debezium and Kafka Connect give to a type, and of Avro's dates."""

_RFC3339 = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt ](\d\d):(\d\d):(\d\d)(?:\.(\d+))?([Zz]|([+-])(\d\d):(\d\d))?", re.ASCII
)
_EPOCH_DAY = date(1970, 1, 1).toordinal()


def number_to_us(text: str, unit: Literal["s", "ms", "us", "ns"]) -> int:
    """A JSON number, as written, in ``unit`` since the epoch, to microseconds.

    Returns:
        The time; ``OUT_OF_RANGE_US`` (negated for negative numbers) if int64 cannot hold it.
    """
    return scaled_to_us(text, SCALE_DIGITS[unit])


def scaled_to_us(text: str, scale: int) -> int:
    """``number_to_us`` of a unit that is ten to ``scale`` microseconds."""
    # As many digits as the text has: nothing is rounded before the microsecond is.
    context = Context(prec=len(text) + 20, Emax=MAX_EMAX, Emin=MIN_EMIN, rounding=ROUND_HALF_UP, traps=[])
    number = context.create_decimal(text)
    if not number.is_finite() or number.adjusted() > 30:
        return -OUT_OF_RANGE_US if number.is_signed() else OUT_OF_RANGE_US
    scaled = context.multiply(number, Decimal(10) ** scale)
    if scaled.adjusted() < -1:
        return 0
    return max(-OUT_OF_RANGE_US, min(OUT_OF_RANGE_US, int(scaled.to_integral_value(ROUND_HALF_UP))))


def rfc3339_to_us(text: str) -> int:
    """An RFC 3339 time to microseconds since the epoch; a leap second is the second after it.

    Raises:
        ValueError: Not RFC 3339, no such date, or without a zone; the text is fit for users.
    """
    match = _RFC3339.fullmatch(text)
    if match is None:
        raise ValueError("is not a time as RFC 3339 writes it, such as 2024-01-01T12:00:00.5Z")
    year, month, day, hour, minute, second, fraction, zone, sign, zone_hour, zone_minute = match.groups()
    if zone is None:
        raise ValueError("has no zone. End it with Z or an offset such as +02:00")
    try:
        days = date(int(year), int(month), int(day)).toordinal() - _EPOCH_DAY
    except ValueError as error:
        raise ValueError("names a day that does not exist") from error
    if int(hour) > 23 or int(minute) > 59 or int(second) > 60:
        raise ValueError("names a time of day that does not exist")
    seconds = days * 86_400 + int(hour) * 3600 + int(minute) * 60 + int(second)
    if sign is not None:
        if int(zone_hour) > 23 or int(zone_minute) > 59:
            raise ValueError("has an offset that does not exist")
        ahead = int(zone_hour) * 3600 + int(zone_minute) * 60
        seconds -= ahead if sign == "+" else -ahead
    digits = (fraction or "").ljust(7, "0")
    return seconds * US_PER_S + int(digits[:6]) + (digits[6] >= "5")
