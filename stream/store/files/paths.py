"""Folders of a store: made, made durable, and looked at before anything in them is removed."""

from collections.abc import Iterable
from pathlib import Path

from stream.store.errors import CorruptError
from stream.store.places.place import Place, place_of


def require_own_folders(root: Place, names: Iterable[str]) -> None:
    """Check that the folders of a log or lane lie in it, before anything in them is removed.

    Raises:
        CorruptError: One is a symbolic link.
    """
    for name in names:
        if (root / name).is_symlink():
            raise CorruptError(
                f"{root / name} is a symbolic link, so what is swept in it may lie outside the store. Put the folder "
                "itself there"
            )


def make_folders(folder: Path | Place) -> list[Path]:
    """See ``Place.make``."""
    return place_of(folder).make()


def settle(folder: Path | Place) -> None:
    """See ``Place.settle``."""
    place_of(folder).settle()


def sync_folder(folder: Path | Place) -> None:
    """See ``Place.sync``."""
    place_of(folder).sync()
