"""The known name nearest to an unknown one."""

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name most like ``name``; None if none is."""
    return next(iter(get_close_matches(name.lower(), known, n=1)), None)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: ``. Did you mean tgn?``; empty if no known name is like it."""
    suggestion = nearest(name, known)
    return f". Did you mean {suggestion}?" if suggestion else ""
