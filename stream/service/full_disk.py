"""Errors of a full disk, and the sentence of a service that can't begin on one."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from freshet_graph.stream.service.failure import Failure

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Error numbers of a disk without room."""


@contextmanager
def room_to_begin(store: str) -> Iterator[None]:
    """Turn a full disk into a sentence while a store is opened; once it is open, commits wait for room.

    Raises:
        Failure: The disk is full.
        OSError: It refuses for another reason.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise Failure(
            f"the disk of {store} is full ({error.strerror}). Make room and start again: nothing is lost"
        ) from error
