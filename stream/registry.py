"""Classes that a configuration names: those of this package, and entry points of other distributions."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from inspect import getattr_static
from typing import Any, Generic, Protocol, TypeVar

from pydantic import ValidationError

from freshet_graph.schemas.errors import one_line
from freshet_graph.schemas.section import Section
from freshet_graph.stream.nearest import did_you_mean

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
            plugin = entry.load()
            check(plugin)
        except (Exception, SystemExit) as error:  # noqa: BLE001  it may raise anything
            cause = f"{type(error).__name__}: {one_line(error)}"
            broken[entry.name] = f"{where} cannot be loaded: {cause}. Repair or remove that distribution"
            _log.warning("%s", broken[entry.name])
        else:
            loaded[entry.name] = plugin
            owner[entry.name] = f"one of {_distribution(entry)}"
    return Plugins(loaded, {name: cause for name, cause in broken.items() if name not in loaded})


def _distribution(entry: EntryPoint) -> str:
    """The distribution of an entry point, with its version."""
    distribution = entry.dist
    return (
        "an unknown distribution" if distribution is None else f"{distribution.name} {distribution.version}"
    )


T = TypeVar("T")
C = TypeVar("C")

_ABSENT = object()


def require_members(candidate: Any, protocol: type, kind: str, *, made: frozenset[str] = frozenset()) -> None:
    """Check that a class has the members of a protocol, except attributes that only objects have (``made``).

    What it inherits from the protocol itself does not count.

    Raises:
        TypeError: It lacks some of them.
    """
    parts = [part for part in protocol.__mro__ if part is not Protocol]
    wanted = {name for part in parts for name in (*vars(part), *vars(part).get("__annotations__", ()))}
    lacking = sorted(
        name
        for name in wanted - made
        if not name.startswith("_")
        and (
            not hasattr(candidate, name)
            or getattr_static(candidate, name) is getattr_static(protocol, name, _ABSENT)
        )
    )
    if lacking:
        raise TypeError(f"{candidate!r} has no {', '.join(lacking)}: it is not a {kind}")


class Registry(Generic[T]):
    """The classes of one kind, by name.

    Each has ``Options``, a section that declares its own parameters with defaults, bounds and descriptions. Modules of this
    package are named by text and imported on first use, because they import the registry.

    Args:
        kind: Such as ``model``, for sentences.
        params: The key of the options in a configuration, such as ``model_params``.
        group: Entry points of other distributions, such as ``freshet.models``.
        modules: Of this package, whose classes register themselves.
        error: Raised for an unknown name.
        check: Raises if an entry point leads to something of another kind.

    Attributes:
        registered: Classes by name that were decorated: of this package, once their modules are imported, and of others.
    """

    def __init__(
        self,
        kind: str,
        params: str,
        group: str,
        modules: Sequence[str],
        *,
        error: type[Exception],
        check: Callable[[Any], object],
    ) -> None:
        self._kind, self._params, self._group, self._modules = kind, params, group, modules
        self._error, self._check = error, check
        self.registered: dict[str, T] = {}

    def register(self, plugin: C) -> C:
        """Class decorator: register a class under its ``name``.

        Raises:
            ValueError: Another class has that name.
        """
        name: str = plugin.name  # type: ignore[attr-defined]  # a class with the attribute
        first: Any = self.registered.setdefault(name, plugin)  # type: ignore[arg-type]  # of this kind
        if first is not plugin:
            raise ValueError(f"{self._kind} {name} is registered already")
        return plugin

    def all(self) -> dict[str, T]:
        """Everything that can be used, by name; built-in names win."""
        return self._plugins().loaded | self.registered

    def broken(self) -> dict[str, str]:
        """Installed ones that cannot be used: the reason, a sentence, by name."""
        return self._plugins().broken

    def find(self, name: str) -> T:
        """The one with a name.

        Raises:
            Exception: Of the registry's kind of error: there is none, or it cannot be loaded. The sentence lists the others.
        """
        builtin = self._builtin(name)
        if builtin is not None:
            return builtin
        known = self.all()
        if name in known:
            return known[name]
        broken = self.broken()
        if name in broken:
            raise self._error(f"{self._kind} {name} is not usable: {broken[name]}")
        others = f" (and, not usable, {', '.join(sorted(broken))})" if broken else ""
        raise self._error(
            f"unknown {self._kind} {name!r}; expected one of {', '.join(sorted(known))}{others}{did_you_mean(name, known)}"
        )

    def options(self, name: str, given: Mapping[str, Any]) -> Any:
        """The options of the one with a name, its ``Options`` filled in; values are not converted.

        Raises:
            Exception: Of the registry's kind of error: the name or an option is unknown, or a value is wrong.
        """
        options: type[Section] = self.find(name).Options  # type: ignore[attr-defined]  # every registered class has them
        given = {str(key): value for key, value in given.items()}
        try:
            return options.model_validate(given, strict=True)
        except ValidationError as error:
            from freshet_graph.stream.service.config_file import (
                sentences,  # needs YAML, which a reader of stores lacks
            )

            wrong = sentences(options, given, error.errors())
            if error.errors()[0]["type"] == "extra_forbidden" and not wrong.endswith("?"):
                wrong += (
                    f". Expected one of {', '.join(options.model_fields)}"
                    if options.model_fields
                    else ". It has none"
                )
            raise self._error(f"{self._params} of {name}: {wrong}") from error

    def _builtin(self, name: str) -> T | None:
        """The class in this package's module of the same name, without importing the others; None: look at all.

        If other distributions have entry points, all are looked at: one that is broken, or hidden by its name, is warned of.
        """
        module = next(
            (
                module_name
                for module_name in self._modules
                if module_name.rpartition(".")[2] == name.replace("-", "_")
            ),
            None,
        )
        if module is None or installed(self._group):
            return None
        import_module(module)
        return self.registered.get(name)

    def _plugins(self) -> Plugins:
        for module in self._modules:
            import_module(module)
        # A class of another package may have the decorator, too: its name is not taken by this package.
        builtin = frozenset(
            name for name, plugin in self.registered.items() if plugin.__module__ in self._modules
        )
        return plugins(self._group, builtin, self._require)

    def _require(self, candidate: Any) -> None:
        self._check(candidate)
        options = getattr(candidate, "Options", None)
        if not (isinstance(options, type) and issubclass(options, Section)):
            raise TypeError(
                f"{candidate!r}: its Options are no Section, a pydantic model of freshet_graph.schemas.section"
            )
