"""Follow another process's commits: the existing ones first, then each new one as it comes.

A follower waits for a folder to change: by inotify if available, and by polling.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Self, TypeVar

from watchdog.events import FileSystemEvent, FileSystemEventHandler
from watchdog.observers import Observer
from watchdog.observers.api import BaseObserver

from freshet_graph.stream.store.errors import RetainedError
from freshet_graph.stream.store.files.records import Numbered
from freshet_graph.stream.store.places.place import Place, place_of

POLL_S = 0.25
"""Longest single wait: inotify doesn't see changes that other hosts make to a network file system."""

BUCKET_POLL_S = 1.0
"""The same in a bucket, where every look costs requests."""


# Its thread may be about to read when a watch ends, and then logs an error, although nothing is wrong.
logging.getLogger("watchdog.observers.inotify").addFilter(
    lambda record: "called when the thread is inactive" not in record.getMessage()
)


class FolderWatch(FileSystemEventHandler):
    """Wakes a reader when a file gets a new name in a folder; a context manager.

    If the folder can't be watched (a bucket, no inotify, its limits reached), ``wait`` just polls.
    """

    def __init__(self, folder: Path | Place) -> None:
        """Begin to watch an existing folder."""
        self.changed = threading.Event()
        self._observer: BaseObserver | None = None
        self.polling = place_of(folder).remote
        self.poll_s = BUCKET_POLL_S if self.polling else POLL_S
        if self.polling:
            return
        try:
            self._observer = Observer()  # holds an inotify instance from here on
            self._observer.daemon = True
            self._observer.schedule(self, str(folder), recursive=False)
            self._observer.start()
        except (OSError, RuntimeError):
            self.polling = True
            self.close()

    def on_created(self, event: FileSystemEvent) -> None:
        """A new name, by hard link or creation."""
        self.changed.set()

    def on_moved(self, event: FileSystemEvent) -> None:
        """A new name, by rename."""
        self.changed.set()

    def wait(self, timeout_s: float = BUCKET_POLL_S) -> None:
        """Return at the next change, at once if there was one since the last call, or after the timeout."""
        self.changed.wait(min(timeout_s, self.poll_s))
        self.changed.clear()

    def close(self) -> None:
        """Stop watching; doing so twice is harmless."""
        observer, self._observer = self._observer, None
        if observer is None:
            return
        observer.stop()
        if observer.is_alive():
            observer.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


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
            number = items.first if first is None else first
            while number < len(items):
                try:
                    item = items[number]
                except RetainedError:
                    if first is not None:
                        raise
                    break  # dropped before the first item was read: look for the oldest again
                yield item
                number = first = number + 1
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
