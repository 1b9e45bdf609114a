"""Entry points of other distributions, each loaded by itself, so that a broken one harms no other."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from schemas.errors import one_line

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Plugins:
    """The entry points of a group.

    Attributes:
        loaded: Those that can be used, by name.
        broken: Why each of the others cannot, a sentence by name.
    """

    loaded: dict[str, Any]
    broken: dict[str, str]


@cache
def installed(group: str) -> tuple[EntryPoint, ...]:
    """The entry points of a group; looked up once, because that reads the metadata of every distribution."""
    return tuple(entry_points(group=group))


@cache
def plugins(group: str, builtin: frozenset[str], check: Callable[[Any], object]) -> Plugins:
    """Load every entry point of a group, and warn once about each that cannot be used.

    Args:
        group: Such as ``freshet.partitioners``.
        builtin: Names that are taken.
        check: Raises if a loaded object is not of the group's kind.
    """
    loaded: dict[str, Any] = {}
    broken: dict[str, str] = {}
    owner = dict.fromkeys(builtin, "a built-in one")
    for entry in installed(group):
        where = f"entry point {entry.name} ({group}) of {_distribution(entry)}"
        if entry.name in owner:
            _log.warning(
                "%s is ignored: its name is that of %s. Rename it.", where, owner[entry.name]
            )  # the first keeps the name
            continue
        try:
            found = entry.load()
            check(found)
        except (Exception, SystemExit) as error:  # noqa: BLE001  it may raise anything
            told = f"{type(error).__name__}: {one_line(error)}"
            broken[entry.name] = f"{where} cannot be loaded: {told}. Repair or remove that distribution"
            _log.warning("%s", broken[entry.name])
        else:
            loaded[entry.name] = found
            owner[entry.name] = f"one of {_distribution(entry)}"
    return Plugins(loaded, {name: told for name, told in broken.items() if name not in loaded})


def _distribution(entry: EntryPoint) -> str:
    """The distribution of an entry point, with its version."""
    found = entry.dist
    return "an unknown distribution" if found is None else f"{found.name} {found.version}"
