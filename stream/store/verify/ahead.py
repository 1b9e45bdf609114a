"""Fetch a bucket's files ahead of their check, several at a time, instead of waiting for each."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TypeVar

from freshet_graph.schemas.store import FileRef
from freshet_graph.stream.store.errors import StoreError
from freshet_graph.stream.store.files.records import READ_THREADS, R, read_record
from freshet_graph.stream.store.places.interface import inside
from freshet_graph.stream.store.places.place import Place

T = TypeVar("T")
V = TypeVar("V")

MOST_AHEAD = 64
"""Most items that are fetched or waiting to be checked."""

MOST_AHEAD_BYTES = 256 << 20
"""Most bytes of them, unless one item has more; at most a quarter of the cache."""


def records_ahead(root: Place, paths: Iterable[Place], kind: type[R]) -> Iterator[Callable[[], R]]:
    """For each path in order, a function that reads its record, raising as ``read_record`` does; fetched ahead in a bucket."""
    return results_ahead(root, paths, lambda path: read_record(path, kind), lambda _: 0)


def files_ahead(root: Place, items: Iterable[T], files: Callable[[T], list[FileRef]]) -> Iterator[T]:
    """The items in order; in a bucket, the files that an item names are in the cache by then, if they can be fetched.

    A problem with a file is reported when it is opened.

    Args:
        root: The log's or lane's folder.
        items: Such as snapshots.
        files: Gives the files that an item names.
    """

    def fetch(named: tuple[T, list[FileRef]]) -> T:
        for reference in named[1]:
            with suppress(StoreError, OSError):  # reported when the file is opened
                inside(root, reference.path).local_path(reference.checksum)
        return named[0]

    named = ((item, files(item)) for item in items)
    for fetched in results_ahead(root, named, fetch, lambda item: sum(file.bytes for file in item[1])):
        yield fetched()


def results_ahead(
    root: Place, items: Iterable[T], work: Callable[[T], V], size: Callable[[T], int]
) -> Iterator[Callable[[], V]]:
    """For each item in order, a function that returns the result of work on it, done ahead on threads for a bucket."""
    most = min(MOST_AHEAD_BYTES, root.ahead_bytes())
    if most == 0:
        for item in items:
            yield partial(work, item)
        return
    waiting: deque[tuple[Future[V], int]] = deque()
    bytes_ahead = 0
    pool = ThreadPoolExecutor(READ_THREADS, thread_name_prefix="verify")
    try:
        for item in items:
            num_bytes = size(item)
            while waiting and (len(waiting) >= MOST_AHEAD or bytes_ahead + num_bytes > most):
                done, taken = waiting.popleft()
                yield done.result
                bytes_ahead -= taken
            waiting.append((pool.submit(work, item), num_bytes))
            bytes_ahead += num_bytes
        while waiting:
            yield waiting.popleft()[0].result
    finally:
        # Don't wait: the garbage collector closes an abandoned generator on any thread, perhaps on one of these that is just
        # starting and holds what the others wait for.
        pool.shutdown(wait=False, cancel_futures=True)
