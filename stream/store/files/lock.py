"""Who may write into a folder of a store."""

import os
import secrets
import socket
from pathlib import Path

from stream.store.places.place import Place, place_of
from stream.store.places.promises import Lock

NAME = "lock"
COMPACTION = "compaction.lock"
_DOING = {COMPACTION: "compacted"}


def new_writer_id() -> str:
    """An id that tells host and process, and differs for every writer opened."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"


def lock_folder(folder: Path | Place, writer_id: str, name: str = NAME) -> Lock:
    """Take the exclusive right to write into a folder of a log or lane: the kernel's lock, or in a bucket a lease.

    Args:
        folder: An existing folder.
        writer_id: Who takes it.
        name: The lock's file: there is one for commits, and one for compaction.

    Raises:
        LaneBusyError: Another writer holds it; the message names both.
        OSError: The disk or the bucket refuses.
    """
    return place_of(folder).lock(writer_id, name, _DOING.get(name, "written"))
