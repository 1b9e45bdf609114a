"""Arrays that begin where a line of the processor's cache does, so that their rows don't lie across one line more than they must.

A library's large arrays begin 16 bytes after a page: 32 values then touch three lines, and a copy of them half again the memory.
"""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

LINE_BYTES = 64

Scalar = TypeVar("Scalar", np.float32, np.uint8)


def on_lines(rows: int, width: int, kind: type[Scalar]) -> NDArray[Scalar]:
    """An array of shape (rows, width) that begins at a line; what is in it is not set."""
    size = rows * width * np.dtype(kind).itemsize
    room = np.empty(size + LINE_BYTES, np.uint8)
    start = -room.ctypes.data % LINE_BYTES
    return room[start : start + size].view(kind).reshape(rows, width)


def joined(first: NDArray[Scalar], second: NDArray[Scalar]) -> NDArray[Scalar]:
    """The rows of one array and of another of its width and kind, copied to an array that begins at a line."""
    both = on_lines(len(first) + len(second), first.shape[1], first.dtype.type)
    both[: len(first)] = first
    both[len(first) :] = second
    return both
