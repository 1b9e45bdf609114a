"""JSON records: canonical, self-checksummed, put whole and never changed once others build on them."""

import json
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import xxhash
from pydantic import ValidationError

from schemas.store import Record
from stream.store.errors import ConfigMissingError, CorruptError, FormatVersionError
from stream.store.places.place import Place, place_of

R = TypeVar("R", bound=Record)

READ_THREADS = 16
"""Records of a bucket that are read at a time: each costs a round trip."""

MOST_AHEAD = 64
"""Records of a bucket that are asked for before it is known that they are there."""


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
    """Write a record under a name that isn't taken: whole, durable, and never over another one.

    A crash leaves either the whole record or a temporary file that nobody reads. The steps are those of the place.

    Args:
        path: Where it goes.
        record: What it says.
        replace: Take the place of the record there, if there is one: every reader finds the old one or the new one, whole.
            Only for a record that nothing was built on yet.

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
        if place_of(some[0]).remote:  # a follower finds one at most, a reader that opens a store many
            ahead = min(2 * ahead, MOST_AHEAD)


def _read_if_there(path: Path | Place, kind: type[R]) -> R | None:
    try:
        return read_record(path, kind)
    except ConfigMissingError:
        return None


def read_record(path: Path | Place, kind: type[R]) -> R:
    """Read a record and check that every byte is what was written.

    Raises:
        ConfigMissingError: There is no such file.
        FormatVersionError: It was written by another format version.
        CorruptError: Truncated, flipped, or of another kind.
    """
    try:
        raw = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigMissingError(f"{path} does not exist. Check the store's path") from None
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
            f"{path} has format version {version!r}, this release reads version {known}. Use the release that wrote the store"
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
