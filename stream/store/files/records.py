"""JSON records: canonical, self-checksummed, put whole and never changed once others build on them."""

import errno
import json
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import xxhash
from pydantic import ValidationError

from schemas.store import Record
from stream.store.errors import ConfigMissingError, CorruptError, FormatVersionError
from stream.store.files.crash import crash_point
from stream.store.files.paths import TEMPORARY, make_folders, sync_file, sync_folder
from stream.store.places.object_path import ObjectPath
from stream.store.places.place import Place

R = TypeVar("R", bound=Record)

READ_THREADS = 16
"""Records of a bucket that are read at a time: each costs a round trip."""

MOST_AHEAD = 64
"""Records of a bucket that are asked for before it is known that they are there."""

_NO_HARD_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


def canonical(content: dict[str, Any]) -> bytes:
    """The one byte form of a record: sorted keys, no spaces, UTF-8, a final newline."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode() + b"\n"


def checksum_of(content: dict[str, Any]) -> str:
    """xxh64, hex, of a record's canonical form with the key ``checksum`` empty."""
    return xxhash.xxh64_hexdigest(canonical({**content, "checksum": ""}))


def seal_record(record: R) -> R:
    """The record with its checksum filled in."""
    return record.model_copy(update={"checksum": checksum_of(record.model_dump(mode="json"))})


def put_record(path: Place, record: R, *, replace: bool = False) -> R:
    """Write a record under a name that isn't taken: whole, durable, and never over another one.

    1. canonical JSON under a temporary name, fsync;
    2. hard link to the final name, which fails if that exists;
    3. fsync of the folder, and the temporary name goes; where that is refused, it is left to the next sweep.

    A crash leaves either the whole record or a temporary file that nobody reads. In a bucket one conditional put does all
    three; where its answer is lost it is repeated, and the record that it finds is taken for its own if it is the same.

    Args:
        path: Where it goes.
        record: What it says.
        replace: Take the place of the record there, if there is one: step 2 is a rename over it, so that every reader finds
            the old one or the new one, whole. Only for a record that nothing was built on yet.

    Returns:
        The record as written, checksum included.

    Raises:
        FileExistsError: The name is taken.
        OSError: The disk refuses (full, read-only).
    """
    record = seal_record(record)
    if isinstance(path, ObjectPath):
        crash_point("record.written")
        content = canonical(record.model_dump(mode="json"))
        path.change(content) if replace and path.exists() else path.put_new(content)
        crash_point("record.named")
        return record
    made = make_folders(path.parent)
    temporary = path.with_name(path.name + TEMPORARY)
    try:
        temporary.write_bytes(canonical(record.model_dump(mode="json")))
        crash_point("record.torn", lambda: os.truncate(temporary, temporary.stat().st_size // 2))
        crash_point("record.written")
        sync_file(temporary)
        crash_point("record.synced")
        temporary.replace(path) if replace else _name_once(temporary, path)
        crash_point("record.linked")
        for folder in {path.parent, *(folder.parent for folder in made)}:
            sync_folder(folder)
        crash_point("record.named")
    finally:
        with suppress(
            OSError
        ):  # it is a second name of the record, or half of one: neither changes how this ended
            temporary.unlink(missing_ok=True)
    return record


def read_records(paths: Iterable[Place], kind: type[R]) -> Iterator[R]:
    """Read records in order up to the first that isn't there; those of a bucket several at a time.

    Raises:
        FormatVersionError, CorruptError: As ``read_record``, once the records before it were given.
    """
    waiting, ahead = iter(paths), 1
    while some := list(islice(waiting, ahead)):
        read: list[R | None] = []
        if len(some) == 1:
            read = [_read_if_there(some[0], kind)]
        else:
            with ThreadPoolExecutor(min(READ_THREADS, len(some))) as pool:
                futures = [pool.submit(_read_if_there, path, kind) for path in some]
            read = [future.result() for future in futures]
        for record in read:
            if record is None:
                return
            yield record
        if isinstance(some[0], ObjectPath):  # a follower finds one at most, a reader that opens a store many
            ahead = min(2 * ahead, MOST_AHEAD)


def _read_if_there(path: Place, kind: type[R]) -> R | None:
    try:
        return read_record(path, kind)
    except ConfigMissingError:
        return None


def _name_once(temporary: Path, path: Path) -> None:
    try:
        os.link(temporary, path)
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
        # A file system without hard links: the folder's lock keeps others from the gap between the two.
        if path.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from None
        temporary.rename(path)


def read_record(path: Place, kind: type[R]) -> R:
    """Read a record and check that every byte is what was written.

    Raises:
        ConfigMissingError: There is no such file.
        FormatVersionError: It was written by another format version.
        CorruptError: Truncated, flipped, or of another kind.
    """
    try:
        raw = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigMissingError(f"{path} does not exist; check the store's path") from None
    except IsADirectoryError:
        raise CorruptError(f"{path} is a folder, it should be a record{_REMEDY}") from None
    try:
        content = json.loads(raw)
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise CorruptError(f"{path} is not a record: {len(raw)} bytes that are not a JSON object{_REMEDY}")
    version = content.get("format_version")
    if version not in kind.VERSIONS:
        known = " and ".join(map(str, kind.VERSIONS))
        raise FormatVersionError(
            f"{path} has format version {version!r}, this release reads version {known}; use the release that wrote the store"
        )
    try:
        intact = canonical(content) == raw and content.get("checksum") == checksum_of(content)
    except ValueError:  # NaN, which canonical JSON doesn't have
        intact = False
    if not intact:
        raise CorruptError(f"{path} does not match its own checksum{_REMEDY}")
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        where = ", ".join(".".join(str(step) for step in e["loc"]) for e in error.errors())
        raise CorruptError(f"{path} is not a {kind.__name__}: wrong {where}{_REMEDY}") from error


_REMEDY = "; freshet-stream verify lists all damage, restore the file from a copy"
