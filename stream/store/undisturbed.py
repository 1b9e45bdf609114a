"""Read a store while it is compacted or a lane is removed: a read that misses a file starts again."""

from collections.abc import Callable
from typing import TypeVar

from freshet_graph.stream.store.errors import ConfigMissingError, MissingError, RetainedError
from freshet_graph.stream.store.lane.layout import lane_folder, lane_names, made
from freshet_graph.stream.store.log.index import index_numbers
from freshet_graph.stream.store.log.layout import log_folder
from freshet_graph.stream.store.places.place import Place

T = TypeVar("T")

Mark = tuple[list[int], float | None]
"""Numbers of the indexes of a log or lane, and when a lane's header was put."""

MOST_TIMES = 100
"""Most repetitions of a read: only a compaction that never ends would need more."""


def undisturbed(store: str | Place, read: Callable[[], T]) -> T:
    """Run a read that opens the store itself, again if compaction disturbed it.

    Args:
        store: Folder of the store.
        read: Called again if it misses something and, since it began, either a new index was written, which precedes every
            drop, or a lane was removed.

    Raises:
        ConfigMissingError, MissingError, RetainedError: Something is missing, and no other process dropped it.
    """
    for _ in range(MOST_TIMES):
        before = _marks(store)
        try:
            return read()
        except (ConfigMissingError, MissingError, RetainedError):
            if _marks(store) == before:
                raise
    return read()


def mark(folder: Place) -> Mark:
    """The state of a log's or lane's folder that changes before anything is dropped, or when a lane is removed or rebuilt."""
    return index_numbers(folder), made(folder)


def _marks(store: str | Place) -> dict[str, Mark]:
    folders = {"log": log_folder(store)} | {
        f"lane {name}": lane_folder(store, name) for name in lane_names(store)
    }
    return {name: mark(folder) for name, folder in folders.items()}
