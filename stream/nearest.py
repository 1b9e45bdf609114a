"""The known name nearest to an unknown one."""

from collections.abc import Iterable
from difflib import get_close_matches

_UNITS = {
    "sec": "s",
    "milli": "ms",
    "micro": "us",
    "µs": "us",
    "nano": "ns",
    "iso": "rfc3339",
    "rfc": "rfc3339",
}
"""Begins of words for units of time, which are not like the units' names."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name most like ``name``; None if none is."""
    name, known = name.lower(), list(known)
    units = (unit for begin, unit in _UNITS.items() if name.startswith(begin) and unit in known)
    return next(units, None) or next(iter(get_close_matches(name, known, n=1)), None)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: ``. Did you mean tgn?``; empty if no known name is like it."""
    suggestion = nearest(name, known)
    return f". Did you mean {suggestion}?" if suggestion else ""
