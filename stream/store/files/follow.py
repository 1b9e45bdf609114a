"""Follow another process's commits: the existing ones first, then each new one as it comes."""

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
        folder: A new record in it shows that there may be more items.
        refreshed: Looks again and returns all items, by number.
        first: Number of the first item; None: the oldest kept.
        timeout_s: End after this long without a new item; None: never.
        stop: Called a few times per second while waiting; True ends.
        watch: A watch of the folder, for repeated calls; None: one is made when there is something to wait for.

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
                    break  # dropped before the first item was read: look for the oldest again
                yield item
                at = first = at + 1
                waiting_since = time.monotonic()
            if stop is not None and stop():
                return
            if watch is None:
                watch = stack.enter_context(FolderWatch(folder))
                if not watch.polling:
                    continue  # look again for items from before the watch
            left = watch.poll_s if timeout_s is None else timeout_s - (time.monotonic() - waiting_since)
            if left <= 0:
                return
            watch.wait(left)
