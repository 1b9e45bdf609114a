"""JSON records: canonical, self-checksummed, written whole, and never changed once others build on them."""

import json
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import xxhash
from pydantic import ValidationError

from schemas.errors import system_call
from schemas.store import Record
from stream.store.errors import RESTORE, ConfigMissingError, CorruptError, FormatVersionError
from stream.store.places.place import Place, place_of

R = TypeVar("R", bound=Record)

READ_THREADS = 16
"""Records of a bucket read at the same time, because each costs a round trip."""

MOST_AHEAD = 64
"""Records of a bucket requested before it is known that they exist."""


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


def put_record(path: Path | Place, record: R, *, replace: bool = False) -> R:
    """Write a durable record under a free name.

    A crash leaves the whole record, or a temporary file that no reader opens; for the steps see ``Place.put_record``.

    Args:
        path: Its place.
        record: Its content.
        replace: Take the place of an existing record; every reader finds either of them whole. Only for a record that
            nothing was built on yet.

    Returns:
        The record as written, checksum included.

    Raises:
        FileExistsError: The name is taken.
        OSError: The disk refuses (full, read-only).
    """
    record = seal_record(record)
    place_of(path).put_record(canonical(record.model_dump(mode="json")), replace=replace)
    return record


def read_records(paths: Iterable[Path | Place], kind: type[R]) -> Iterator[R]:
    """Read records in order up to the first missing one; those of a bucket several at a time.

    Raises:
        FormatVersionError, CorruptError: As for ``read_record``, after the records before it.
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
        if place_of(some[0]).remote:  # a follower finds one at most, a reader opening a store many
            ahead = min(2 * ahead, MOST_AHEAD)


def _read_if_there(path: Path | Place, kind: type[R]) -> R | None:
    try:
        return read_record(path, kind)
    except ConfigMissingError:
        return None


def read_record(path: Path | Place, kind: type[R]) -> R:
    """Read a record and check every byte.

    Raises:
        ConfigMissingError: The file does not exist.
        FormatVersionError: It has another format version.
        CorruptError: It is truncated, flipped, or of another kind.
    """
    try:
        with system_call("read", path):
            raw = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigMissingError(f"{path} does not exist. Check the store's path") from None
    except IsADirectoryError:
        raise CorruptError(f"{path} is a folder, but should be a record{RESTORE}") from None
    try:
        content = json.loads(raw)
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise CorruptError(f"{path} is not a record: {len(raw)} bytes that are not a JSON object{RESTORE}")
    version = content.get("format_version")
    if version not in kind.VERSIONS:
        known = " and ".join(map(str, kind.VERSIONS))
        raise FormatVersionError(
            f"{path} has format version {version!r}, this release reads version {known}. Use the release that wrote the store"
        )
    try:
        intact = canonical(content) == raw and content.get("checksum") == checksum_of(content)
    except ValueError:  # NaN, which canonical JSON doesn't have
        intact = False
    if not intact:
        raise CorruptError(f"{path} does not match its own checksum{RESTORE}")
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        where = ", ".join(".".join(str(step) for step in e["loc"]) for e in error.errors())
        raise CorruptError(f"{path} is not a {kind.__name__}: wrong {where}{RESTORE}") from error
