"""Arrays that are aligned to cache lines, so that their rows touch no more lines than necessary.

NumPy's large arrays begin 16 bytes after a page. There 32 values touch three lines, and copying them costs half again the memory.
"""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

LINE_BYTES = 64

Scalar = TypeVar("Scalar", np.float32, np.uint8)


def on_lines(rows: int, width: int, kind: type[Scalar]) -> NDArray[Scalar]:
    """An uninitialised array of shape (rows, width) that begins at a cache line."""
    size = rows * width * np.dtype(kind).itemsize
    room = np.empty(size + LINE_BYTES, np.uint8)
    start = -room.ctypes.data % LINE_BYTES
    return room[start : start + size].view(kind).reshape(rows, width)


def joined(first: NDArray[Scalar], second: NDArray[Scalar]) -> NDArray[Scalar]:
    """The rows of two arrays of the same width and kind, copied to an array that begins at a cache line."""
    both = on_lines(len(first) + len(second), first.shape[1], first.dtype.type)
    both[: len(first)] = first
    both[len(first) :] = second
    return both
