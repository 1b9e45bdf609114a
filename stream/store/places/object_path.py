"""A place in a bucket with the interface of a ``pathlib.Path``, as far as the store needs it.

A folder is a common prefix of keys up to a slash: it exists while it holds a file, and is never made.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import ClassVar, Self

from stream.store.crash import crash_point
from stream.store.places.bucket import Bucket, Found
from stream.store.places.bucket_staging import BucketStaging
from stream.store.places.cache import cache_apart, cache_of
from stream.store.places.lease import Lease

REMOVED_AT_ONCE = 1000
"""Objects removed by one request."""


@dataclass(frozen=True, slots=True)
class ObjectStat:
    """The part of ``os.stat_result`` that a bucket knows."""

    st_size: int
    st_mtime: float


@dataclass(frozen=True, slots=True, order=True)
class ObjectPath:
    """A file or folder in a bucket.

    Attributes:
        bucket: The bucket.
        key: Steps between slashes, without a leading or trailing one.
        listed: The object as listed, if the path came from a listing.
    """

    bucket: Bucket = field(compare=False)
    key: str
    listed: Found | None = field(default=None, compare=False, repr=False)

    remote: ClassVar[bool] = True
    lock_shuts_out: ClassVar[bool] = False
    can_move: ClassVar[bool] = False
    errors_are_certain: ClassVar[bool] = False

    def __str__(self) -> str:
        return f"{self.bucket.address}/{self.key}"

    def __truediv__(self, relative: str) -> "ObjectPath":
        return ObjectPath(self.bucket, f"{self.key}/{relative}" if self.key else relative)

    def __hash__(self) -> int:
        return hash(self.key)

    @property
    def name(self) -> str:
        """The last step."""
        return self.key.rpartition("/")[2]

    @property
    def stem(self) -> str:
        """The last step without its suffix."""
        name, dot, _ = self.name.rpartition(".")
        return name if dot and name else self.name

    @property
    def parent(self) -> "ObjectPath":
        """The folder it lies in."""
        return ObjectPath(self.bucket, self.key.rpartition("/")[0])

    def with_name(self, name: str) -> "ObjectPath":
        """Its neighbour of another name."""
        return self.parent / name

    def exists(self) -> bool:
        """Whether there is a file."""
        try:
            self.bucket.stat(self.key)
        except FileNotFoundError:
            return False
        return True

    def is_dir(self) -> bool:
        """Whether it holds a file."""
        if self.listed is not None:
            return False
        return next(iter(self.bucket.below(self._prefix())), None) is not None

    def is_symlink(self) -> bool:
        """Never: a bucket has no links."""
        return False

    def stat(self) -> ObjectStat:
        """Length and time of a file, as listed or as of now; raises FileNotFoundError."""
        found = self.listed or self.bucket.stat(self.key)
        return ObjectStat(found.bytes, found.modified_s)

    def read_bytes(self) -> bytes:
        """See ``Place.read_bytes``."""
        return self.bucket.read(self.key)[0]

    def iterdir(self) -> Iterator["ObjectPath"]:
        """Folders and files directly in it; empty if it does not exist."""
        folders, files = self.bucket.folder(self._prefix())
        for prefix in folders:
            yield ObjectPath(self.bucket, prefix.rstrip("/"))
        for found in files:
            yield ObjectPath(self.bucket, found.key, found)

    def glob(self, pattern: str) -> Iterator["ObjectPath"]:
        """See ``Place.glob``."""
        first, _, rest = pattern.partition("/")
        for path in self.iterdir():
            if fnmatchcase(path.name, first):
                if not rest:
                    yield path
                elif (path / rest).exists():
                    yield path / rest

    def rglob(self, pattern: str) -> Iterator["ObjectPath"]:
        """See ``Place.rglob``: files only."""
        for found in self.bucket.below(self._prefix()):
            path = ObjectPath(self.bucket, found.key, found)
            if fnmatchcase(path.name, pattern):
                yield path

    def unlink(self, missing_ok: bool = False) -> None:
        """See ``Place.unlink``; raises FileNotFoundError if it is missing, except with ``missing_ok``."""
        if not missing_ok:
            self.bucket.stat(self.key)
        self.bucket.remove([self.key])

    def put(self, content: bytes) -> None:
        """See ``Place.put``."""
        self.bucket.put(self.key, content)

    def absolute(self) -> Self:
        """Itself: a bucket has no working folder."""
        return self

    def entry(self, steps: Sequence[str]) -> "ObjectPath":
        """See ``Place.entry``: a key has no links."""
        return self / "/".join(steps)

    def make(self) -> list[Path]:
        """See ``Place.make``: nothing is made."""
        return []

    def settle(self) -> None:
        """See ``Place.settle``: every put is durable."""

    def sync(self) -> None:
        """See ``Place.sync``: every put is durable."""

    def put_record(self, content: bytes, *, replace: bool) -> None:
        """See ``Place.put_record``: one conditional put, repeated if its answer is lost."""
        crash_point("record.written")
        if replace and self.exists():
            self.bucket.replace(self.key, content, self.bucket.stat(self.key).etag)
        else:
            self.bucket.put_new(self.key, content)
        crash_point("record.named")

    def move(self, to: "ObjectPath") -> None:
        """See ``Place.move``: impossible."""
        raise NotImplementedError(f"{self} cannot be moved to {to}")

    def stage(self, token: str | None = None) -> BucketStaging:
        """See ``Place.stage``."""
        return BucketStaging(self, token)

    def lock(self, writer_id: str, name: str, doing: str) -> Lease:
        """See ``Place.lock``: a lease."""
        return Lease(self, writer_id, name, doing)

    def here(self, checksum: str) -> Path:
        """See ``Place.here``: a copy in the cache."""
        return cache_of(self).fetched(self, checksum)

    def worth_another_try(self, checksum: str, tried: Path) -> bool:
        """See ``Place.worth_another_try``: if another process evicted the copy just now, or the copy was damaged."""
        return cache_of(self).forget(self, checksum) or not tried.exists()

    def ahead_bytes(self) -> int:
        """See ``Place.ahead_bytes``: a part of the cache."""
        return cache_of(self).limit_bytes // 4

    def disk(self) -> Path:
        """See ``Place.disk``: the cache's."""
        return cache_of(self).folder

    @contextmanager
    def apart(self) -> "Iterator[ObjectPath]":
        """See ``Place.apart``: through a cache that is removed with the block."""
        with cache_apart(self.bucket.address) as address:
            yield ObjectPath(Bucket(address), self.key)

    def names(self) -> list[str]:
        """See ``Place.names``."""
        return [path.name for path in self.iterdir()]

    def entries(self, chosen: Callable[[list[str]], Iterable[str]]) -> "list[ObjectPath]":
        """See ``Place.entries``: with sizes and times from the listing."""
        listed = {path.name: path for path in self.iterdir()}
        return [listed[name] for name in chosen(list(listed))]

    def outdated(self, paths: "Iterable[ObjectPath]") -> "Iterator[ObjectPath]":
        """See ``Place.outdated``: files put before this record, by the service's clock.

        A writer that put them without naming them was shut out when the record took its name. Younger files may belong
        to a writer that has taken over.
        """
        before_s = self.stat().st_mtime
        for path in paths:
            files = [path] if path.listed is not None else list(path.rglob("*"))
            yield from (file for file in files if file.stat().st_mtime < before_s)

    def length(self) -> int:
        """See ``Place.length``: of listed objects."""
        return sum(one.listed.bytes for one in ([self] if self.listed else self.rglob("*")) if one.listed)

    @classmethod
    def remove(cls, paths: "Sequence[ObjectPath]") -> int:
        """See ``Place.remove``."""
        objects: list[ObjectPath] = []
        for path in paths:
            objects.extend([path] if path.listed is not None else [path, *path.rglob("*")])
        for start in range(0, len(objects), REMOVED_AT_ONCE):
            some = objects[start : start + REMOVED_AT_ONCE]
            some[0].bucket.remove([path.key for path in some])
        return sum(path.listed.bytes for path in objects if path.listed is not None)

    def _prefix(self) -> str:
        return f"{self.key}/" if self.key else ""
