"""The data files of one commit, wherever they lie."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import Any, BinaryIO, Self

import pyarrow as pa

from schemas.store import FileRef

SYNC_THREADS = 8
"""Threads that sync or put the files of one commit: file systems group concurrent fsyncs."""

_PLAIN = pa.ipc.IpcWriteOptions()
COMPRESSED = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", compression_level=1))
"""Level 1 takes a third of the time of level 3, and on sorted ids and changed features gives nearly the same."""

Write = Callable[[Any], None]
"""Writes a file's content to the ``pyarrow.NativeFile`` it is given."""


class Staging(ABC):
    """The data files of one commit: written where nobody looks, then made durable and named together.

    Use it as a context manager: an exception inside removes what was written.
    """

    @abstractmethod
    def add(self, relative: str, write: Write) -> FileRef:
        """Write one file.

        Args:
            relative: Path under the root.
            write: Called once with an open ``pyarrow.NativeFile``.

        Returns:
            The reference that a record needs: path, length and checksum.

        Raises:
            OSError: The disk refuses (full, read-only).
        """

    @abstractmethod
    def finish(self) -> None:
        """Make all files durable under their final names."""

    @abstractmethod
    def discard(self) -> None:
        """Remove what was written, as far as no other writer could need it."""

    def add_table(
        self, relative: str, table: pa.Table | list[pa.RecordBatch], *, compressed: bool = False
    ) -> FileRef:
        """Write a table, or a list of record batches of one schema, as an Arrow IPC file.

        Args:
            relative: Path under the root.
            table: What to write.
            compressed: Buffers in zstd: for files that are read once, not mapped for long.
        """
        schema = table.schema if isinstance(table, pa.Table) else table[0].schema
        options = COMPRESSED if compressed else _PLAIN

        def write(sink: BinaryIO) -> None:
            with pa.ipc.new_file(sink, schema, options=options) as writer:
                for batch in table.to_batches() if isinstance(table, pa.Table) else table:
                    writer.write_batch(batch)

        return self.add(relative, write)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.discard()
