"""Wait for a folder to change: by inotify if available, and by polling."""

import logging
import threading
from pathlib import Path
from typing import Self

from watchdog.events import FileSystemEvent, FileSystemEventHandler
from watchdog.observers import Observer
from watchdog.observers.api import BaseObserver

from stream.store.places.place import Place, place_of

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
