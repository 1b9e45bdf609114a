"""JSON records: canonical, self-checksummed, written whole, and never changed once others build on them.

Records are numbered; the first ones may be gone, the others are read on demand. A configuration must agree with a header
from the first commit on; until then the header follows the configuration.
"""

import json
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any, Generic, TypeVar, overload

import xxhash
from pydantic import ValidationError

from freshet_graph.schemas.errors import system_call
from freshet_graph.schemas.events import US_PER_S
from freshet_graph.schemas.store import Record
from freshet_graph.stream.store.errors import (
    ConfigMissingError,
    CorruptError,
    FormatVersionError,
    MismatchError,
    RetainedError,
    remedy,
)
from freshet_graph.stream.store.places.place import Place, place_of

T = TypeVar("T")

CACHED = 4096
"""Most items read on demand that stay in memory."""


class Numbered(Generic[T]):
    """Items number ``first`` to ``len − 1``; an item keeps its number when older ones are dropped.

    Indexing and slicing take numbers (negative ones count from the end), iteration yields the kept items. ``len`` is the
    number of the next item, so it counts dropped ones too.

    Args:
        what: The name of an item, for sentences.
        first: Number of the oldest item kept.
        stored: How many of them ``load`` can read.
        load: Reads the item of a number.
    """

    def __init__(
        self, what: str, first: int = 0, stored: int = 0, load: Callable[[int], T] | None = None
    ) -> None:
        self.first = first
        self._what = what
        self._load = load
        self._loaded_end = first + stored
        self._cache: dict[int, T] = {}
        self._new: list[T] = []

    def append(self, item: T) -> None:
        """Add the next item."""
        self._new.append(item)

    def drop_before(self, first: int) -> None:
        """Forget the items before number ``first``, and free them."""
        self.first = max(self.first, min(first, len(self)))
        for number in [number for number in self._cache if number < self.first]:
            del self._cache[number]
        passed = self.first - self._loaded_end
        if passed > 0:
            del self._new[:passed]
            self._loaded_end = self.first

    def __len__(self) -> int:
        return self._loaded_end + len(self._new)

    def __bool__(self) -> bool:
        return len(self) > self.first

    def __iter__(self) -> Iterator[T]:
        return self._existing(range(self.first, len(self)))

    def __reversed__(self) -> Iterator[T]:
        return self._existing(range(len(self) - 1, self.first - 1, -1))

    @overload
    def __getitem__(self, key: int) -> T: ...

    @overload
    def __getitem__(self, key: slice) -> list[T]: ...

    def __getitem__(self, key: int | slice) -> T | list[T]:
        """An item by number, or the kept items in a range of numbers.

        Raises:
            RetainedError: The item is no longer kept; the message names the first kept one. For a range: an item was
                dropped since ``first`` was read, because a list with a hole would pass for the whole.
            IndexError: The item does not exist yet.
        """
        if isinstance(key, slice):
            return [self._item(number) for number in range(*key.indices(len(self))) if number >= self.first]
        number = key + len(self) if key < 0 else key
        if not 0 <= number < len(self):
            raise IndexError(f"there is no {self._what} number {key}, there are {len(self)}")
        if number < self.first:
            raise RetainedError(
                f"{self._what} number {number} is no longer kept. A reader can start from number {self.first}"
            )
        return self._item(number)

    def __eq__(self, other: object) -> bool:
        return list(self) == (list(other) if isinstance(other, Numbered) else other)

    __hash__ = None  # type: ignore[assignment]  # mutable

    def _existing(self, numbers: range) -> Iterator[T]:
        """The items of a range without those dropped before or during the iteration."""
        for number in numbers:
            if number < self.first:
                continue
            try:
                item = self._item(number)
            except RetainedError:
                continue
            yield item

    def _item(self, number: int) -> T:
        if number >= self._loaded_end:
            return self._new[number - self._loaded_end]
        if number not in self._cache:
            assert self._load is not None
            if len(self._cache) >= CACHED:
                self._cache.pop(next(iter(self._cache)))
            self._cache[number] = self._load(number)
        return self._cache[number]


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
        raise CorruptError(f"{path} is a folder, but should be a record{remedy(path)}") from None
    try:
        content = json.loads(raw)
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise CorruptError(
            f"{path} is not a record: {len(raw)} bytes that are not a JSON object{remedy(path)}"
        )
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
        raise CorruptError(f"{path} does not match its own checksum{remedy(path)}")
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        where = ", ".join(".".join(str(step) for step in e["loc"]) for e in error.errors())
        raise CorruptError(f"{path} is not a {kind.__name__}: wrong {where}{remedy(path)}") from error


CONFIG_KEYS = {
    "interval_us": "snapshots.interval_s",
    "node_features": "features.node",
    "edge_features": "features.edge",
    "segments": "features.segments",
    "graph": "graph",
    "ids": "ids",
}
"""Configuration keys of a header's keys; all others are keys of a lane."""


def put_or_agree(path: Place, wanted: R, what: str, *, begun: bool, changeable: Collection[str] = ()) -> R:
    """Write a header, or check that the existing one agrees; the caller has the folder's lock.

    A header without a commit binds nothing and is replaced, so that a first start with a wrong key leaves nothing to clean up
    by hand.

    Args:
        path: The header's place.
        wanted: The header as the configuration has it.
        what: Its owner, such as ``a log``.
        begun: Whether there is a commit under the header.
        changeable: Keys that may differ: they say how the header's owner began and bind nothing.

    Returns:
        The header as written.

    Raises:
        MismatchError: They differ; the message names the key and both values.
        CorruptError, FormatVersionError: It is damaged, from another release, or missing though there are commits.
        OSError: The disk refuses.
    """
    if not path.exists():
        if begun:
            raise lost_header(path)
        return put_record(path, wanted)
    stored = read_record(path, type(wanted))
    if not begun:
        same = stored.checksum == seal_record(wanted).checksum
        return stored if same else put_record(path, wanted, replace=True)
    require_agreement(path, stored, wanted, what, changeable)
    return stored


def require_agreement(path: Place, stored: R, wanted: R, what: str, changeable: Collection[str] = ()) -> None:
    """Check that a header with commits agrees with the configuration.

    Raises:
        MismatchError: They differ; the message names the key and both values.
    """
    for key, value in seal_record(wanted):
        if key not in {"checksum", *changeable} and getattr(stored, key) != value:
            name = CONFIG_KEYS.get(key, f"lanes.{key}")
            new = "store" if what == "a log" else "name"
            cut = (
                ", into which freshet-stream backfill OLD_STORE cuts the same events"
                if key == "interval_us"
                else ""
            )
            raise MismatchError(
                f"{path} has {name} = {_configured(key, getattr(stored, key))}, the configuration asks for "
                f"{_configured(key, value)}. It is fixed for the life of {what}. Change the configuration back, or choose a "
                f"new {new}{cut}"
            )


def _configured(key: str, value: object) -> str:
    """A header's value in the form of the configuration."""
    return f"{value / US_PER_S:.15g}" if key == "interval_us" and isinstance(value, int) else repr(value)


def lost_header(path: Place) -> CorruptError:
    """The error for commits without their header, which a new header could not replace."""
    return CorruptError(f"{path} is missing, though there are commits under it{remedy(path)}")
