"""Buffers as NumPy arrays of one kind, so that a kernel is compiled once."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def read_only(buffer: pa.Buffer | bytes | memoryview, kind: type[np.generic]) -> npt.NDArray[Any]:
    """A buffer's values in place, read-only whether or not the buffer may be written.

    To numba an array that can be written is of another type. Without this, the first poll whose bytes can't be (one of
    nothing but empty messages) has the kernels compiled again in mid-stream: seconds, and 60 MiB that stay.
    """
    values = np.frombuffer(buffer, kind)
    values.flags.writeable = False
    return values
