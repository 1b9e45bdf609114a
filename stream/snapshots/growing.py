"""Columns that grow at their end: a row more costs constant time, amortised, and not a copy of the rest."""

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

_LEAST_ROWS = 64


class Growing:
    """Rows of one fill value that get more.

    Args:
        fill: Value of new rows.
        dtype: Of the values.
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
        """All rows: a view, of these rows for ever but of their values only until the next ``grow``."""
        return self._room[: self._rows]

    @property
    def nbytes(self) -> int:
        """Bytes held, room for more rows included."""
        return self._room.nbytes

    def grow(self, rows: int) -> NDArray[Any]:
        """Have at least ``rows`` rows; the values, as a view."""
        if rows > len(self._room):
            room = max(rows, len(self._room) + len(self._room) // 2, _LEAST_ROWS)
            values = np.empty((room, *self._room.shape[1:]), self._room.dtype)
            values[: self._rows] = self._room[: self._rows]
            values[self._rows :] = self._fill
            self._room = values
        self._rows = max(self._rows, rows)
        return self.values

    def replace(self, values: NDArray[Any]) -> None:
        """Hold these rows instead."""
        self._room = np.array(values, self._room.dtype).reshape(len(values), *self._room.shape[1:])
        self._rows = len(values)
