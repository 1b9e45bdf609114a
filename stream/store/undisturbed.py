"""Reading a store that is compacted, or loses a lane, meanwhile: where something went under the reading, it begins again."""

from collections.abc import Callable
from typing import TypeVar

from stream.store.errors import ConfigMissingError, MissingError, RetainedError
from stream.store.lane.layout import lane_folder, lane_names, made
from stream.store.log.index import index_numbers
from stream.store.log.layout import log_folder
from stream.store.places.place import Place

T = TypeVar("T")

Mark = tuple[list[int], float | None]
"""Numbers of the indexes of a log or lane, and when a lane's header was put."""

MOST_TIMES = 100
"""How often a reading begins again; compaction takes longer than that many readings only where it never ends."""


def undisturbed(store: str | Place, read: Callable[[], T]) -> T:
    """What a reading gives that opens the store itself.

    Args:
        store: Folder of the store.
        read: Called again while it misses something and a new index was made since it began, which comes before anything
            is dropped; or a lane was removed.

    Raises:
        ConfigMissingError, MissingError, RetainedError: It misses something that nobody dropped meanwhile.
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
    """What of a log's or lane's folder changes before anything in it is dropped, or when a lane is removed or made anew."""
    return index_numbers(folder), made(folder)


def _marks(store: str | Place) -> dict[str, Mark]:
    folders = {"log": log_folder(store)} | {
        f"lane {name}": lane_folder(store, name) for name in lane_names(store)
    }
    return {name: mark(folder) for name, folder in folders.items()}
