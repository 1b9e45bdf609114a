"""Following what another process commits: first what is there, then each new one as it comes."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
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
    watch: FolderWatch | None = None,
) -> Iterator[T]:
    """Items in order from number ``first`` on, waiting for each.

    Args:
        folder: Where a new record shows that there may be more.
        refreshed: Looks again and returns all items there are, by number.
        first: Number of the item to begin with; None: the oldest kept.
        timeout_s: End when nothing new came for so long; None: never.
        stop: Asked some times a second while waiting; True ends.
        watch: On that folder, for who follows again and again; None: one is made once there is something to wait for.

    Raises:
        RetainedError: The next item is no longer kept.
    """
    with ExitStack() as stack:
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
            if watch is None:
                watch = stack.enter_context(FolderWatch(folder))
                if not watch.polling:
                    continue  # for what came before it watched
            left = watch.poll_s if timeout_s is None else timeout_s - (time.monotonic() - waiting_since)
            if left <= 0:
                return
            watch.wait(left)
