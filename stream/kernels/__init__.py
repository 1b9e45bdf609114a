"""Compiled kernels that several rooms use, and ``njit``, which every kernel is made with."""

from collections.abc import Callable
from functools import partialmethod, wraps
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from freshet_graph.stream.compiled import kernels_folder
from freshet_graph.stream.optional import missing_extra

__all__ = ["COMPILED", "intrinsic", "njit", "or_plain", "read_only"]

F = TypeVar("F", bound=Callable[..., Any])

try:
    from numba import config, njit  # noqa: TID251 - all other modules import it from here
    from numba.core.caching import IndexDataCacheFile
    from numba.extending import intrinsic
except ModuleNotFoundError as _error:
    _missing = _error

    def njit(*functions: Any, **_: Any) -> Any:
        """Without numba, which readers of stores need not have: a kernel that nobody calls can be imported."""

        def uncompiled(function: Any) -> Any:
            @wraps(function)
            def refuse(*_: Any) -> None:
                raise missing_extra(f"{function.__module__}.{function.__name__}", _missing, "stream")

            return refuse

        return uncompiled(functions[0]) if functions else uncompiled

    intrinsic = njit
    COMPILED = False
else:
    COMPILED = True


def or_plain(plain: Callable[..., Any]) -> Callable[[F], F]:
    """Decorator of a kernel: a NumPy function with the same arguments, which takes its place if numba is not installed."""
    return lambda kernel: kernel if COMPILED else plain  # type: ignore[return-value]


def _load_index(self: Any, load: Any) -> Any:
    """Read the index of a kept kernel; one that another version's classes make unreadable counts as empty.

    An index names the classes of a kernel's arguments. numba loads it before it asks whether it is stale.
    """
    try:
        return load(self)
    except OSError:
        raise
    except Exception:  # noqa: BLE001 - unpickling raises anything
        return {}


if COMPILED:
    if (folder := kernels_folder()) is not None:
        config.CACHE_DIR = str(folder)
    IndexDataCacheFile._load_index = partialmethod(_load_index, IndexDataCacheFile._load_index)


def read_only(buffer: pa.Buffer | bytes | memoryview, kind: type[np.generic]) -> npt.NDArray[Any]:
    """A buffer's values in place, read-only whether or not the buffer may be written.

    To numba an array that can be written is of another type. Without this, the first poll whose bytes can't be (one of
    nothing but empty messages) has the kernels compiled again in mid-stream: seconds, and 60 MiB that stay.
    """
    values = np.frombuffer(buffer, kind)
    values.flags.writeable = False
    return values
