"""Data files of a store: written whole or not at all, and read only if they match their record."""

from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import xxhash

from schemas.errors import system_call
from schemas.store import FileRef
from stream.store.errors import RESTORE, CorruptError, MissingError
from stream.store.files.arrow_bounds import open_bounded, require_whole, whole_or_corrupt
from stream.store.places.names import inside
from stream.store.places.place import Place, place_of

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
            path = place.here(reference.checksum)
        except FileNotFoundError:
            raise _missing(place) from None
        try:
            return _open(path, place, reference, verify)
        except CorruptError:
            if not again or not place.worth_another_try(reference.checksum, path):
                raise
    raise AssertionError("the second try returns or raises")


def _open(path: Path, place: Place, reference: FileRef, verify: bool) -> pa.ipc.RecordBatchFileReader:
    """Open a file of this machine that is the store's file at a place, or a copy of it."""
    try:
        with system_call("stat", path):
            found = path.stat().st_size
    except (FileNotFoundError, NotADirectoryError):
        raise _missing(place) from None
    if found != reference.bytes:
        raise CorruptError(f"{place} has {found} bytes, its record says {reference.bytes}{RESTORE}")
    try:
        buffer = _content(path, found)
    except FileNotFoundError:  # removed since the look at its length
        raise _missing(place) from None
    if verify and xxhash.xxh64_hexdigest(buffer) != reference.checksum:
        raise CorruptError(f"{place} does not match the checksum {reference.checksum} of its record{RESTORE}")
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
    return MissingError(f"{place} is missing, though a record names it{RESTORE}")


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
    if schema is not None and not reader.schema.equals(schema):
        raise CorruptError(
            f"{root / reference.path} has the columns {', '.join(reader.schema.names)} of another schema, "
            f"expected {', '.join(schema.names)}{RESTORE}"
        )
    with whole_or_corrupt(root / reference.path):
        table = reader.read_all()
        if verify:
            require_whole(table)
        return table
