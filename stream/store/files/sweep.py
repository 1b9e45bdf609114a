"""Removing files that no record names: what a crash left behind."""

import os
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path

from stream.store.files.paths import TEMPORARY, plain
from stream.store.places.object_path import ObjectPath
from stream.store.places.place import Place

NUMBERED = re.compile(r"\d+\.arrow")
TAU = re.compile(r"-?\d+")

REMOVED_AT_ONCE = 1000
"""Objects that one request removes."""


def number_in(name: str) -> int | None:
    """The number that the name of a file or folder is made of, with a token or not; None: it isn't one."""
    found = plain(name).removesuffix(".arrow")
    return int(found) if TAU.fullmatch(found) else None


def names_in(folder: Place) -> list[str]:
    """Names of a folder's entries, in no order; none where there is no folder. A lane of long life has a hundred thousand."""
    if isinstance(folder, ObjectPath):
        return [path.name for path in folder.iterdir()]
    try:
        return os.listdir(folder)  # noqa: PTH208  a Path an entry takes ten times as long
    except (FileNotFoundError, NotADirectoryError):
        return []


def _entries(folder: Place, chosen: Callable[[list[str]], Iterable[str]]) -> list[Place]:
    """The entries of a folder whose names are chosen among all."""
    if isinstance(folder, ObjectPath):
        listed = {path.name: path for path in folder.iterdir()}  # with what the listing says of each
        return [listed[name] for name in chosen(list(listed))]
    return [folder / name for name in chosen(names_in(folder))]


def present(folder: Place, names: Collection[str]) -> list[Place]:
    """Those of some entries that a folder has, in the order given; in a bucket with what a listing says of each."""

    def chosen(listed: list[str]) -> Iterable[str]:
        there = set(listed)
        return (name for name in names if name in there)

    return _entries(folder, chosen)


def temporary(folder: Place) -> list[Place]:
    """Unfinished writes in a folder."""
    return _entries(folder, lambda names: (name for name in names if name.endswith(TEMPORARY)))


def unnamed(folder: Place, named: set[str], ours: re.Pattern[str]) -> list[Place]:
    """Entries of a folder that Freshet would write (their names match ``ours``) and no record names."""
    return _entries(folder, lambda names: (name for name in set(names) - named if _is_ours(name, ours)))


def superseded(
    folder: Place, kept: Collection[int], named: Callable[[int], str], ours: re.Pattern[str], suffix: str = ""
) -> list[Place]:
    """As ``unnamed``, of a folder with one entry a number: in a bucket a writer that was shut out may have left a second.

    Args:
        folder: The folder.
        kept: Numbers whose entries some record names.
        named: Gives the name of a number's entry; only asked where there are several.
        ours: What Freshet's names look like, without token.
        suffix: Of those names.
    """
    usual = {f"{number}{suffix}" for number in kept}

    def chosen(names: list[str]) -> list[str]:
        there: dict[int, list[str]] = {}
        left = []
        for name in set(names) - usual:
            if not _is_ours(name, ours):
                continue
            number = number_in(name)
            if number is not None and number in kept:
                there.setdefault(number, []).append(name)
            else:
                left.append(name)
        plainly = set(names) & usual if there else set()
        for number, several in there.items():
            several.extend({f"{number}{suffix}"} & plainly)
            if len(several) > 1:
                left.extend(name for name in several if name != named(number))
        return left

    return _entries(folder, chosen)


def _is_ours(name: str, ours: re.Pattern[str]) -> bool:
    return ours.fullmatch(plain(name.removesuffix(TEMPORARY))) is not None


def outdated(paths: Iterable[Place], record: Place) -> Iterator[Place]:
    """Of entries that no record names, those that may be swept: on a local disk all, for the folder's lock keeps others out.

    In a bucket, files that were put before a record, by the service's clock: whoever put them without naming them until then
    was shut out when the record took its name. What is younger may be of a writer that has taken over.

    Args:
        paths: Entries.
        record: The newest record that was looked at before they were listed.
    """
    if not isinstance(record, ObjectPath):
        yield from paths
        return
    before_s = record.stat().st_mtime
    for path in paths:
        assert isinstance(path, ObjectPath), "a folder's entries lie where its records do"
        files = [path] if path.listed is not None else list(path.rglob("*"))
        yield from (file for file in files if file.stat().st_mtime < before_s)


def remove(paths: Iterable[Place]) -> int:
    """Remove files, and folders with all that is in them; what another process removes meanwhile is fine.

    Returns:
        Length of what was removed, bytes; in a bucket, of the objects that had been listed: others would have to be asked for.
    """
    objects: list[ObjectPath] = []
    freed = 0
    for path in paths:
        if isinstance(path, ObjectPath):
            objects.extend([path] if path.listed is not None else [path, *path.rglob("*")])
            continue
        freed += _length(path)
        if path.is_dir() and not path.is_symlink():
            while path.exists():
                try:
                    shutil.rmtree(path)
                except FileNotFoundError:
                    continue  # swept by two at once: a writer that starts, and compaction
        else:
            path.unlink(missing_ok=True)
    for start in range(0, len(objects), REMOVED_AT_ONCE):
        some = objects[start : start + REMOVED_AT_ONCE]
        some[0].bucket.remove([path.key for path in some])
    return freed + sum(path.listed.bytes for path in objects if path.listed is not None)


def length(paths: Iterable[Place]) -> int:
    """Bytes that ``remove`` would free."""
    total = 0
    for path in paths:
        if isinstance(path, ObjectPath):
            total += sum(
                one.listed.bytes for one in ([path] if path.listed else path.rglob("*")) if one.listed
            )
        else:
            total += _length(path)
    return total


def _length(path: Path) -> int:
    """Bytes of a file, or of all files in a folder."""
    try:
        if path.is_symlink() or not path.is_dir():
            return path.lstat().st_size
    except FileNotFoundError:
        return 0
    return sum(_length(path / name) for name in names_in(path))
