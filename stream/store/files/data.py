"""Data files of a store: written whole or not at all, read only if they are what their record says."""

import mmap
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import pyarrow as pa
import xxhash

from schemas.store import FileRef
from stream.store.errors import CorruptError, MissingError
from stream.store.files.arrow_bounds import open_bounded, require_whole
from stream.store.files.crash import crash_point
from stream.store.files.paths import TEMPORARY, inside, make_folders, remove_empty, sync_file, sync_folder
from stream.store.files.records import put_record, read_record
from stream.store.files.write_out import WriteOut
from stream.store.places.cache import cache_of
from stream.store.places.object_path import ObjectPath
from stream.store.places.place import Place

__all__ = [
    "Staging",
    "checksum",
    "open_table",
    "put_record",
    "read_record",
    "read_table",
    "stage",
    "write_file",
    "write_table",
]

SYNC_THREADS = 8
"""Threads that sync the files of one commit: file systems group concurrent fsyncs."""

_PLAIN = pa.ipc.IpcWriteOptions()
COMPRESSED = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", compression_level=1))
"""Level 1 takes a third of the time of level 3, and on sorted ids and changed features gives nearly the same."""

Write = Callable[[Any], None]
"""Writes a file's content to the ``pyarrow.NativeFile`` it is given."""


