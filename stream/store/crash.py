"""Crash points: named places at which a test kills the process for real.

``FRESHET_CRASH_AT=name`` or ``name:k`` sends SIGKILL at the k-th pass (k = 1 by default) of that point. Without
the variable a crash point costs one comparison.
"""

import os
import signal
from collections.abc import Callable
from typing import Final

VARIABLE: Final = "FRESHET_CRASH_AT"

CRASH_POINTS: Final = (
    "store.created",  # folders exist, the header doesn't
    "commit.begun",  # nothing of the commit is on disk
    "file.torn",  # half of a data file under its temporary name
    "file.written",  # whole, not yet synced
    "file.synced",  # durable under its temporary name
    "file.renamed",  # under its final name, which isn't durable yet
    "files.named",  # all data files are durable, no record names them
    "record.torn",  # half of a record under its temporary name
    "record.written",  # whole, not yet synced
    "record.synced",  # durable under its temporary name
    "record.linked",  # under both names, the final one isn't durable yet
    "record.named",  # the commit is done; temporary name and old tail files are still there
    "commit.done",  # old tail files are gone
)
"""Every crash point of the store, in the order a commit passes them."""

COMPACTION: Final = (
    "compact.begun",  # nothing of the new index is on disk
    "compact.copied",  # one copy of the index exists
    "compact.indexed",  # both do; the records and snapshots that they replace still exist
    "compact.dropped",  # dropped snapshots and folded commits are gone, replaced index files are not
    "compact.removing",  # a lane that is being removed has its other name
)
"""Crash points of compaction, beside those of the files and records it writes."""

AFTER_COMMIT: Final = (
    "letters.sent",  # dead letters are in their topic, but no record says so
    "letters.marked",  # the next commit will say so
    "offsets.sent",  # the group's offsets follow the log
)
"""Crash points of what the job does beside the log after a commit."""

EXPORTS: Final = (
    "export.named",  # an export's files are durable, no record names them
    "export.committed",  # its record is there
    "publish.sent",  # an export is in its topic, but no record says so
    "publish.marked",  # the record says so
)
"""Crash points of a trainer's exports and of their way into a topic, beside those of the files and records."""

_wanted, _left = "", 0


def arm(point: str) -> None:
    """Request a kill as the environment variable does: ``name`` or ``name:k``; an empty string cancels it."""
    global _wanted, _left  # noqa: PLW0603  one point a process
    _wanted, _, count = point.partition(":")
    _left = int(count or 1)


arm(os.environ.get(VARIABLE, ""))


def crash_point(name: str, before: Callable[[], object] | None = None) -> None:
    """Kill this process here if the environment asks for it.

    Args:
        name: One of ``CRASH_POINTS``, or another module's own point.
        before: Damage to do first, such as cutting a file in half.
    """
    global _left  # noqa: PLW0603  the passes of one process are counted
    if name != _wanted:
        return
    _left -= 1
    if _left == 0:
        if before is not None:
            before()
        os.kill(os.getpid(), signal.SIGKILL)
