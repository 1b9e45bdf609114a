"""A place in a bucket with the interface of a ``pathlib.Path``, as far as the store needs it.

A folder is a common prefix of keys up to a slash: it exists while it holds a file, and is never made. The data files of one
commit are written on this machine first, then put under names used only once.

Files are mapped from a cache on this machine's disk, named by their content, bounded in size. A cached file never changes, so
processes share it without a lock; an evicted file stays mapped while it is in use.
"""

import os
import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import ClassVar

import xxhash

from freshet_graph.schemas.errors import system_call
from freshet_graph.schemas.store import FileRef
from freshet_graph.schemas.store_address import Address
from freshet_graph.stream.store.crash import crash_point
from freshet_graph.stream.store.places.bucket import Bucket, Found
from freshet_graph.stream.store.places.interface import SYNC_THREADS, Staging, Write, inside, with_token
from freshet_graph.stream.store.places.lease import Lease
from freshet_graph.stream.store.places.write_out import WriteOut

SCRATCH = "scratch-"
"""Prefix of files that are being written or fetched."""

FORGOTTEN_S = 86_400.0
"""A scratch file without a write for this long is abandoned."""

LOOK_SHARE = 16
"""A process measures the cache each time it has added a sixteenth of its size, so it may exceed its size by that much."""


class Cache:
    """Copies of a bucket's files in one folder.

    Args:
        address: The bucket's address, with the cache's folder and size.

    Raises:
        OSError: The folder can't be made.
    """

    def __init__(self, address: Address) -> None:
        self.folder = address.cache if address.cache is not None else default_folder()
        self.limit_bytes = int(address.cache_gib * 2**30)
        self._bucket = f"{address.endpoint or ''} {address.bucket}"
        self._added = self.limit_bytes  # measure the existing files first
        self._lock = threading.Lock()
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def scratch(self) -> Path:
        """A name for a new file to be adopted or removed; the folder is made again if it was removed."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return self.folder / f"{SCRATCH}{os.getpid()}-{secrets.token_hex(8)}"

    def adopt(self, scratch: Path, place: "ObjectPath", checksum: str) -> Path:
        """Keep a scratch file as the copy of a place's file; returns its path."""
        size = scratch.stat().st_size
        path = self.copy_path(place, checksum)
        scratch.replace(path)
        self._grew(size, path)
        return path

    def fetched(self, place: "ObjectPath", checksum: str) -> Path:
        """The copy of a place's file, fetched if it isn't here yet.

        Args:
            place: The file in the bucket.
            checksum: Its xxh64, as its record says.

        Returns:
            The copy, which a reader compares with the record. Content that differs from the record when it is fetched is
            kept under its own checksum instead.

        Raises:
            FileNotFoundError: It isn't in the bucket.
            OSError: The bucket or the disk refuses.
        """
        path = self.copy_path(place, checksum)
        with suppress(FileNotFoundError):
            os.utime(path)  # used last
            return path
        scratch = self.scratch()
        try:
            place.bucket.fetch(place.key, scratch)
            digest = xxhash.xxh64()
            with system_call("read", scratch), scratch.open("rb") as file:
                while piece := file.read(1 << 22):
                    digest.update(piece)
            return self.adopt(scratch, place, digest.hexdigest())
        finally:
            scratch.unlink(missing_ok=True)

    def forget(self, place: "ObjectPath", checksum: str) -> bool:
        """Remove a damaged copy so that it is fetched again; returns whether there was one."""
        try:
            self.copy_path(place, checksum).unlink()
        except FileNotFoundError:
            return False
        return True

    def copy_path(self, place: "ObjectPath", checksum: str) -> Path:
        """Where the copy of an object with this checksum lies, whether or not there is one."""
        return self.folder / f"{xxhash.xxh128_hexdigest(f'{self._bucket} {place.key}'.encode())}-{checksum}"

    def _grew(self, size: int, path: Path) -> None:
        with self._lock:
            self._added += size
            if self._added < self.limit_bytes // LOOK_SHARE:
                return
            self._added = 0
        self._evict(path)

    def _evict(self, used: Path) -> None:
        """Remove the least recently used files until an eighth is free, except one that is about to be opened."""
        files: list[tuple[float, int, Path]] = []
        total = 0
        forgotten_s = time.time() - FORGOTTEN_S
        for path in self.folder.iterdir():
            with suppress(FileNotFoundError):  # evicted by another process
                status = path.stat()
                if path == used:
                    total += status.st_size
                elif not path.name.startswith(SCRATCH):
                    files.append((status.st_mtime, status.st_size, path))
                elif status.st_mtime < forgotten_s:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
        total += sum(size for _, size, _ in files)
        if total <= self.limit_bytes:
            return
        for _, size, path in sorted(files):
            path.unlink(missing_ok=True)
            total -= size
            if total <= self.limit_bytes * 7 // 8:
                return


