"""The place that a path or an address names."""

from functools import lru_cache
from pathlib import Path

from freshet_graph.schemas.store_address import Address, is_address, parse_address
from freshet_graph.stream.store.errors import ConfigMissingError
from freshet_graph.stream.store.places.bucket import Bucket
from freshet_graph.stream.store.places.folder import FolderPath
from freshet_graph.stream.store.places.interface import Place
from freshet_graph.stream.store.places.object_path import ObjectPath

__all__ = ["Place", "place_of"]


def place_of(store: str | Path | Place) -> Place:
    """The place of a store given by a path or by an address such as ``s3://bucket/prefix``.

    Raises:
        ConfigMissingError: The text begins like an address but is malformed.
    """
    if isinstance(store, Path):
        return store if isinstance(store, FolderPath) else FolderPath(store)
    if not isinstance(store, str):
        return store
    if not is_address(store):
        return FolderPath(store)
    try:
        address = parse_address(store)
    except ValueError as error:
        raise ConfigMissingError(str(error)) from None
    return ObjectPath(_bucket(address), address.prefix)


@lru_cache(maxsize=64)
def _bucket(address: Address) -> Bucket:
    """The process's one bucket for an address, so that connections are reused."""
    return Bucket(address)
