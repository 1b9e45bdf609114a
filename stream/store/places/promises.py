"""A place is a folder or file of a store, wherever it lies, and knows what it promises."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

if TYPE_CHECKING:
    from stream.store.places.staging import Staging


class Status(Protocol):
    """What a place tells of a file: ``os.stat_result`` has more."""

    @property
    def st_size(self) -> int:
        """Length, bytes."""

    @property
    def st_mtime(self) -> float:
        """When it was written, seconds since the epoch."""


class Lock(Protocol):
    """Exclusive right to write into one folder, until it is released or its process ends."""

    why_both: str
    """What to say where another writer was there all the same."""

    def require(self) -> None:
        """Check that it is still held.

        Raises:
            LaneBusyError: It is not.
        """

    def release(self) -> None:
        """Give it back; doing so twice is harmless."""


class Place(Protocol):
    """A file or folder of a store: reads as a ``pathlib.Path`` does, and says how it is written, locked and watched.

    There are two: ``FolderPath`` on a file system and ``ObjectPath`` in a bucket. Nothing above ``stream.store.places``
    asks which one it has; it asks for what a place promises.
    """

    remote: ClassVar[bool]
    """Whether a look costs a round trip: several are better made at a time, and nothing tells of changes."""
    lock_shuts_out: ClassVar[bool]
    """Whether the lock alone keeps a former writer out. Else only the next record does, which takes the name of its own."""
    can_move: ClassVar[bool]
    """Whether a folder can get another name at once."""
    errors_are_certain: ClassVar[bool]
    """Whether a write that failed, and whose file is not there, will not appear later."""

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
        """Its neighbour of another name."""

    def exists(self) -> bool:
        """Whether there is a file (or, on a file system, a folder)."""

    def is_dir(self) -> bool:
        """Whether it is a folder."""

    def is_file(self) -> bool:
        """Whether it is a file."""

    def is_symlink(self) -> bool:
        """Whether it is a symbolic link."""

    def stat(self) -> Status:
        """Length and time of a file; raises FileNotFoundError."""

    def read_bytes(self) -> bytes:
        """The whole file; raises FileNotFoundError."""

    def iterdir(self) -> Iterator[Self]:
        """Folders and files right in it."""

    def glob(self, pattern: str) -> Iterator[Self]:
        """What matches a pattern of one step, or of one step and a fixed name after it."""

    def rglob(self, pattern: str) -> Iterator[Self]:
        """Everything below it whose name matches."""

    def unlink(self, missing_ok: bool = False) -> None:
        """Remove the file."""

    def absolute(self) -> Self:
        """The same, from the root of what it lies in."""

    def entry(self, steps: Sequence[str]) -> Self:
        """A file by checked steps; raises CorruptError where it leads out of the folder."""

    def make(self) -> list[Path]:
        """Make the folder and its missing parents; if one cannot be made, none of them stays.

        Returns:
            The folders made, outermost first. Their parents have to be synced before anything in them is durable.
        """

    def settle(self) -> None:
        """Make durable what the folder holds and that it is there.

        For a writer that follows one that may have been killed between making a folder or a name and syncing it: what is
        built on it must not outlive it.
        """

    def sync(self) -> None:
        """Force the folder's entries (new names, renames) to the disk."""

    def put(self, content: bytes) -> None:
        """Make the file, or give it this content, whole; the last to do so wins. It may be lost with the power."""

    def put_record(self, content: bytes, *, replace: bool) -> None:
        """Make a durable file of a name that is free, or with ``replace`` take the place of the one there.

        Raises:
            FileExistsError: The name is taken.
        """

    def move(self, to: Self) -> None:
        """Give a folder another name, where ``can_move``."""

    def stage(self, token: str | None = None) -> "Staging":
        """The data files of one commit, in this folder.

        Args:
            token: Where names are never used again, part of them; None: a new one; empty: none.
        """

    def lock(self, writer_id: str, name: str, doing: str) -> Lock:
        """Take the exclusive right to write into this folder.

        Args:
            writer_id: Who takes it.
            name: The lock's file.
            doing: What its holder does to the folder, for sentences.

        Raises:
            LaneBusyError: Another writer holds it; the message names both.
        """

    def here(self, size: int, checksum: str) -> Path:
        """A file of this machine with its content, fetched if need be.

        Args:
            size: Its length, as its record says.
            checksum: Its xxh64, as its record says.

        Raises:
            FileNotFoundError: There is none.
        """

    def worth_another_try(self, checksum: str, tried: Path) -> bool:
        """Whether what ``here`` gave turned out damaged but may be right the next time."""

    def ahead_bytes(self) -> int:
        """Bytes of files that may be brought here before they are needed; 0: all are here."""

    def disk(self) -> Path:
        """The folder of this machine whose disk its files fill."""

    def apart(self) -> AbstractContextManager[Self]:
        """The same place, read without what was fetched or written before."""

    def names(self) -> list[str]:
        """Names of the folder's entries, in no order; none where there is no folder."""

    def entries(self, chosen: Callable[[list[str]], Iterable[str]]) -> list[Self]:
        """The folder's entries whose names are chosen among all."""

    def outdated(self, paths: Iterable[Any]) -> Iterator[Any]:
        """Of entries that no record names, those that may be swept, where this is the newest record looked at before."""

    def length(self) -> int:
        """Bytes of a file, or of all files in a folder, as far as that is known without asking for each."""

    @classmethod
    def remove(cls, paths: Sequence[Any]) -> int:
        """Remove files, and folders with all that is in them; what another process removes meanwhile is fine.

        Returns:
            Bytes of what was removed, as ``length`` knows them.
        """
