"""The own parameters of models and strategies: keyword arguments, whose defaults tell their kinds."""

from collections.abc import Callable, Mapping
from inspect import Parameter, signature
from typing import Any

from stream.nearest import did_you_mean
from stream.service.failure import Failure

_KINDS: tuple[tuple[type, tuple[type, ...], str], ...] = (
    (bool, (bool,), "true or false"),  # before int: a bool is one
    (int, (int,), "a whole number"),
    (float, (int, float), "a number"),
    (str, (str,), "a word"),
)


def parameters_of(kind: Callable[..., Any]) -> dict[str, Any]:
    """Names and defaults of a model's or strategy's own parameters."""
    return {
        name: parameter.default
        for name, parameter in signature(kind).parameters.items()
        if parameter.kind is Parameter.KEYWORD_ONLY
    }


def check_parameters(kind: Callable[..., Any], given: Mapping[str, Any], where: str) -> None:
    """Refuse parameters that don't exist, or are not of the kind of their default.

    Args:
        kind: Builds the model or strategy.
        given: From the configuration.
        where: Begins the sentence, such as ``model_params of tgn``.

    Raises:
        Failure: The sentence names the parameter, what was found and what is expected.
    """
    known = parameters_of(kind)
    for name, value in given.items():
        if name not in known:
            expected = f"expected one of {', '.join(known)}" if known else "it has none"
            raise Failure(f"{where}: unknown parameter {name!r}; {expected}{did_you_mean(name, known)}")
        for kind_of_default, fitting, words in _KINDS:
            if not isinstance(known[name], kind_of_default):
                continue
            if known[name] == "auto" and isinstance(value, int) and not isinstance(value, bool):
                break  # what is chosen by itself may be a number; its owner says whether
            if not isinstance(value, fitting) or (isinstance(value, bool) and kind_of_default is not bool):
                raise Failure(f"{where}: {name} must be {words}, found {value!r}")
            break
