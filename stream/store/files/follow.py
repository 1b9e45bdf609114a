"""Following what another process commits: first what is there, then each new one as it comes."""

import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from stream.store.errors import RetainedError
from stream.store.files.numbered import Numbered
from stream.store.files.watch import FolderWatch
from stream.store.places.place import Place

T = TypeVar("T")


def follow(
    folder: Place,
    refreshed: Callable[[], Numbered[T]],
    first: int | None,
    *,
    timeout_s: float | None,
    stop: Callable[[], bool] | None,
) -> Iterator[T]:
    """Items in order from number ``first`` on, waiting for each.

    Args:
        folder: Where a new record shows that there may be more.
        refreshed: Looks again and returns all items there are, by number.
        first: Number of the item to begin with; None: the oldest kept.
        timeout_s: End when nothing new came for so long; None: never.
        stop: Asked some times a second while waiting; True ends.

    Raises:
        RetainedError: The next item is no longer kept.
    """
    with FolderWatch(folder) as watch:
        waiting_since = time.monotonic()
        while True:
            items = refreshed()
            at = items.first if first is None else first
            while at < len(items):
                try:
                    item = items[at]
                except RetainedError:
                    if first is not None:
                        raise
                    break  # dropped before anything was seen: another one is the oldest by now
                yield item
                at = first = at + 1
                waiting_since = time.monotonic()
            if stop is not None and stop():
                return
            left = watch.poll_s if timeout_s is None else timeout_s - (time.monotonic() - waiting_since)
            if left <= 0:
                return
            watch.wait(left)
