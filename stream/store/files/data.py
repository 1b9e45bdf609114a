"""Data files of a store, in Arrow IPC: written whole or not at all, and read only if they match their record.

Uncompressed buffers are views of the mapped file, and Arrow rejects those outside of it. Two checks Arrow leaves to the
reader: a compressed buffer states its own length in its first 8 bytes, and Arrow allocates that much; and an array may claim
more rows than its buffers hold, which NumPy would read beyond their end. Both are made before anything is allocated.
"""

import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from freshet_graph.schemas.errors import one_line, system_call
from freshet_graph.schemas.store import FileRef
from freshet_graph.stream.store.errors import CorruptError, MissingError, remedy
from freshet_graph.stream.store.places.interface import inside
from freshet_graph.stream.store.places.place import Place, place_of

MAX_EXPANSION: Final = 1 << 10
"""Most decompressed bytes per byte of a file, beside ``FREE_BYTES``."""

FREE_BYTES: Final = 1 << 20
_MAGIC: Final = b"ARROW1"
_CONTINUATION: Final = -1
_DICTIONARY_BATCH: Final = 2
_OUTSIDE: Final = "its metadata leads out of the file"


@contextmanager
def whole_or_corrupt(file: object, what: str = "is damaged inside") -> Iterator[None]:
    """Name the file in the errors of Arrow and of this module about its content, which was read.

    Raises:
        CorruptError: The content is wrong.
        OSError: There is not enough memory, which says nothing about the content.
    """
    try:
        with system_call("read", file):
            yield
    except (pa.ArrowException, OSError, ValueError, IndexError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise CorruptError(f"{file} {what}: {one_line(error)}{remedy(file)}") from error


def require_bounded(buffer: pa.Buffer) -> None:
    """Check that an Arrow IPC file doesn't ask for more memory than its length justifies.

    Reads the footer and each message's header (``File.fbs`` and ``Message.fbs`` of the Arrow format); takes microseconds per
    record batch.

    Args:
        buffer: The whole file.

    Raises:
        ValueError: It asks for more, or its metadata leads out of the file.
    """
    data = _Flat(buffer)
    allowed = FREE_BYTES + MAX_EXPANSION * len(data)
    decompressed_bytes = sum(_decompressed(data, batch, body) for batch, body in _record_batches(data))
    if decompressed_bytes > allowed:
        raise ValueError(
            f"its compressed buffers ask for {decompressed_bytes} bytes, {allowed} are allowed for {len(data)}"
        )


def require_whole(batch: pa.RecordBatch | pa.Table) -> None:
    """Check that every array lies within its buffers, and that columns have no nulls unless their schema allows them.

    Fixed-width columns cost nothing; offsets, texts and dictionary indices one pass.

    Raises:
        pa.ArrowInvalid: An array or a column does not comply.
    """
    batch.validate(full=True)
    for field, column in zip(batch.schema, batch.columns, strict=True):
        if not field.nullable and column.null_count:
            raise pa.ArrowInvalid(f"column {field.name} has {column.null_count} nulls, it must have none")


def open_bounded(buffer: pa.Buffer) -> pa.ipc.RecordBatchFileReader:
    """Open an untrusted Arrow IPC file, checked by ``require_bounded``.

    Raises:
        ValueError: It isn't one, asks for too much memory, or has column names that aren't text.
        OSError: It isn't one.
    """
    require_bounded(buffer)
    reader = pa.ipc.open_file(buffer)
    _ = reader.schema.names  # decodes them
    return reader


def _record_batches(data: "_Flat") -> Iterator[tuple[int, int]]:
    """Positions of metadata and body of each record batch, dictionaries included."""
    length = data.read("<i", len(data) - len(_MAGIC) - 4)
    footer = data.root(len(data) - len(_MAGIC) - 4 - length)
    for blocks in (2, 3):  # Footer: dictionaries, recordBatches
        count, first = data.vector(data.field(footer, blocks))
        for block in data.int64s(first, 3 * count).reshape(-1, 3).tolist():
            start, head = (
                block[0],
                block[1] & 0xFFFFFFFF,
            )  # struct Block: offset, metadata's length (int32), body's
            prefix = 8 if data.read("<i", start) == _CONTINUATION else 4
            message = data.root(start + prefix)
            batch = data.table(message, 2)
            if data.read("<B", data.field(message, 1)) == _DICTIONARY_BATCH:
                batch = data.table(batch, 1)
            yield batch, start + head


def _decompressed(data: "_Flat", batch: int, body: int) -> int:
    """Decompressed size of a record batch's buffers, as they state it."""
    if data.field(batch, 3) == 0:  # RecordBatch.compression
        return 0
    count, first = data.vector(data.field(batch, 2))
    places = data.int64s(first, 2 * count).reshape(-1, 2).tolist()
    return sum(max(0, data.read("<q", body + offset)) for offset, length in places if length)


class _Flat:
    """A file's bytes as flatbuffers; every read is checked against the file's length."""

    def __init__(self, buffer: pa.Buffer) -> None:
        self._bytes = memoryview(buffer).cast("B")

    def __len__(self) -> int:
        return len(self._bytes)

    def read(self, form: str, offset: int) -> int:
        if not 0 <= offset <= len(self._bytes) - struct.calcsize(form):
            raise ValueError(_OUTSIDE)
        return int(struct.unpack_from(form, self._bytes, offset)[0])

    def root(self, offset: int) -> int:
        return offset + self.read("<I", offset)

    def field(self, table: int, number: int) -> int:
        """Position of a table's field; 0 if the field or the table is absent."""
        if table == 0:
            return 0
        shape = table - self.read("<i", table)
        slot = 4 + 2 * number
        if slot >= self.read("<H", shape):
            return 0
        offset = self.read("<H", shape + slot)
        return table + offset if offset else 0

    def table(self, table: int, number: int) -> int:
        """Position of the table that a field refers to; 0 if it is absent."""
        offset = self.field(table, number)
        return self.root(offset) if offset else 0

    def vector(self, offset: int) -> tuple[int, int]:
        """Length of the vector that the field at ``offset`` refers to, and position of its first element."""
        if offset == 0:
            return 0, 0
        start = self.root(offset)
        return self.read("<I", start), start + 4

    def int64s(self, offset: int, count: int) -> NDArray[np.int64]:
        if not 0 <= offset <= len(self._bytes) - 8 * count:
            raise ValueError(_OUTSIDE)
        return np.frombuffer(self._bytes, "<i8", count, offset)


MAPPED_BYTES = 1 << 18
"""Shorter files are read instead of mapped: a process may map some 65,000 files, and a store has several per snapshot."""


def checksum(path: Path) -> str:
    """xxh64, hex, of a whole file."""
    digest = xxhash.xxh64()
    with system_call("read", path), path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def open_table(
    root: Path | Place, reference: FileRef, *, verify: bool = True
) -> pa.ipc.RecordBatchFileReader:
    """Open an Arrow IPC file of the store, in memory or, if it is long, mapped; one in a bucket is fetched first.

    Args:
        root: Folder of the log or lane.
        reference: The file as in its record.
        verify: Compare the checksum as well as the length; False if that was done before.

    Returns:
        A reader over the file's bytes: record batches and their buffers are views, nothing is copied.

    Raises:
        CorruptError: The file is missing, has another length or checksum, isn't an Arrow file, or asks for far more memory
            than it has bytes; the message names it.
        OSError: A disk or a bucket refuses.
    """
    place = inside(place_of(root), reference.path)
    for again in (True, False):
        try:
            path = place.local_path(reference.checksum)
        except FileNotFoundError:
            raise _missing(place) from None
        try:
            return _open(path, place, reference, verify)
        except CorruptError:
            if not again or not place.retryable(reference.checksum, path):
                raise
    raise AssertionError("the second try returns or raises")


def _open(path: Path, place: Place, reference: FileRef, verify: bool) -> pa.ipc.RecordBatchFileReader:
    """Open a file of this machine that is the store's file at a place, or a copy of it."""
    try:
        with system_call("stat", path):
            num_bytes = path.stat().st_size
    except (FileNotFoundError, NotADirectoryError):
        raise _missing(place) from None
    if num_bytes != reference.bytes:
        raise CorruptError(f"{place} has {num_bytes} bytes, its record says {reference.bytes}{remedy(place)}")
    try:
        buffer = _content(path, num_bytes)
    except FileNotFoundError:  # removed since the look at its length
        raise _missing(place) from None
    if verify and xxhash.xxh64_hexdigest(buffer) != reference.checksum:
        raise CorruptError(
            f"{place} does not match the checksum {reference.checksum} of its record{remedy(place)}"
        )
    with whole_or_corrupt(place, "is not an Arrow file"):
        return open_bounded(buffer) if verify else pa.ipc.open_file(buffer)


def _content(path: Path, length: int) -> pa.Buffer:
    if length >= MAPPED_BYTES:
        # Some file systems map no file, and a process may map so many only. Such a file is read like a short one.
        with suppress(OSError):
            return pa.memory_map(str(path)).read_buffer()
    with system_call("read", path):
        return pa.py_buffer(path.read_bytes())


def _missing(place: Place) -> MissingError:
    return MissingError(f"{place} is missing, though a record names it{remedy(place)}")


def require_schema(root: Path | Place, reference: FileRef, actual: pa.Schema, wanted: pa.Schema) -> None:
    """Refuse a file of the store with another schema than its kind of file has.

    Raises:
        CorruptError: The schemas differ.
    """
    if not actual.equals(wanted):
        raise CorruptError(
            f"{root / reference.path} has the columns {', '.join(actual.names)} of another schema, "
            f"expected {', '.join(wanted.names)}{remedy(root / reference.path)}"
        )


def read_table(
    root: Path | Place, reference: FileRef, *, schema: pa.Schema | None = None, verify: bool = True
) -> pa.Table:
    """The whole table of a file of the store; its arrays are views of the file's bytes.

    Args:
        root: Folder of the log or lane.
        reference: The file as in its record.
        schema: The schema that it must have.
        verify: As for ``open_table``.

    Raises:
        CorruptError: As for ``open_table``, or the file has another schema, or arrays outside of its bytes.
    """
    reader = open_table(root, reference, verify=verify)
    if schema is not None:
        require_schema(root, reference, reader.schema, schema)
    with whole_or_corrupt(root / reference.path):
        table = reader.read_all()
        if verify:
            require_whole(table)
        return table
