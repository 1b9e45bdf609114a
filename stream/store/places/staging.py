"""The data files of one commit, wherever they lie."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, BinaryIO, Self

import pyarrow as pa

from schemas.store import FileRef

SYNC_THREADS = 8
"""Threads that sync or put the files of one commit: file systems group concurrent fsyncs."""

_PLAIN = pa.ipc.IpcWriteOptions()
COMPRESSED = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", compression_level=1))
"""Level 1 takes a third of the time of level 3 and compresses sorted ids and changed features nearly as well."""

Write = Callable[[Any], None]
"""Writes a file's content to the given ``pyarrow.NativeFile``."""


class Staging(ABC):
    """The data files of one commit: written out of readers' sight, then made durable and named together.

    A context manager: an exception inside removes the files.
    """

    @abstractmethod
    def add(self, relative: str, write: Write) -> FileRef:
        """Write one file.

        Args:
            relative: Path under the root.
            write: Called once with an open ``pyarrow.NativeFile``.

        Returns:
            The reference for a record: path, length and checksum.

        Raises:
            OSError: The disk refuses (full, read-only).
        """

    @abstractmethod
    def finish(self) -> None:
        """Make all files durable under their final names."""

    @abstractmethod
    def discard(self) -> None:
        """Remove the files, as far as no other writer could need them."""

    def add_table(
        self, relative: str, table: pa.Table | list[pa.RecordBatch], *, compressed: bool = False
    ) -> FileRef:
        """Write a table, or a list of record batches of one schema, as an Arrow IPC file.

        Args:
            relative: Path under the root.
            table: What to write.
            compressed: Compress buffers by zstd: for files that are read once, not mapped for long.
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

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is not None:
            self.discard()
