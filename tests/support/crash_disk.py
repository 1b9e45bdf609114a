"""A disk that remembers what is durable, so that a test can crash it before every file operation and look.

What a crash may leave is decided as POSIX has it, and no more kindly: bytes of a file are durable once it was fsynced, names once
their folder was. A killed process loses nothing that it wrote, though the last write may be torn; a power failure loses
any part of what wasn't durable, in any order.
"""

import errno
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

OPERATIONS = ("mkdir", "rmdir", "rename", "replace", "link", "unlink", "remove", "truncate", "fsync")
FOLDER = -1
"""Stands for a folder where a name's inode stands for a file."""

Names = dict[str, dict[str, int]]
"""Entries of each folder: name → inode."""


@dataclass(frozen=True)
class Moment:
    """The disk right before an operation.

    Attributes:
        operation: What comes next.
        done: What the job had been told is durable.
        seen: Folders as processes see them.
        kept: Folders as a power failure leaves them.
        now: Bytes of each inode as processes see them.
        synced: Bytes of each inode that are durable.
    """

    operation: str
    done: int
    seen: Names
    kept: Names
    now: dict[int, bytes]
    synced: dict[int, bytes]

    def killed(self) -> "Tree":
        """The process dies."""
        return _tree(self.seen, self.now)

    def torn(self) -> "Tree":
        """It dies in the middle of its writes."""
        return _tree(self.seen, {inode: self._half(inode) for inode in self.now})

    def powerless(self) -> "Tree":
        """The machine dies, and only what is durable is there."""
        return _tree(self.kept, self.synced)

    def names_first(self) -> "Tree":
        """The machine dies; all names had reached the disk, of the bytes only the durable ones."""
        return _tree(self.seen, self.synced)

    def mixed(self, random: Random) -> "Tree":
        """The machine dies; any names and any bytes had reached the disk beyond the durable ones."""
        names: Names = {}
        for folder in {**self.kept, **self.seen}:
            old, new = self.kept.get(folder, {}), self.seen.get(folder, {})
            names[folder] = {}
            for name in sorted({*old, *new}):
                inode = random.choice([old, new]).get(name)
                if inode is not None:
                    names[folder][name] = inode
        contents = dict(self.synced)
        for inode in sorted(self.now):
            contents[inode] = random.choice([self.now[inode], self._half(inode), self.synced.get(inode, b"")])
        return _tree(names, contents)

    def _half(self, inode: int) -> bytes:
        now = self.now[inode]
        return now if self.synced.get(inode) == now else now[: len(now) // 2]


Tree = dict[str, bytes | None]
"""Files by path; folders have None."""


def _tree(names: Names, contents: dict[int, bytes], folder: str = "") -> Tree:
    tree: Tree = {}
    for name, inode in names.get(folder, {}).items():
        path = f"{folder}/{name}" if folder else name
        if inode == FOLDER:
            tree[path] = None
            tree.update(_tree(names, contents, path))
        else:
            tree[path] = contents.get(inode, b"")
    return tree


def put(tree: Tree, root: Path) -> Path:
    """Make a folder with that content."""
    root.mkdir(parents=True)
    for path, content in tree.items():
        if content is None:
            (root / path).mkdir(exist_ok=True)
        else:
            (root / path).write_bytes(content)
    return root


class CrashDisk:
    """Watches the file operations under one folder; ``watched`` makes them its moments."""

    def __init__(self, root: Path, killed_at: Moment | None = None) -> None:
        """Begin with what is there.

        Args:
            root: The folder.
            killed_at: It holds what a kill left at that moment, and no more of it is durable than was then; None: all is.
        """
        self.root = root
        self.done = 0
        self.moments: list[Moment] = []
        self._lock = threading.RLock()
        self._open: dict[int, int] = {}
        self._refuse_in: int | None = None
        self.refused = "nothing"
        self._kept, self._synced = self._look()
        if killed_at is not None:
            self._take_over(killed_at)

    def _take_over(self, killed: Moment) -> None:
        seen, self._synced = self._kept, {}
        new: dict[int | tuple[str, str, int], int] = {FOLDER: FOLDER}
        for folder, names in killed.seen.items():
            for name, old in names.items():
                if old != FOLDER and old in killed.synced:
                    self._synced[seen[folder][name]] = killed.synced[old]
                new[folder, name, old] = new[old] = seen[folder][name]
        self._kept = {
            folder: {name: new.get((folder, name, old), new.get(old, -old)) for name, old in names.items()}
            for folder, names in killed.kept.items()
        }
        for old, content in killed.synced.items():
            self._synced.setdefault(new.get(old, -old), content)  # its last name is gone, but not durably so

    def acknowledge(self) -> None:
        """The job was told that one more thing is durable."""
        self.done += 1

    def refuse(self, number: int) -> None:
        """Let one operation fail as on a full disk: the ``number``-th from now on, counted from 0."""
        self._refuse_in = number

    @contextmanager
    def watched(self) -> Iterator[None]:
        """File operations of this process under the folder are looked at; nothing is really synced."""
        with mock.patch.multiple(os, **{name: self._operation(name) for name in OPERATIONS}):
            yield
            self._moment("the end")
        for descriptor in self._open.values():
            os.close(descriptor)

    def _operation(self, name: str) -> Callable[..., Any]:
        real = getattr(os, name)

        def operation(*arguments: Any, **more: Any) -> Any:
            with self._lock:
                what = f"{name} {' '.join(str(a).removeprefix(str(self.root)) for a in arguments[:2])}"
                self._moment(what)
                self._refuse(what)
                if name == "mkdir":
                    real(*arguments, **more)
                    self._made(Path(arguments[0]))
                    return None
                if name != "fsync":
                    return real(*arguments, **more)
                self._sync(arguments[0])
                return None

        return operation

    def _refuse(self, what: str) -> None:
        if self._refuse_in is not None:
            self._refuse_in -= 1
            if self._refuse_in < 0:
                self._refuse_in, self.refused = None, what
                raise OSError(errno.ENOSPC, "no space left on device")

    def _made(self, folder: Path) -> None:
        """A new folder has no durable entries, whatever a folder of that name had."""
        if self.root in folder.parents:
            self._kept[str(folder.relative_to(self.root))] = {}

    def _sync(self, descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if path == self.root or self.root in path.parents:
            seen, now = self._look()
            relative = str(path.relative_to(self.root))
            if path.is_dir():
                self._kept[relative if relative != "." else ""] = seen[relative if relative != "." else ""]
            else:
                inode = os.fstat(descriptor).st_ino
                self._synced[inode] = now[inode]

    def _moment(self, operation: str) -> None:
        seen, now = self._look()
        kept = {folder: dict(names) for folder, names in self._kept.items()}
        self.moments.append(Moment(operation, self.done, seen, kept, now, dict(self._synced)))

    def _look(self) -> tuple[Names, dict[int, bytes]]:
        """All folders and files as they are now; every file stays open, so that no inode is given twice."""
        seen: Names = {}
        folders = [""]
        while folders:
            folder = folders.pop()
            seen[folder] = {}
            for entry in os.scandir(self.root / folder):
                path = f"{folder}/{entry.name}" if folder else entry.name
                if entry.is_dir(follow_symlinks=False):
                    seen[folder][entry.name] = FOLDER
                    folders.append(path)
                    continue
                inode = entry.inode()
                seen[folder][entry.name] = inode
                if inode not in self._open:
                    self._open[inode] = os.open(entry.path, os.O_RDONLY)
        now = {i: os.pread(d, os.fstat(d).st_size, 0) for i, d in self._open.items()}
        return seen, now


KINDS: dict[str, Callable[[Moment], Tree]] = {
    "killed": Moment.killed,
    "torn": Moment.torn,
    "powerless": Moment.powerless,
    "names first": Moment.names_first,
    "mixed": lambda moment: moment.mixed(Random(moment.operation)),
}


def states(moments: list[Moment], kind: str, *, alone: bool = False) -> Iterator[tuple[Moment, Tree]]:
    """The disks that a crash of a kind may leave, each once.

    Args:
        moments: When.
        kind: One of ``KINDS``.
        alone: Also those that an earlier kind leaves as well; else they are left to it.
    """
    seen = set()
    for earlier, left_by in KINDS.items():
        for moment in moments if earlier == kind or not alone else ():
            tree = left_by(moment)
            key = (moment.done, hash(frozenset(tree.items())))
            if key not in seen and earlier == kind:
                yield moment, tree
            seen.add(key)
        if earlier == kind:
            return
