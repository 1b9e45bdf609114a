"""A place is a folder or file of a store, wherever it lies."""

from functools import lru_cache
from pathlib import Path

from schemas.store_address import Address, is_address, parse_address
from stream.store.errors import ConfigMissingError
from stream.store.places.bucket import Bucket
from stream.store.places.object_path import ObjectPath

Place = Path | ObjectPath
"""What both know is what the store uses; what differs (durability, locks, mapping) is in ``stream.store.files``."""


def place_of(store: str | Place) -> Place:
    """The place of a store that is named by a path or by an address such as ``s3://bucket/prefix``.

    Raises:
        ConfigMissingError: It begins like an address and is none.
    """
    if not isinstance(store, str):
        return store
    if not is_address(store):
        return Path(store)
    try:
        address = parse_address(store)
    except ValueError as error:
        raise ConfigMissingError(str(error)) from None
    return ObjectPath(_bucket(address), address.prefix)


@lru_cache(maxsize=64)
def _bucket(address: Address) -> Bucket:
    """One bucket a process for all that use it: its connections are kept."""
    return Bucket(address)
