"""Locks of a store's folders."""

import os
import secrets
import socket
from pathlib import Path

from stream.store.errors import COMPACTED
from stream.store.places.place import Place, place_of
from stream.store.places.promises import Lock

NAME = "lock"
COMPACTION = "compaction.lock"
_DOING = {COMPACTION: COMPACTED}


def new_writer_id() -> str:
    """A new id for every writer, with host and process."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"


def lock_folder(folder: Path | Place, writer_id: str, name: str = NAME) -> Lock:
    """Take the exclusive right to write into a folder of a log or lane; see ``Place.lock``.

    Args:
        folder: An existing folder.
        writer_id: Who takes it.
        name: The lock's file: commits and compaction have one each.

    Raises:
        LaneBusyError: Another writer holds it; the message names it.
        OSError: The disk or the bucket refuses.
    """
    return place_of(folder).lock(writer_id, name, _DOING.get(name, "written"))
