"""Objects that a process holds under names, for the functions of a pipeline: Beam pickles functions, but not consumers."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")

_held: dict[str, object] = {}


@contextmanager
def holding(name: str, thing: object) -> Iterator[None]:
    """Make an object available under a name inside the block.

    Raises:
        ValueError: The name is taken.
    """
    if name in _held:
        raise ValueError(f"{name} is held already")
    _held[name] = thing
    try:
        yield
    finally:
        del _held[name]


def held(name: str, kind: type[T]) -> T | None:
    """The object of a kind that this process holds under a name; None if there is none."""
    thing = _held.get(name)
    return thing if isinstance(thing, kind) else None
