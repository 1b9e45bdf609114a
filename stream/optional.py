"""Libraries that not every installation has: the sentence that says how to get one."""

from importlib import import_module
from types import ModuleType

from freshet_graph.schemas.errors import MissingLibraryError


def package(name: str, wanted_by: str, install: str | None = None) -> ModuleType:
    """Import a library that few users need.

    Args:
        name: Of its module.
        wanted_by: Subject of the error's sentence.
        install: What pip is to install; None: the library.

    Raises:
        MissingLibraryError: It cannot be imported.
    """
    try:
        return import_module(name)
    except ImportError as error:
        top = name.split(".", maxsplit=1)[0]
        raise MissingLibraryError(
            f"{wanted_by} needs {top}, which can't be imported ({error}). Run pip install {install or top}"
        ) from error


def missing_extra(wanted_by: str, error: ModuleNotFoundError, extra: str) -> MissingLibraryError:
    """The error for what needs a library of an extra.

    Args:
        wanted_by: Subject of the sentence, such as a command's name.
        error: Of the import that failed.
        extra: Of this distribution, such as ``stream``.

    Raises:
        ModuleNotFoundError: The module is one of this distribution, so no extra brings it.
    """
    if error.name is None or error.name.startswith("freshet_graph"):
        raise error
    return MissingLibraryError(
        f"{wanted_by} needs {error.name.partition('.')[0]}, which is not installed. "
        f"Run pip install 'freshet-graph[{extra}]'"
    )
