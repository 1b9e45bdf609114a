"""A place in a bucket that reads like a ``pathlib.Path``: what the store asks of a file or folder, and no more.

A folder is what keys have in common up to a slash: it is there while something lies in it, and nothing has to make it.
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
"""Objects that one request removes."""


@dataclass(frozen=True, slots=True)
class ObjectStat:
    """What ``os.stat_result`` says of a file, as far as a bucket knows it."""

    st_size: int
    st_mtime: float


@dataclass(frozen=True, slots=True, order=True)
class ObjectPath:
    """A file or folder in a bucket.

    Attributes:
        bucket: The bucket.
        key: Steps between slashes, without one at either end.
        listed: What a listing said of it, if it came from one.
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
        """Whether something lies in it."""
        if self.listed is not None:
            return False
        return next(iter(self.bucket.below(self._prefix())), None) is not None

    def is_file(self) -> bool:
        """Whether there is a file, without a look where a listing has told."""
        return self.listed is not None or self.exists()

    def is_symlink(self) -> bool:
        """Never: a bucket has none."""
        return False

    def stat(self) -> ObjectStat:
        """Length and time of a file, as listed or as of now.

        Raises:
            FileNotFoundError: There is none.
        """
        found = self.listed or self.bucket.stat(self.key)
        return ObjectStat(found.bytes, found.modified_s)

    def read_bytes(self) -> bytes:
        """The whole file.

        Raises:
            FileNotFoundError: There is none.
        """
        return self.bucket.read(self.key)[0]

    def iterdir(self) -> Iterator["ObjectPath"]:
        """Folders and files right in it; none where there is nothing."""
        folders, files = self.bucket.folder(self._prefix())
        for prefix in folders:
            yield ObjectPath(self.bucket, prefix.rstrip("/"))
        for found in files:
            yield ObjectPath(self.bucket, found.key, found)

    def glob(self, pattern: str) -> Iterator["ObjectPath"]:
        """What matches a pattern of one step, or of one step and a fixed name after it."""
        first, _, rest = pattern.partition("/")
        for path in self.iterdir():
            if fnmatchcase(path.name, first):
                if not rest:
                    yield path
                elif (path / rest).exists():
                    yield path / rest

    def rglob(self, pattern: str) -> Iterator["ObjectPath"]:
        """All files in it and below whose names match."""
        for found in self.bucket.below(self._prefix()):
            path = ObjectPath(self.bucket, found.key, found)
            if fnmatchcase(path.name, pattern):
                yield path

    def unlink(self, missing_ok: bool = False) -> None:
        """Remove the file.

        Raises:
            FileNotFoundError: There is none, and it isn't ``missing_ok``.
        """
        if not missing_ok:
            self.bucket.stat(self.key)
        self.bucket.remove([self.key])

    def put_new(self, content: bytes) -> None:
        """Make the file with this content; raises FileExistsError where there is another one."""
        self.bucket.put_new(self.key, content)

    def put(self, content: bytes) -> None:
        """Make the file, or give it this content: the last to do so wins."""
        self.bucket.put(self.key, content)

    def change(self, content: bytes) -> None:
        """Give a file that is there this content, unless somebody does so at the same time.

        Raises:
            FileNotFoundError: There is none.
            StaleError: Somebody did.
        """
        _, found = self.bucket.read(self.key)
        self.bucket.replace(self.key, content, found.etag)

    def absolute(self) -> Self:
        """Itself: a bucket has no working folder."""
        return self

    def entry(self, steps: Sequence[str]) -> "ObjectPath":
        """See ``Place.entry``: keys lead nowhere else."""
        return self / "/".join(steps)

    def make(self) -> list[Path]:
        """See ``Place.make``: nothing has to be made."""
        return []

    def settle(self) -> None:
        """See ``Place.settle``: what was put is durable."""

    def sync(self) -> None:
        """See ``Place.sync``: what was put is durable."""

    def put_record(self, content: bytes, *, replace: bool) -> None:
        """See ``Place.put_record``: one conditional put.

        Where its answer is lost it is repeated, and the record that it finds is taken for its own if it is the same.
        """
        crash_point("record.written")
        self.change(content) if replace and self.exists() else self.put_new(content)
        crash_point("record.named")

    def move(self, to: "ObjectPath") -> None:
        """See ``Place.move``: it cannot."""
        raise NotImplementedError(f"{self} cannot be moved to {to}")

    def stage(self, token: str | None = None) -> BucketStaging:
        """See ``Place.stage``."""
        return BucketStaging(self, token)

    def lock(self, writer_id: str, name: str, doing: str) -> Lease:
        """See ``Place.lock``: a lease."""
        return Lease(self, writer_id, name, doing)

    def here(self, size: int, checksum: str) -> Path:
        """See ``Place.here``: a copy in the cache."""
        return cache_of(self).fetched(self, size, checksum)

    def worth_another_try(self, checksum: str, tried: Path) -> bool:
        """See ``Place.worth_another_try``.

        Where the copy was evicted by another process this moment, or is damaged, what lies in the bucket decides.
        """
        return cache_of(self).forget(self, checksum) or not tried.exists()

    def ahead_bytes(self) -> int:
        """See ``Place.ahead_bytes``: a part of the cache."""
        return cache_of(self).limit_bytes // 4

    def disk(self) -> Path:
        """See ``Place.disk``: the cache's."""
        return cache_of(self).folder

    @contextmanager
    def apart(self) -> "Iterator[ObjectPath]":
        """See ``Place.apart``: through a cache that ends with the block."""
        with cache_apart(self.bucket.address) as address:
            yield ObjectPath(Bucket(address), self.key)

    def names(self) -> list[str]:
        """See ``Place.names``."""
        return [path.name for path in self.iterdir()]

    def entries(self, chosen: Callable[[list[str]], Iterable[str]]) -> "list[ObjectPath]":
        """See ``Place.entries``: with what the listing says of each."""
        listed = {path.name: path for path in self.iterdir()}
        return [listed[name] for name in chosen(list(listed))]

    def outdated(self, paths: "Iterable[ObjectPath]") -> "Iterator[ObjectPath]":
        """See ``Place.outdated``: files that were put before this record, by the service's clock.

        Whoever put them without naming them until then was shut out when the record took its name. What is younger may
        be of a writer that has taken over.
        """
        before_s = self.stat().st_mtime
        for path in paths:
            files = [path] if path.listed is not None else list(path.rglob("*"))
            yield from (file for file in files if file.stat().st_mtime < before_s)

    def length(self) -> int:
        """See ``Place.length``: of objects that were listed."""
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
