"""Compiled kernels that several rooms use, and ``njit``, which every kernel is made with."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numba import config, njit  # noqa: TID251 - all other modules import it from here
from numba.core.caching import IndexDataCacheFile

from freshet_graph.stream.compiled import kernels_folder

__all__ = ["njit", "read_only"]

if (folder := kernels_folder()) is not None:
    config.CACHE_DIR = str(folder)


def _load_index(self: Any, load: Any = IndexDataCacheFile._load_index) -> Any:
    """Read the index of a kept kernel; one that another version's classes make unreadable counts as empty.

    An index names the classes of a kernel's arguments. numba loads it before it asks whether it is stale.
    """
    try:
        return load(self)
    except OSError:
        raise
    except Exception:  # noqa: BLE001 - unpickling raises anything
        return {}


IndexDataCacheFile._load_index = _load_index


def read_only(buffer: pa.Buffer | bytes | memoryview, kind: type[np.generic]) -> npt.NDArray[Any]:
    """A buffer's values in place, read-only whether or not the buffer may be written.

    To numba an array that can be written is of another type. Without this, the first poll whose bytes can't be (one of
    nothing but empty messages) has the kernels compiled again in mid-stream: seconds, and 60 MiB that stay.
    """
    values = np.frombuffer(buffer, kind)
    values.flags.writeable = False
    return values
