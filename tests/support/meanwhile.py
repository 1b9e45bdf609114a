"""Having something happen at the very moment when it hurts most: right before, or after, a function is called."""

from collections.abc import Callable
from typing import Any

import pytest

from freshet_graph.stream.store.compact.store import Keep, compact
from freshet_graph.stream.store.places.place import Place


def dropping(store: Place, *keep: int) -> Callable[[], None]:
    """Each call drops snapshots until so many are left, and then no more."""
    left = list(keep)

    def drop() -> None:
        if left and not dropping_now:
            dropping_now.append(left.pop(0))
            compact(store, Keep(snapshots=dropping_now[0]), always=True)
            dropping_now.clear()

    dropping_now: list[int] = []  # compaction reads the store, too
    return drop


def with_before(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, first: Callable[[], None]
) -> list[int]:
    """Have something happen before each call of a function; a list that grows with the calls."""
    called: list[int] = []
    original = getattr(owner, name)

    def call(*args: Any, **named: Any) -> Any:
        called.append(1)
        first()
        return original(*args, **named)

    monkeypatch.setattr(owner, name, call)
    return called


def with_after(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, then: Callable[[], None]) -> list[int]:
    """Have something happen after each call of a function; a list that grows with the calls."""
    called: list[int] = []
    original = getattr(owner, name)

    def call(*args: Any, **named: Any) -> Any:
        called.append(1)
        found = original(*args, **named)
        then()
        return found

    monkeypatch.setattr(owner, name, call)
    return called


def once(then: Callable[[], object]) -> Callable[[], None]:
    """Does something at the first call only, and not while it is doing so."""
    done: list[int] = []

    def call() -> None:
        if not done:
            done.append(1)
            then()

    return call
