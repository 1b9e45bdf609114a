"""A place in a bucket that reads like a ``pathlib.Path``: what the store asks of a file or folder, and no more.

A folder is what keys have in common up to a slash: it is there while something lies in it, and nothing has to make it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Self

from stream.store.places.bucket import Bucket, Found


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

    def _prefix(self) -> str:
        return f"{self.key}/" if self.key else ""
