"""Reading a store that is compacted meanwhile: where something was dropped under the reading, it begins again."""

from collections.abc import Callable
from typing import TypeVar

from stream.store.errors import ConfigMissingError, MissingError, RetainedError
from stream.store.lane.layout import lane_folder, lane_names
from stream.store.log.index import index_numbers
from stream.store.log.layout import log_folder
from stream.store.places.place import Place

T = TypeVar("T")

MOST_TIMES = 100
"""How often a reading begins again; compaction takes longer than that many readings only where it never ends."""


def undisturbed(store: str | Place, read: Callable[[], T]) -> T:
    """What a reading gives that opens the store itself.

    Args:
        store: Folder of the store.
        read: Called again while it misses something and a new index was made since it began: that comes before anything
            is dropped.

    Raises:
        ConfigMissingError, MissingError, RetainedError: It misses something that nobody dropped meanwhile.
    """
    for _ in range(MOST_TIMES):
        before = _indexes(store)
        try:
            return read()
        except (ConfigMissingError, MissingError, RetainedError):
            if _indexes(store) == before:
                raise
    return read()


def _indexes(store: str | Place) -> dict[str, list[int]]:
    """Numbers of all indexes of log and lanes."""
    folders = {"log": log_folder(store)} | {
        f"lane {name}": lane_folder(store, name) for name in lane_names(store)
    }
    return {name: index_numbers(folder) for name, folder in folders.items()}
