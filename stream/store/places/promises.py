"""The interface of a place: a folder or file of a store, on a file system or in a bucket."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

if TYPE_CHECKING:
    from stream.store.places.staging import Staging


class Status(Protocol):
    """Length and time of a file: a part of ``os.stat_result``."""

    @property
    def st_size(self) -> int:
        """Length, bytes."""

    @property
    def st_mtime(self) -> float:
        """Time of the last write, seconds since the epoch."""


class Lock(Protocol):
    """Exclusive right to write into one folder, until it is released or its process ends."""

    why_both: str
    """How a second writer may have come to write all the same, and the remedy; ends a sentence."""

    def require(self) -> None:
        """Check that it is still held.

        Raises:
            LaneBusyError: It is not.
        """

    def release(self) -> None:
        """Give it back; doing so twice is harmless."""


class Place(Protocol):
    """A file or folder of a store: the interface of ``pathlib.Path``, and how to write, lock and watch it.

    ``FolderPath`` is on a file system, ``ObjectPath`` in a bucket. Code above ``stream.store.places`` never asks which one
    it has, only for these promises.
    """

    remote: ClassVar[bool]
    """Whether every look costs a round trip, so that looks are better batched, and no event reports changes."""
    lock_shuts_out: ClassVar[bool]
    """Whether the lock alone keeps a former writer out. If not, only the next record does, by taking the writer's next name."""
    can_move: ClassVar[bool]
    """Whether a folder can be renamed in one step."""
    errors_are_certain: ClassVar[bool]
    """Whether a file that is missing after a failed write will never appear."""

    @property
    def name(self) -> str:
        """The last step."""

    @property
    def stem(self) -> str:
        """The last step without its suffix."""

    @property
    def parent(self) -> Self:
        """The folder it lies in."""

    def __truediv__(self, relative: str, /) -> Self: ...

    def __hash__(self) -> int: ...

    def with_name(self, name: str) -> Self:
        """A sibling of this name."""

    def exists(self) -> bool:
        """Whether the file (or, on a file system, the folder) exists."""

    def is_dir(self) -> bool:
        """Whether it is a folder."""

    def is_symlink(self) -> bool:
        """Whether it is a symbolic link."""

    def stat(self) -> Status:
        """Length and time of a file; raises FileNotFoundError."""

    def read_bytes(self) -> bytes:
        """The whole file; raises FileNotFoundError."""

    def iterdir(self) -> Iterator[Self]:
        """Folders and files directly in it."""

    def glob(self, pattern: str) -> Iterator[Self]:
        """Matches of a pattern of one step, or of one step and a fixed name after it."""

    def rglob(self, pattern: str) -> Iterator[Self]:
        """Everything below it with a matching name."""

    def unlink(self, missing_ok: bool = False) -> None:
        """Remove the file."""

    def absolute(self) -> Self:
        """The same place as an absolute path."""

    def entry(self, steps: Sequence[str]) -> Self:
        """A file by checked steps; raises CorruptError if it leads out of the folder."""

    def make(self) -> list[Path]:
        """Make the folder and its missing parents; if one cannot be made, none of them stays.

        Returns:
            The folders made, outermost first. Their parents have to be synced before anything in them is durable.
        """

    def settle(self) -> None:
        """Make the folder and its content durable.

        For a writer after one that may have been killed between making a folder or a name and syncing it: new content
        must not outlive its folder.
        """

    def sync(self) -> None:
        """Force the folder's entries (new names, renames) to the disk."""

    def put(self, content: bytes) -> None:
        """Write the whole file, in place of any other. A power failure may undo it."""

    def put_record(self, content: bytes, *, replace: bool) -> None:
        """Write a durable file under a free name, or with ``replace`` in place of the existing one.

        Raises:
            FileExistsError: The name is taken.
        """

    def move(self, to: Self) -> None:
        """Rename a folder, if ``can_move``."""

    def stage(self, token: str | None = None) -> "Staging":
        """Begin the data files of one commit in this folder.

        Args:
            token: Where file names are used only once, a part of them; None: a new one; empty: none.
        """

    def lock(self, writer_id: str, name: str, doing: str) -> Lock:
        """Take the exclusive right to write into this folder.

        Args:
            writer_id: Who takes it.
            name: The lock's file.
            doing: The holder's work on the folder, for sentences.

        Raises:
            LaneBusyError: Another writer holds it; the message names it.
        """

    def here(self, checksum: str) -> Path:
        """A file of this machine with its content, fetched if necessary.

        Args:
            checksum: Its xxh64, as its record says.

        Raises:
            FileNotFoundError: It does not exist.
        """

    def worth_another_try(self, checksum: str, tried: Path) -> bool:
        """Whether a second ``here`` may succeed after the first gave a damaged file."""

    def ahead_bytes(self) -> int:
        """Bytes of files that may be fetched before they are needed; 0: all are on this machine."""

    def disk(self) -> Path:
        """The folder of this machine on whose disk its files are."""

    def apart(self) -> AbstractContextManager[Self]:
        """The same place, read without earlier fetched or written copies."""

    def names(self) -> list[str]:
        """Names of the folder's entries, unordered; empty if there is no folder."""

    def entries(self, chosen: Callable[[list[str]], Iterable[str]]) -> list[Self]:
        """The entries whose names ``chosen`` picks from all names."""

    def outdated(self, paths: Iterable[Any]) -> Iterator[Any]:
        """Those entries that may be swept, if no record names them and this is the newest record read before listing them."""

    def length(self) -> int:
        """Bytes of a file, or of all files in a folder, as far as known without a request for each."""

    @classmethod
    def remove(cls, paths: Sequence[Any]) -> int:
        """Remove files, and folders with their content; returns the bytes, as ``length`` knows them.

        Files that another process removes at the same time are fine.
        """
