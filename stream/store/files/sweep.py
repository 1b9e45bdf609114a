"""Remove what no record names: remains of a crash, and files that a durable record replaced. And the lock for it."""

import os
import re
import secrets
import socket
from collections.abc import Callable, Collection, Hashable, Iterable
from functools import partial
from pathlib import Path

import structlog

from freshet_graph.schemas.errors import one_line
from freshet_graph.stream.store.errors import COMPACTED, CorruptError, StoreError
from freshet_graph.stream.store.places.interface import TEMPORARY, Lock, plain
from freshet_graph.stream.store.places.place import Place, place_of

NAME = "lock"
COMPACTION = "compaction.lock"
_DOING = {COMPACTION: COMPACTED}


def new_writer_id() -> str:
    """A new id for every writer, with host and process."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"


def lock_folder(folder: Path | Place, writer_id: str, name: str = NAME) -> Lock:
    """Take the exclusive right to write into a folder of a log or lane; see ``Place.lock``.

    Args:
        folder: An existing folder.
        writer_id: Who takes it.
        name: The lock's file: commits and compaction have one each.

    Raises:
        LaneBusyError: Another writer holds it; the message names it.
        OSError: The disk or the bucket refuses.
    """
    return place_of(folder).lock(writer_id, name, _DOING.get(name, "written"))


_log = structlog.get_logger()


class CleanUp:
    """Removals that are due after a commit.

    The commit is in the store by then, so an error must not reach the caller, who would commit the same again. It is logged
    once until a run succeeds, and the removal stays due for the next commit. The sweep at the next start finds the rest.

    Args:
        folder: The folder that is cleaned up, for the log.
    """

    def __init__(self, folder: Path | Place) -> None:
        self._folder = folder
        self._due: dict[Hashable, Callable[[], object]] = {}
        self._warned = False

    def add(self, work: Callable[[], object]) -> None:
        """Have work done by the next ``run``, and again until it succeeds; work that is due already is not added twice."""
        self._due.setdefault(work, work)

    def add_removal(self, files: Iterable[Path | Place]) -> None:
        """Have files removed, each on its own."""
        for file in files:
            self._due.setdefault(file, partial(file.unlink, missing_ok=True))

    def run(self) -> None:
        """Do due work up to the first failure, because with an unreachable bucket every further try would take its time.

        The failed work goes to the end, so that one file that can't be removed doesn't block the others.
        """
        while self._due:
            name = next(iter(self._due))
            work = self._due.pop(name)
            try:
                work()
            except (OSError, StoreError) as error:
                self._due[name] = work
                if not self._warned:
                    _log.warning(
                        "the store is not cleaned up, trying again with the next commit",
                        folder=str(self._folder),
                        error=one_line(error),
                    )
                self._warned = True
                return
        self._warned = False


NUMBERED = re.compile(r"\d+\.arrow")
TAU = re.compile(r"-?\d+")


def number_in(name: str) -> int | None:
    """The number in the name of a file or folder, with or without a token; None: it has none."""
    stem = plain(name).removesuffix(".arrow")
    return int(stem) if TAU.fullmatch(stem) else None


def require_own_folders(root: Place, names: Iterable[str]) -> None:
    """Check that the folders of a log or lane lie in it, before anything in them is removed.

    Raises:
        CorruptError: One is a symbolic link.
    """
    for name in names:
        if (root / name).is_symlink():
            raise CorruptError(
                f"{root / name} is a symbolic link, so a sweep in it could reach files outside the store. Put the folder "
                "itself there"
            )


def present(folder: Place, names: Collection[str]) -> list[Place]:
    """The existing entries among ``names``, in their order; in a bucket with sizes and times from the listing."""

    def chosen(listed: list[str]) -> Iterable[str]:
        existing = set(listed)
        return (name for name in names if name in existing)

    return folder.entries(chosen)


def temporary(folder: Place) -> list[Place]:
    """Unfinished writes in a folder."""
    return folder.entries(lambda names: (name for name in names if name.endswith(TEMPORARY)))


def unnamed(folder: Place, named: set[str], ours: re.Pattern[str]) -> list[Place]:
    """Entries of a folder whose names match ``ours``, Freshet's, and that no record names."""
    return folder.entries(lambda names: (name for name in set(names) - named if _is_ours(name, ours)))


def superseded(
    folder: Place,
    numbers: Collection[int],
    named: Callable[[int], str],
    ours: re.Pattern[str],
    suffix: str = "",
) -> list[Place]:
    """As ``unnamed``, in a folder with one entry per number; in a bucket, a writer that was shut out may have left a second.

    Args:
        folder: The folder.
        numbers: Numbers whose entries a record names.
        named: Gives the name of a number's entry; called only if there are several.
        ours: The form of Freshet's names, without token.
        suffix: Their suffix.
    """
    usual = {f"{number}{suffix}" for number in numbers}

    def chosen(names: list[str]) -> list[str]:
        by_number: dict[int, list[str]] = {}
        left = []
        for name in set(names) - usual:
            if not _is_ours(name, ours):
                continue
            number = number_in(name)
            if number is not None and number in numbers:
                by_number.setdefault(number, []).append(name)
            else:
                left.append(name)
        plainly = set(names) & usual if by_number else set()
        for number, several in by_number.items():
            several.extend({f"{number}{suffix}"} & plainly)
            if len(several) > 1:
                left.extend(name for name in several if name != named(number))
        return left

    return folder.entries(chosen)


def _is_ours(name: str, ours: re.Pattern[str]) -> bool:
    return ours.fullmatch(plain(name.removesuffix(TEMPORARY))) is not None


def remove(paths: Iterable[Place]) -> int:
    """See ``Place.remove``: remove files and folders of one store; returns bytes."""
    places = list(paths)
    return places[0].remove(places) if places else 0