class Staging:
    """The data files of one commit: written under temporary names, then made durable and named together.

    Use it as a context manager: an exception inside removes what was written. The steps of ``finish``:
    1. fsync of every file; 2. rename to the final names; 3. fsync of every folder that changed.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._staged: list[Path] = []
        self._folders: set[Path] = set()
        self._made: list[Path] = []

    def add(self, relative: str, write: Write) -> FileRef:
        """Write one file under its temporary name.

        Args:
            relative: Path under the root.
            write: Called once with an open ``pyarrow.NativeFile``.

        Returns:
            The reference that a record needs: path, length and checksum.

        Raises:
            OSError: The disk refuses (full, read-only).
        """
        path = inside(self._root, relative)
        made = make_folders(path.parent)
        self._made.extend(made)
        self._folders.update(folder.parent for folder in made)
        self._folders.add(path.parent)
        temporary = path.with_name(path.name + TEMPORARY)
        self._staged.append(path)
        with WriteOut(temporary) as sink:
            write(sink.native())
        size = sink.bytes
        crash_point("file.torn", lambda: os.truncate(temporary, size // 2))
        crash_point("file.written")
        return FileRef(path=relative, bytes=size, checksum=sink.checksum)

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

    def finish(self) -> None:
        """Make all files durable under their final names."""
        if not self._staged:
            return
        temporaries = [path.with_name(path.name + TEMPORARY) for path in self._staged]
        _each(sync_file, temporaries)
        crash_point("file.synced")
        for temporary, path in zip(temporaries, self._staged, strict=True):
            temporary.rename(path)
            crash_point("file.renamed")
        _each(sync_folder, list(self._folders))
        crash_point("files.named")

    def discard(self) -> None:
        """Remove what was written, whatever step it had reached, and the folders made for it: the next try syncs its own."""
        for path in self._staged:
            path.with_name(path.name + TEMPORARY).unlink(missing_ok=True)
            path.unlink(missing_ok=True)
        remove_empty(self._made)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.discard()


def stage(root: Place, token: str | None = None) -> Staging:
    """The data files of one commit of a log or lane, to be used as a context manager.

    Args:
        root: Folder of the log or lane.
        token: In a bucket, part of the files' names; None: a new one, empty: none, for files that no record names.
    """
    if isinstance(root, ObjectPath):
        from stream.store.files.object_staging import ObjectStaging

        return ObjectStaging(root, token)
    return Staging(root)


def _each(sync: Callable[[Path], None], paths: list[Path]) -> None:
    if len(paths) <= 2:
        for path in paths:
            sync(path)
        return
    with ThreadPoolExecutor(min(SYNC_THREADS, len(paths))) as pool:
        list(pool.map(sync, paths))


def write_file(root: Place, relative: str, write: Write) -> FileRef:
    """Write one durable file: temporary name, fsync, rename, fsync of the folder.

    Raises:
        OSError: The disk refuses; nothing is left behind.
    """
    with stage(root, token="") as staging:
        reference = staging.add(relative, write)
        staging.finish()
    return reference


def write_table(root: Place, relative: str, table: pa.Table | list[pa.RecordBatch]) -> FileRef:
    """Write a table, or record batches of one schema, as one durable Arrow IPC file."""
    with stage(root, token="") as staging:
        reference = staging.add_table(relative, table)
        staging.finish()
    return reference


def checksum(path: Path) -> str:
    """xxh64, hex, of a whole file."""
    digest = xxhash.xxh64()
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
                digest.update(view)
    return digest.hexdigest()


def open_table(root: Place, reference: FileRef, *, verify: bool = True) -> pa.ipc.RecordBatchFileReader:
    """Open an Arrow IPC file of the store, memory-mapped; one in a bucket is fetched into the cache first.

    Args:
        root: Folder of the log or lane.
        reference: How a record names it.
        verify: Compare the checksum as well as the length; False where it has been done before.

    Returns:
        A reader over the mapped bytes: record batches and their buffers are views, nothing is copied.

    Raises:
        CorruptError: Missing, of another length or checksum, not an Arrow file, or one that asks for far more memory
            than it has bytes; the message names the file.
        OSError: A bucket or the cache's disk refuses.
    """
    place = inside(root, reference.path)
    if isinstance(place, Path):
        return _open(place, place, reference, verify)
    cache = cache_of(place)
    for again in (True, False):
        try:
            path = cache.fetched(place, reference.bytes, reference.checksum)
        except FileNotFoundError:
            raise _missing(place) from None
        try:
            return _open(path, place, reference, verify)
        except CorruptError:
            # Evicted by another process this moment, or the copy is damaged: what lies in the bucket decides.
            if not again or (not cache.forget(place, reference.checksum) and path.exists()):
                raise
    raise AssertionError("the second try returns or raises")


def _open(path: Path, place: Place, reference: FileRef, verify: bool) -> pa.ipc.RecordBatchFileReader:
    """Open a file of this machine that is, or is a copy of, the one at a place of the store."""
    try:
        found = path.stat().st_size
    except (FileNotFoundError, NotADirectoryError):
        raise _missing(place) from None
    if found != reference.bytes:
        raise CorruptError(f"{place} has {found} bytes, its record says {reference.bytes}{_REMEDY}")
    try:
        buffer = pa.memory_map(str(path)).read_buffer()
        if verify and xxhash.xxh64_hexdigest(buffer) != reference.checksum:
            raise CorruptError(
                f"{place} does not match the checksum {reference.checksum} of its record{_REMEDY}"
            )
        return open_bounded(buffer) if verify else pa.ipc.open_file(buffer)
    except FileNotFoundError:  # gone since the look at its length
        raise _missing(place) from None
    except (pa.ArrowException, OSError, ValueError) as error:
        raise CorruptError(
            f"{place} is not an Arrow file: {' '.join(str(error).split())}{_REMEDY}"
        ) from error


def _missing(place: Place) -> MissingError:
    return MissingError(f"{place} is missing, though a record names it{_REMEDY}")


def read_table(
    root: Place, reference: FileRef, *, schema: pa.Schema | None = None, verify: bool = True
) -> pa.Table:
    """The whole table of a file of the store, memory-mapped and zero-copy.

    Args:
        root: Folder of the log or lane.
        reference: How a record names it.
        schema: The schema it must have.
        verify: As for ``open_table``.

    Raises:
        CorruptError: As ``open_table``, another schema than asked for, or arrays that aren't in the file.
    """
    reader = open_table(root, reference, verify=verify)
    if schema is not None and not reader.schema.equals(schema):
        raise CorruptError(
            f"{root / reference.path} has the columns {', '.join(reader.schema.names)} of another schema, "
            f"expected {', '.join(schema.names)}{_REMEDY}"
        )
    try:
        table = reader.read_all()
        if verify:
            require_whole(table)
        return table
    except (pa.ArrowException, OSError) as error:
        raise CorruptError(
            f"{root / reference.path} is damaged inside: {' '.join(str(error).split())}{_REMEDY}"
        ) from error


_REMEDY = "; freshet-stream verify lists all damage, restore the file from a copy"
