"""Remove files that no record names: remains of a crash."""

import re
from collections.abc import Callable, Collection, Iterable

from stream.store.errors import CorruptError
from stream.store.places.names import TEMPORARY, plain
from stream.store.places.place import Place

NUMBERED = re.compile(r"\d+\.arrow")
TAU = re.compile(r"-?\d+")


def number_in(name: str) -> int | None:
    """The number in the name of a file or folder, with or without a token; None: it has none."""
    found = plain(name).removesuffix(".arrow")
    return int(found) if TAU.fullmatch(found) else None


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
        there = set(listed)
        return (name for name in names if name in there)

    return folder.entries(chosen)


def temporary(folder: Place) -> list[Place]:
    """Unfinished writes in a folder."""
    return folder.entries(lambda names: (name for name in names if name.endswith(TEMPORARY)))


def unnamed(folder: Place, named: set[str], ours: re.Pattern[str]) -> list[Place]:
    """Entries of a folder whose names match ``ours``, Freshet's, and that no record names."""
    return folder.entries(lambda names: (name for name in set(names) - named if _is_ours(name, ours)))


def superseded(
    folder: Place,
    kept: Collection[int],
    named: Callable[[int], str],
    ours: re.Pattern[str],
    suffix: str = "",
) -> list[Place]:
    """As ``unnamed``, in a folder with one entry per number; in a bucket, a writer that was shut out may have left a second.

    Args:
        folder: The folder.
        kept: Numbers whose entries a record names.
        named: Gives the name of a number's entry; called only if there are several.
        ours: The form of Freshet's names, without token.
        suffix: Their suffix.
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

    return folder.entries(chosen)


def _is_ours(name: str, ours: re.Pattern[str]) -> bool:
    return ours.fullmatch(plain(name.removesuffix(TEMPORARY))) is not None


def remove(paths: Iterable[Place]) -> int:
    """See ``Place.remove``: remove files and folders of one store; returns bytes."""
    places = list(paths)
    return places[0].remove(places) if places else 0
