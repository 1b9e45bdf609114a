"""Files of a bucket on this machine's disk, where they can be mapped: named by their content, bounded in size.

A cached file never changes, so processes share it without a lock; an evicted file stays mapped while it is in use.
"""

import os
import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import xxhash

from schemas.errors import system_call
from schemas.store_address import Address

if TYPE_CHECKING:
    from stream.store.places.object_path import ObjectPath

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
        kept: list[tuple[float, int, Path]] = []
        total = 0
        forgotten_s = time.time() - FORGOTTEN_S
        for path in self.folder.iterdir():
            with suppress(FileNotFoundError):  # evicted by another process
                found = path.stat()
                if path == used:
                    total += found.st_size
                elif not path.name.startswith(SCRATCH):
                    kept.append((found.st_mtime, found.st_size, path))
                elif found.st_mtime < forgotten_s:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
        total += sum(size for _, size, _ in kept)
        if total <= self.limit_bytes:
            return
        for _, size, path in sorted(kept):
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
