"""Stores in a folder and in a bucket, made, copied and damaged in the same words: what a test says of the one it says of both."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.store import MemoryStore
from s3_server import S3Server

from freshet_graph.stream.store.places.bucket import Bucket
from freshet_graph.stream.store.places.interface import plain
from freshet_graph.stream.store.places.object_path import ObjectPath
from freshet_graph.stream.store.places.place import Place, place_of
from freshet_graph.stream.store.verify.check import Check
from freshet_graph.stream.store.verify.store import verify

LOCKS = {"lock", "compaction.lock"}
MEMORY = "http://in-memory"
_numbers = count()


class Places:
    """Gives empty places of one kind.

    Those in a bucket lie in the memory of this process, behind the library that reaches S3, so that tests can take thousands
    of looks; ``shared_address`` is served by moto, as the fixture ``place`` is.

    Attributes:
        in_bucket: Whether they are in a bucket.
    """

    def __init__(self, request: pytest.FixtureRequest, folders: pytest.TempPathFactory) -> None:
        self.in_bucket: bool = request.param == "bucket"
        self._request, self._folders = request, folders
        self._cache = folders.mktemp("cache")

    def new(self) -> Place:
        """An empty place."""
        return place_of(self.address())

    def copy(self, store: Place) -> Place:
        """All of a store but its locks, in a new place."""
        return copied(store, self.new())

    def address(self) -> str:
        """What an empty place is called in this process."""
        if not self.in_bucket:
            return str(self._folders.mktemp("place"))
        return (
            f"s3://in-memory-{next(_numbers)}/store?endpoint={MEMORY}&cache={self._cache}&lease_s=1&retry_s=5"
        )

    def shared_address(self) -> str:
        """What an empty place is called, by other processes, too."""
        s3: S3Server | None = self._request.getfixturevalue("s3") if self.in_bucket else None
        return self.address() if s3 is None else s3.store()


@pytest.fixture(scope="module", params=["folder", "bucket"])
def places(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    """Empty places for stores that several tests of a module share, in a folder and in a bucket."""
    stores: dict[str, MemoryStore] = {}
    reached = Bucket._open

    def opened(bucket: Bucket) -> Any:
        if bucket.address.endpoint != MEMORY:
            return reached(bucket)
        if bucket.address.bucket not in stores:
            stores[bucket.address.bucket] = MemoryStore()
            obstore.put(
                stores[bucket.address.bucket], "first", b""
            )  # an ETag of 0 is one that nothing may have
        return stores[bucket.address.bucket]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Bucket, "_open", opened)
        yield Places(request, tmp_path_factory)


def write(path: Place, content: bytes) -> None:
    """Make a file, or another one in its place: what is mapped stays what it was."""
    if isinstance(path, ObjectPath):
        path.put(content)
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_bytes(content)


def copied(store: Place, to: Place) -> Place:
    """Copy all of a store but its locks; in a bucket by the names that the objects have."""
    if isinstance(store, Path) and isinstance(to, Path):
        shutil.copytree(store, to, dirs_exist_ok=True, ignore=shutil.ignore_patterns(*LOCKS))
        return to

    for path in files_of(store).values():
        write(to / str(path).removeprefix(f"{store}/"), path.read_bytes())
    return to


def files_of(store: Place) -> dict[str, Place]:
    """All files of a store but its locks, by their paths in a folder: without the tokens that a bucket's have."""
    found: list[Place] = [path for path in store.rglob("*") if not path.is_dir() and path.name not in LOCKS]
    return {plain(str(path).removeprefix(f"{store}/")): path for path in sorted(found, key=str)}


def sizes(store: Place) -> dict[str, int]:
    """Lengths of all files of a store, by the names that they have."""
    found: list[Place] = [path for path in store.rglob("*") if not path.is_dir()]
    return {str(path).removeprefix(f"{store}/"): path.stat().st_size for path in found}


def flipped(content: bytes, at: int, bits: int = 4) -> bytes:
    """Content with bits of one byte turned over."""
    return content[:at] + bytes([content[at] ^ bits]) + content[at + 1 :]


@contextmanager
def anew(store: Place) -> Iterator[Place]:
    """A store as another machine sees it, which has no copies of its files."""
    with place_of(store).apart() as place:
        yield place


def problems_of(store: Place) -> list[str]:
    """What ``verify`` finds."""
    check: Check = verify(store)
    return check.problems


class Changes:
    """Changes of files that are taken back at the end of a test, so that tests can share a store."""

    def __init__(self) -> None:
        self._before: dict[Place, bytes | None] = {}

    def write(self, path: Place, content: bytes) -> None:
        """Give a file other content, or make it."""
        self._keep(path)
        write(path, content)

    def remove(self, path: Place) -> None:
        """Remove a file, or a folder with all that is in it."""
        for file in [file for file in path.rglob("*") if not file.is_dir()] if path.is_dir() else [path]:
            self._keep(file)
            file.unlink()

    def undo(self) -> None:
        """Take all of it back."""
        for path, content in self._before.items():
            if content is None:
                path.unlink(missing_ok=True)
            else:
                write(path, content)
        self._before.clear()

    def _keep(self, path: Place) -> None:
        if path not in self._before:
            self._before[path] = path.read_bytes() if path.exists() and not path.is_dir() else None


@pytest.fixture
def change() -> Iterator[Changes]:
    """Changes files and takes it back in the end."""
    changes = Changes()
    yield changes
    changes.undo()
