"""Arrays that grow at their end: a new row costs constant time, amortised, without a copy of the rest."""

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

_LEAST_ROWS = 64


class Growing:
    """A growing number of rows, with one fill value.

    Args:
        fill: Value of new rows.
        dtype: Type of the values.
        width: Shape of a row; () for one value.
    """

    def __init__(self, fill: float, dtype: DTypeLike, width: tuple[int, ...] = ()) -> None:
        self._fill = fill
        self._room: NDArray[Any] = np.empty((0, *width), dtype)
        self._rows = 0

    def __len__(self) -> int:
        return self._rows

    @property
    def values(self) -> NDArray[Any]:
        """All rows: a view, always of these rows, but of their values only until the next ``grow``."""
        return self._room[: self._rows]

    @property
    def nbytes(self) -> int:
        """Bytes held, including spare rows."""
        return self._room.nbytes

    def grow(self, rows: int) -> NDArray[Any]:
        """Extend to at least ``rows`` rows; returns the values, as a view."""
        if rows > len(self._room):
            room = max(rows, len(self._room) + len(self._room) // 2, _LEAST_ROWS)
            values = np.empty((room, *self._room.shape[1:]), self._room.dtype)
            values[: self._rows] = self._room[: self._rows]
            values[self._rows :] = self._fill
            self._room = values
        self._rows = max(self._rows, rows)
        return self.values

    def replace(self, values: NDArray[Any]) -> None:
        """Replace all rows."""
        self._room = np.array(values, self._room.dtype).reshape(len(values), *self._room.shape[1:])
        self._rows = len(values)


def with_room(array: NDArray[Any], rows: int, fill: int = 0) -> NDArray[Any]:
    """The array, or a copy with half as many rows more, if it has fewer rows than needed.

    Args:
        array: Of any shape (n, …).
        rows: Least number of rows.
        fill: Value of new rows.
    """
    have = len(array)
    if rows <= have:
        return array
    room = np.empty((max(rows, have + have // 2), *array.shape[1:]), array.dtype)
    room[:have], room[have:] = array, fill
    return room