_caches: dict[Address, Cache] = {}
_making = threading.Lock()


def cache_of(place: "ObjectPath") -> Cache:
    """The process's cache for a place's bucket."""
    return _cache_at(place.bucket.address)


def _cache_at(address: Address) -> Cache:
    with _making:
        if address not in _caches:
            _caches[address] = Cache(address)
        return _caches[address]


@contextmanager
def cache_apart(usual: Address) -> Iterator[Address]:
    """A bucket's address with a separate cache, which is removed with the block."""
    # A look that was given up may still put a file there while the folder is removed.
    with tempfile.TemporaryDirectory(
        prefix=SCRATCH, dir=_cache_at(usual).folder, ignore_cleanup_errors=True
    ) as folder:
        address = replace(usual, cache=Path(folder))
        try:
            yield address
        finally:
            with _making:
                _caches.pop(address, None)


def default_folder() -> Path:
    """``freshet`` in the user's cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "freshet"


class BucketStaging(Staging):
    """Files put under their final names at once, with a token in every name instead of a rename.

    A writer that was shut out, or a request that arrives after it was given up, does no harm: no record names its files.
    ``finish`` puts all files at once. The sweep removes the rest of an error or a crash once its writer is shut out.
    """

    def __init__(self, root: "ObjectPath", token: str | None = None) -> None:
        """Begin in the folder of a log or lane; for ``token`` see ``Place.stage``."""
        self._place = root
        self._token = secrets.token_hex(6) if token is None else token
        self._cache = cache_of(root)
        self._files: list[tuple[ObjectPath, Path, str]] = []

    def add(self, relative: str, write: Write) -> FileRef:
        """Write one file on this machine's disk; see ``Staging.add``."""
        named = with_token(relative, self._token) if self._token else relative
        place = inside(self._place, named)
        scratch = self._cache.scratch()
        self._files.append((place, scratch, ""))
        with WriteOut(scratch) as sink:
            write(sink.native())
        size, digest = sink.bytes, sink.checksum
        self._files[-1] = place, scratch, digest
        crash_point("file.torn", lambda: os.truncate(scratch, size // 2))
        crash_point("file.written")
        return FileRef(path=named, bytes=size, checksum=digest)

    def finish(self) -> None:
        """Put all files into the bucket, and keep them as copies.

        Raises:
            ObjectStoreError: The bucket refuses or does not answer.
        """
        if not self._files:
            return
        crash_point("file.synced")
        with ThreadPoolExecutor(min(SYNC_THREADS, len(self._files))) as pool:
            list(pool.map(self._put, self._files))
        crash_point("files.named")

    def discard(self) -> None:
        """Remove the files on this machine. No record names those already in the bucket; they are swept later."""
        for _, scratch, _ in self._files:
            scratch.unlink(missing_ok=True)

    def _put(self, file: "tuple[ObjectPath, Path, str]") -> None:
        place, scratch, digest = file
        place.bucket.put(place.key, scratch)
        crash_point("file.renamed")
        self._cache.adopt(scratch, place, digest)


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
    def parent(self) -> "ObjectPath":
        """The folder it lies in."""
        return ObjectPath(self.bucket, self.key.rpartition("/")[0])

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
        entry = self.listed or self.bucket.stat(self.key)
        return ObjectStat(entry.bytes, entry.modified_s)

    def read_bytes(self) -> bytes:
        """See ``Place.read_bytes``."""
        return self.bucket.read(self.key)[0]

    def iterdir(self) -> Iterator["ObjectPath"]:
        """Folders and files directly in it; empty if it does not exist."""
        folders, files = self.bucket.folder(self._prefix())
        for prefix in folders:
            yield ObjectPath(self.bucket, prefix.rstrip("/"))
        for entry in files:
            yield ObjectPath(self.bucket, entry.key, entry)

    def rglob(self, pattern: str) -> Iterator["ObjectPath"]:
        """See ``Place.rglob``: files only."""
        for entry in self.bucket.below(self._prefix()):
            path = ObjectPath(self.bucket, entry.key, entry)
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

    def entry(self, steps: Sequence[str]) -> "ObjectPath":
        """See ``Place.entry``: a key has no links."""
        return self / "/".join(steps)

    def make(self) -> None:
        """See ``Place.make``: a folder exists while it holds a file."""

    def fsync_ancestors(self) -> None:
        """See ``Place.fsync_ancestors``: every put is durable."""

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
        return Lease(self.bucket, (self / name).key, writer_id, doing)

    def local_path(self, checksum: str) -> Path:
        """See ``Place.local_path``: a copy in the cache."""
        return cache_of(self).fetched(self, checksum)

    def retryable(self, checksum: str, tried: Path) -> bool:
        """See ``Place.retryable``: if another process evicted the copy just now, or the copy was damaged."""
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
