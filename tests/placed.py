"""Stores in a folder and in a bucket, made, copied and damaged in the same words: what a test says of the one it says of both."""

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from stream.store.files.paths import plain
from stream.store.places.cache import apart
from stream.store.places.object_path import ObjectPath
from stream.store.places.place import Place, place_of
from stream.store.verify.check import Check
from stream.store.verify.store import verify

LOCKS = {"lock", "compaction.lock"}
PUTS = 4
"""Objects that are copied at a time."""


class Places:
    """Gives empty places of one kind.

    Attributes:
        kind: ``folder`` or ``bucket``.
    """

    def __init__(self, request: pytest.FixtureRequest, folders: pytest.TempPathFactory) -> None:
        self.kind: str = request.param
        self._folders = folders
        self._s3 = request.getfixturevalue("s3") if self.kind == "bucket" else None

    @property
    def in_bucket(self) -> bool:
        """Whether places are in a bucket."""
        return self._s3 is not None

    def new(self) -> Place:
        """An empty place."""
        return place_of(self.address())

    def address(self) -> str:
        """What an empty place is called, for another process."""
        return str(self._folders.mktemp("place")) if self._s3 is None else self._s3.store()

    def copy(self, store: Place) -> Place:
        """All of a store but its locks, in a new place; the service copies objects itself."""
        to = self.new()
        if self._s3 is None or not isinstance(store, ObjectPath) or not isinstance(to, ObjectPath):
            return copied(store, to)
        there = f"{self._s3.endpoint}/{to.bucket.address.bucket}/{to.key}"

        def put(path: Place) -> None:
            assert isinstance(path, ObjectPath)
            source = {"x-amz-copy-source": f"/{path.bucket.address.bucket}/{path.key}"}
            name = path.key.removeprefix(f"{store.key}/")
            urlopen(Request(f"{there}/{name}", method="PUT", headers=source), timeout=10).close()

        with ThreadPoolExecutor(PUTS) as pool:
            list(pool.map(put, files_of(store).values()))
        return to


@pytest.fixture(scope="module", params=["folder", "bucket"])
def places(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Places:
    """Empty places for stores that several tests of a module share, in a folder and in a bucket."""
    return Places(request, tmp_path_factory)


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

    def put(path: Place) -> None:
        write(to / str(path).removeprefix(f"{store}/"), path.read_bytes())

    with ThreadPoolExecutor(PUTS) as pool:
        list(pool.map(put, files_of(store).values()))
    return to


def files_of(store: Place) -> dict[str, Place]:
    """All files of a store but its locks, by their paths in a folder: without the tokens that a bucket's have."""
    found: list[Place] = [path for path in store.rglob("*") if path.is_file() and path.name not in LOCKS]
    return {plain(str(path).removeprefix(f"{store}/")): path for path in sorted(found, key=str)}


def sizes(store: Place) -> dict[str, int]:
    """Lengths of all files of a store, by the names that they have."""
    found: list[Place] = [path for path in store.rglob("*") if path.is_file()]
    return {str(path).removeprefix(f"{store}/"): path.stat().st_size for path in found}


def flipped(content: bytes, at: int, bits: int = 4) -> bytes:
    """Content with bits of one byte turned over."""
    return content[:at] + bytes([content[at] ^ bits]) + content[at + 1 :]


@contextmanager
def anew(store: Place) -> Iterator[Place]:
    """A store as another machine sees it, which has no copies of its files."""
    with apart(store) as place:
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
        for file in [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]:
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
            self._before[path] = path.read_bytes() if path.is_file() else None


@pytest.fixture
def change() -> Iterator[Changes]:
    """Changes files and takes it back in the end."""
    changes = Changes()
    yield changes
    changes.undo()
