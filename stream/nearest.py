"""The known name nearest to an unknown one."""

from collections.abc import Iterable
from difflib import get_close_matches

_WORDS = {
    "sec": "s",
    "milli": "ms",
    "micro": "us",
    "µs": "us",
    "nano": "ns",
    "iso": "rfc3339",
    "rfc": "rfc3339",
    "long": "integer",
    "bigint": "integer",
    "str": "text",
    "utf": "text",
    "newest": "latest",
    "oldest": "earliest",
    "begin": "earliest",
    "ignore": "skip",
    "remove": "delete",
    "add": "insert",
    "upsert": "insert",
}
"""Begins of words that people use, and the known names that mean the same but are not like them."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name most like ``name``; None if none is."""
    name, by_lower = name.lower(), {one.lower(): one for one in known}
    candidates = [
        *(one for begin, one in _WORDS.items() if name.startswith(begin) and one in by_lower),
        *get_close_matches(name, by_lower, n=1),
        *(one for one in by_lower if one.startswith(name) or name.startswith(f"{one}-")),
    ]
    return by_lower[candidates[0]] if name and candidates else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: ``. Did you mean tgn?``; empty if no known name is like it."""
    suggestion = nearest(name, known)
    return f". Did you mean {suggestion}?" if suggestion else ""
