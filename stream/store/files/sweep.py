"""Removing files that no record names: what a crash left behind."""

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path

from stream.store.places.names import TEMPORARY, plain
from stream.store.places.place import Place, place_of

NUMBERED = re.compile(r"\d+\.arrow")
TAU = re.compile(r"-?\d+")


def number_in(name: str) -> int | None:
    """The number that the name of a file or folder is made of, with a token or not; None: it isn't one."""
    found = plain(name).removesuffix(".arrow")
    return int(found) if TAU.fullmatch(found) else None


def names_in(folder: Path | Place) -> list[str]:
    """See ``Place.names``."""
    return place_of(folder).names()


def _entries(folder: Path | Place, chosen: Callable[[list[str]], Iterable[str]]) -> list[Place]:
    return list(place_of(folder).entries(chosen))


def present(folder: Path | Place, names: Collection[str]) -> list[Place]:
    """Those of some entries that a folder has, in the order given; in a bucket with what a listing says of each."""

    def chosen(listed: list[str]) -> Iterable[str]:
        there = set(listed)
        return (name for name in names if name in there)

    return _entries(folder, chosen)


def temporary(folder: Path | Place) -> list[Place]:
    """Unfinished writes in a folder."""
    return _entries(folder, lambda names: (name for name in names if name.endswith(TEMPORARY)))


def unnamed(folder: Path | Place, named: set[str], ours: re.Pattern[str]) -> list[Place]:
    """Entries of a folder that Freshet would write (their names match ``ours``) and no record names."""
    return _entries(folder, lambda names: (name for name in set(names) - named if _is_ours(name, ours)))


def superseded(
    folder: Path | Place,
    kept: Collection[int],
    named: Callable[[int], str],
    ours: re.Pattern[str],
    suffix: str = "",
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


def outdated(paths: Iterable[Place], record: Path | Place) -> Iterator[Place]:
    """See ``Place.outdated``: of entries that no record names, those that may be swept.

    Args:
        paths: Entries.
        record: The newest record that was looked at before they were listed.
    """
    return place_of(record).outdated(paths)


def remove(paths: Iterable[Path | Place]) -> int:
    """See ``Place.remove``: remove files and folders of one store; returns bytes."""
    places = [place_of(path) for path in paths]
    return places[0].remove(places) if places else 0


def length(paths: Iterable[Path | Place]) -> int:
    """Bytes that ``remove`` would free."""
    return sum(place_of(path).length() for path in paths)
