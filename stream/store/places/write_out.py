"""Write a file that is checksummed on the way and sent to the disk before it is complete."""

import ctypes
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import xxhash

from freshet_graph.schemas.errors import system_call

_PIECE = 1 << 24
"""After this many bytes the disk starts writing while the next ones are copied and checksummed, so fsync waits only for the
last piece."""

_BUFFER = 1 << 16
_SYNC_FILE_RANGE_WRITE = 2


class WriteOut:
    """A new file that counts and checksums its bytes; a context manager.

    Attributes:
        bytes: Length so far.
    """

    def __init__(self, path: Path) -> None:
        """Create the file, or empty it.

        Raises:
            OSError: The disk refuses.
        """
        self.bytes = 0
        self._digest = xxhash.xxh64()
        self._path = path
        self._file = path.open("wb", buffering=_BUFFER)
        self._sent = 0

    def write(self, content: Any) -> int:
        """Append any object with a buffer.

        Raises:
            OSError: The disk refuses.
        """
        view = memoryview(content).cast("B")
        for start in range(0, len(view), _PIECE):
            piece = view[start : start + _PIECE]
            with system_call("write", self._path):
                self._file.write(piece)
            self._digest.update(piece)
            self.bytes += len(piece)
            if self.bytes - self._sent >= _PIECE:
                self.flush()
                if _WRITE_OUT is not None:
                    _WRITE_OUT(self._file.fileno())
                self._sent = self.bytes
        return len(view)

    def native(self) -> pa.PythonFile:
        """The file for Arrow's writers."""
        return pa.PythonFile(self, "w")

    def tell(self) -> int:
        """Length so far."""
        return self.bytes

    def flush(self) -> None:
        """Hand buffered bytes to the system."""
        with system_call("write", self._path):
            self._file.flush()

    @property
    def checksum(self) -> str:
        """xxh64, hex, of the bytes so far."""
        return self._digest.hexdigest()

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._file.closed

    def close(self) -> None:
        """Hand the rest to the system; doing so twice is harmless."""
        with system_call("write", self._path):
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _linux_write_out() -> Callable[[int], object] | None:
    """A call of sync_file_range(2) that only starts the write, if the system has it."""
    if sys.platform != "linux":
        return None
    call = getattr(ctypes.CDLL(None), "sync_file_range", None)
    if call is None:
        return None
    call.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    # Its result doesn't matter: fsync alone makes the file durable, and reports errors of the meantime.
    return lambda descriptor: call(descriptor, 0, 0, _SYNC_FILE_RANGE_WRITE)


_WRITE_OUT = _linux_write_out()
