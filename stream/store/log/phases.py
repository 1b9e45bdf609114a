"""Durations of a commit's phases."""

import time
from collections.abc import Callable, Iterable
from typing import Generic, Self, TypeVar

Item = TypeVar("Item")

Phase = Callable[[str, float], None]
"""Called with the seconds of each phase of a commit: ``order``, ``files``, ``record``, ``sweep``."""


class Timed(Generic[Item]):
    """An iterator that adds up the time its items take."""

    def __init__(self, items: Iterable[Item]) -> None:
        self.seconds = 0.0
        self._items = iter(items)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Item:
        started = time.perf_counter()
        try:
            return next(self._items)
        finally:
            self.seconds += time.perf_counter() - started
