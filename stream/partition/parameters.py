"""The parameters of a partitioner, derived from its constructor, and error sentences for wrong ones."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from schemas.errors import FreshetError, must_be
from stream.nearest import did_you_mean

_OF_ALL = ("parts", "seed", "window")
"""Parameters of every partitioner beside its own."""

_BY_NAME = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_STRICT = ConfigDict(strict=True, allow_inf_nan=False, arbitrary_types_allowed=True)

_INT64_END = 2**63


class PartitionError(FreshetError):
    """A partitioner cannot do what was asked; the message says what, with the numbers."""


def own_parameters(factory: Callable[..., Any]) -> tuple[dict[str, inspect.Parameter], bool]:
    """A partitioner's own parameters by name, and whether it takes others as well.

    ``**shared`` in a class's ``__init__`` is assumed to be passed on to the next class that has one.
    """
    if not inspect.isclass(factory):
        return _named([factory])
    return _named([vars(cls)["__init__"] for cls in inspect.getmro(factory) if "__init__" in vars(cls)])


def _named(takers: Sequence[Callable[..., Any]]) -> tuple[dict[str, inspect.Parameter], bool]:
    """Keyword parameters of the first taker, and of the following ones as long as they are passed on."""
    named: dict[str, inspect.Parameter] = {}
    for taker in takers:
        parameters = inspect.signature(taker).parameters
        for name, parameter in parameters.items():
            if parameter.kind in _BY_NAME and name not in ("self", *_OF_ALL):
                named.setdefault(name, parameter)
        if not any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
            return named, False
    return named, True


def check_parameters(algorithm: str, factory: Callable[..., Any], given: Mapping[str, Any]) -> None:
    """Compare given parameters with the names and types of a partitioner's constructor.

    Types that the constructor doesn't annotate, or annotates as text, are not checked.

    Raises:
        PartitionError: One is unknown, is a separate option, or has another type.
    """
    takes, takes_others = own_parameters(factory)
    for name, value in given.items():
        if name in _OF_ALL:
            raise PartitionError(
                f"{name} is not a parameter of {algorithm} but a separate option. Give it beside the parameters"
            )
        if name not in takes:
            if takes_others:
                continue
            listed = ", ".join(takes) or "no parameters"
            raise PartitionError(
                f"{algorithm} does not take {name}. It takes {listed}{did_you_mean(name, takes)}"
            )
        annotation = takes[name].annotation
        if annotation is inspect.Parameter.empty or isinstance(annotation, str):
            continue
        try:
            TypeAdapter(annotation, config=_STRICT).validate_python(value)
        except ValidationError as error:
            reasons = " or ".join(dict.fromkeys(must_be(fault) for fault in error.errors()))
            raise PartitionError(f"{algorithm} cannot take {name} = {value!r}: it {reasons}") from error
        numbers = value if isinstance(value, Sequence) else [value]
        if any(isinstance(number, int) and abs(number) >= _INT64_END for number in numbers):
            raise PartitionError(f"{algorithm} cannot take {name} = {value!r}: numbers must be below 2**63")
