"""Errors of a store. Each sentence names the file, the place and the remedy."""

import re
from typing import Final

from freshet_graph.schemas.errors import FreshetError

_ROOMS: Final = ("log", "lanes", "exports")


def remedy(file: object) -> str:
    """The end of a sentence about a damaged or missing file of a store: a lane is made again, others are restored.

    Args:
        file: Its path or address, or that of its folder.
    """
    steps = str(file).split("/")
    rooms = [place for place, step in enumerate(steps[:-1]) if step in _ROOMS]
    # A store in a folder called lanes has lanes/log, which must not be deleted.
    if rooms and steps[rooms[-1]] == "lanes":
        lane = "/".join(steps[: rooms[-1] + 2])
        return (
            f". Stop the stream, delete the folder {lane}, and start it. The lane is made again from the log"
        )
    return ". Restore the file from a copy; freshet-stream verify lists all damage"


COMPACTED: Final = "compacted"
"""What the holder of the lock for compaction does to a folder."""


class StoreError(FreshetError):
    """Base of all errors of the store."""


class LaneBusyError(StoreError):
    """Another process writes this log or lane; the message names it."""


def busy(folder: object, doing: str, holder: str, otherwise: str) -> LaneBusyError:
    """The error of a writer that finds another one, or one that another compaction refuses.

    Args:
        folder: What both want.
        doing: What the holder of the lock does, ``written`` or ``compacted``.
        holder: Its id, as ``new_writer_id`` makes it; empty: it has not said.
        otherwise: The alternative to stopping the holder.
    """
    # A compaction ends by itself, and it may be the stream job's own.
    remedy = "Try again once it is done" if doing == COMPACTED else f"Stop it, or {otherwise}"
    who = re.sub(r"^(.+)-(\d+)-[0-9a-f]{8}$", r"process \2 on \1", holder) or "another process"
    return LaneBusyError(f"{folder} is being {doing} by {who}. {remedy}")


class CorruptError(StoreError):
    """A file contradicts the record that names it: it is truncated, flipped, missing, foreign or swapped."""


class MissingError(CorruptError):
    """A file that a record names is missing."""


class FormatVersionError(StoreError):
    """A store written by a newer (or unknown) format version."""


class MismatchError(StoreError):
    """The configuration differs from the one the store was made with; the message names the key."""


class ConfigMissingError(StoreError):
    """There is no store, log or lane at the given place."""


class OffsetGapError(StoreError):
    """Messages between the log's next offset and the first one offered are gone; the message has both."""


class RetainedError(StoreError):
    """A requested snapshot is older than the oldest one kept; the message says where a reader can start."""
