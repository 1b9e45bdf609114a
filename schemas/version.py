"""The version of the installed distribution."""

import importlib.metadata


def version() -> str:
    """Of Freshet; ``unknown`` where its sources run without being installed, as on a machine without a network."""
    try:
        return importlib.metadata.version("freshet-graph")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
