"""Objects that a process has once: Beam pickles functions, but consumers, writers and threads stay where they are.

The job holds them under names before the pipeline starts; the pipeline's functions carry the names.
"""

from typing import TypeVar

T = TypeVar("T")

_held: dict[str, object] = {}


def hold(name: str, thing: object) -> None:
    """Make an object available under a name in this process.

    Raises:
        ValueError: The name is taken.
    """
    if name in _held:
        raise ValueError(f"{name} is held already")
    _held[name] = thing


def held(name: str, kind: type[T]) -> T:
    """The object held under a name.

    Raises:
        LookupError: Nothing is held under it here: the function runs in another process than the job.
    """
    thing = find_held(name, kind)
    if thing is None:
        raise LookupError(
            f"this process holds no {kind.__name__} named {name}. Run the pipeline in the job's process"
        )
    return thing


def find_held(name: str, kind: type[T]) -> T | None:
    """The object held under a name; None where this process holds none."""
    thing = _held.get(name)
    return thing if isinstance(thing, kind) else None


def release(name: str) -> None:
    """Forget a name; unknown ones are fine."""
    _held.pop(name, None)
