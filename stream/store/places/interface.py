"""What the store asks of a folder or a bucket; the data files of one commit, wherever they lie; and names inside a store."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Protocol, Self, TypeVar

import pyarrow as pa

from freshet_graph.schemas.store import FileRef
from freshet_graph.stream.store.errors import CorruptError

SYNC_THREADS = 8
"""Threads that sync or put the files of one commit: file systems group concurrent fsyncs."""

_PLAIN = pa.ipc.IpcWriteOptions()
COMPRESSED = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", compression_level=1))
"""Level 1 takes a third of the time of level 3 and compresses sorted ids and changed features nearly as well."""

Write = Callable[[Any], None]
"""Writes a file's content to the given ``pyarrow.NativeFile``."""


class Staging(ABC):
    """The data files of one commit: written out of readers' sight, then made durable and named together.

    A context manager: an exception inside removes the files.
    """

    @abstractmethod
    def add(self, relative: str, write: Write) -> FileRef:
        """Write one file.

        Args:
            relative: Path under the root.
            write: Called once with an open ``pyarrow.NativeFile``.

        Returns:
            The reference for a record: path, length and checksum.

        Raises:
            OSError: The disk refuses (full, read-only).
        """

    @abstractmethod
    def finish(self) -> None:
        """Make all files durable under their final names."""

    @abstractmethod
    def discard(self) -> None:
        """Remove the files, as far as no other writer could need them."""

    def add_table(
        self, relative: str, table: pa.Table | list[pa.RecordBatch], *, compressed: bool = False
    ) -> FileRef:
        """Write a table, or a list of record batches of one schema, as an Arrow IPC file.

        Args:
            relative: Path under the root.
            table: What to write.
            compressed: Compress buffers by zstd: for files that are read once, not mapped for long.
        """
        schema = table.schema if isinstance(table, pa.Table) else table[0].schema
        options = COMPRESSED if compressed else _PLAIN

        def write(sink: BinaryIO) -> None:
            with pa.ipc.new_file(sink, schema, options=options) as writer:
                for batch in table.to_batches() if isinstance(table, pa.Table) else table:
                    writer.write_batch(batch)

        return self.add(relative, write)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is not None:
            self.discard()


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

    ``FolderPath`` is on a file system, ``ObjectPath`` in a bucket. Code above ``freshet_graph.stream.store.places`` never asks
    which one
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
    def parent(self) -> Self:
        """The folder it lies in."""

    def __truediv__(self, relative: str, /) -> Self: ...

    def __hash__(self) -> int: ...

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

    def rglob(self, pattern: str) -> Iterator[Self]:
        """Everything below it with a matching name."""

    def unlink(self, missing_ok: bool = False) -> None:
        """Remove the file."""

    def entry(self, steps: Sequence[str]) -> Self:
        """A file by checked steps; raises CorruptError if it leads out of the folder."""

    def make(self) -> None:
        """Make the folder and its missing parents; if one cannot be made, none of them stays."""

    def fsync_ancestors(self) -> None:
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

    def local_path(self, checksum: str) -> Path:
        """A file of this machine with its content, fetched if necessary.

        Args:
            checksum: Its xxh64, as its record says.

        Raises:
            FileNotFoundError: It does not exist.
        """

    def retryable(self, checksum: str, tried: Path) -> bool:
        """Whether a second ``local_path`` may succeed after the first gave a damaged file."""

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


P = TypeVar("P", bound=Place)

_STEP = re.compile(r"(?!\.)[A-Za-z0-9._-]{1,255}")
TEMPORARY = ".tmp"
"""Suffix of files that are being written; no record ever names one."""

_TOKEN = re.compile(r"_[0-9a-f]{12}(?=[./]|$)")
"""The part of a data file's name in a bucket beside the plain one; no two writers ever use the same."""


def with_token(relative: str, token: str) -> str:
    """A data file's path with its commit's token: ``tail/3_<token>.arrow``, ``snapshots/7_<token>/events.arrow``."""
    folder, step, *rest = relative.split("/")
    name, dot, suffix = (step, "", "") if rest else step.rpartition(".")
    return "/".join([folder, f"{name}_{token}{dot}{suffix}", *rest])


def token_of(relative: str) -> str:
    """The token in a data file's path; empty if it has none."""
    match = _TOKEN.search(relative) if "_" in relative else None
    return match[0][1:] if match else ""


def plain(relative: str) -> str:
    """A data file's path, or a step of it, without the token."""
    return _TOKEN.sub("", relative, count=1) if "_" in relative else relative


def last_step(relative: str) -> str:
    """The name at the end of a path."""
    return relative.rpartition("/")[2]


def inside(root: P, relative: str) -> P:
    """The file ``relative`` of the folder ``root``.

    Args:
        root: Folder of a log or lane.
        relative: Path as in records: steps of letters, digits, ``.``, ``_``, ``-`` between slashes.

    Raises:
        CorruptError: It is absolute, has an empty, hidden or ``..`` step, or leads out by a symbolic link.
    """
    steps = relative.split("/")
    if not all(_STEP.fullmatch(step) for step in steps):
        raise CorruptError(
            f"the path {relative!r} in a record of {root} isn't a plain path inside the store. The record is damaged or not "
            "from Freshet. Restore it from a copy"
        )
    return root.entry(steps)
