"""Arrays with a row for each dense id, which grow with the stream."""

from typing import Any
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

_ROOMS: WeakValueDictionary[int, NDArray[Any]] = WeakValueDictionary()
"""What ``grown`` made, by ``id``: an array may be a view of anything, and only into these may it grow."""


def grown(array: NDArray[Any], rows: int, fill: int = 0) -> NDArray[Any]:
    """The array with at least this many rows; the new ones hold ``fill``.

    What comes back is a view into room for twice as many rows, so that growing costs the new rows only. Room that is
    not yet used are pages that the system has not yet given.

    Args:
        array: Of any shape (n, …), as ``grown`` gave it, or one of its own.
        rows: Wanted.
        fill: Value of the new rows.
    """
    have = len(array)
    if rows <= have:
        return array
    room = array.base
    if room is None or _ROOMS.get(id(room)) is not room or len(room) < rows:
        room = np.zeros((max(rows, 2 * have), *array.shape[1:]), array.dtype)
        room[:have] = array
        _ROOMS[id(room)] = room
    if fill:
        room[have:rows] = fill
    return room[:rows]
