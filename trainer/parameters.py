"""The own parameters of models and strategies: keyword arguments, each of the kind of its default."""

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
    """Names and defaults of a model's or strategy's own parameters, and of those that it passes on to its base."""
    parameters = signature(kind).parameters
    found = {name: each.default for name, each in parameters.items() if each.kind is Parameter.KEYWORD_ONLY}
    if isinstance(kind, type) and any(each.kind is Parameter.VAR_KEYWORD for each in parameters.values()):
        maker = next(place for place, base in enumerate(kind.__mro__) if "__init__" in vars(base))
        return parameters_of(kind.__mro__[maker + 1]) | found
    return found


def check_parameters(kind: Callable[..., Any], given: Mapping[str, Any], where: str) -> None:
    """Refuse parameters that do not exist, or are not of the kind of their default.

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
            raise Failure(f"{where}: unknown parameter {name!r}, {expected}{did_you_mean(name, known)}")
        for kind_of_default, fitting, words in _KINDS:
            if not isinstance(known[name], kind_of_default):
                continue
            if known[name] == "auto" and isinstance(value, int) and not isinstance(value, bool):
                break  # an automatic choice may be a number; its owner decides which
            if not isinstance(value, fitting) or (isinstance(value, bool) and kind_of_default is not bool):
                raise Failure(f"{where}: {name} must be {words}, found {value!r}")
            break
