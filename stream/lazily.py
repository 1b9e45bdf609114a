"""Names of a package that are loaded on first use."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any


def loaded(package: str, name: str, homes: Mapping[str, str]) -> Any:
    """The result of ``__getattr__`` of a package; ``homes`` has the module that defines each name.

    Raises:
        AttributeError: There is no such name.
    """
    if name not in homes:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    return getattr(import_module(homes[name]), name)
