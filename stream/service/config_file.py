"""YAML files into validated configuration; errors name the file or the variable, the key and what was expected."""

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_settings import EnvSettingsSource, SettingsError

from freshet_graph.schemas.config import Service
from freshet_graph.schemas.errors import FreshetError, must_be
from freshet_graph.schemas.section import keys_of
from freshet_graph.stream.nearest import did_you_mean, nearest
from freshet_graph.stream.service.example import section_of
from freshet_graph.stream.service.failure import Failure

Config = TypeVar("Config", bound=Service)
Model = TypeVar("Model", bound=BaseModel)

Place = tuple[int | str, ...]
"""The steps of a key, as Pydantic's errors have them."""

_OF_A_CLUSTER = re.compile(
    r"(.+_)?(service_(host|port(_.+)?)=.*|port_\d+_(tcp|udp|sctp)(_(proto|port|addr))?=.*|port=\w+://.*)",
    re.DOTALL,
)
"""Kubernetes gives each container such variables for a service of ours, such as FRESHET_STREAM_SERVICE_HOST."""


class _UniqueKeys(yaml.SafeLoader):
    """YAML in which a key given twice is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, str) and key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key} is given twice", key_node.start_mark
                )
            seen.add(key) if isinstance(key, str) else None
        return super().construct_mapping(node, deep)


def load_config(
    kind: type[Config], path: str | Path, check: Callable[[Config], object] = lambda config: None
) -> Config:
    """Read and validate a configuration file; environment variables override its keys.

    Args:
        kind: The configuration.
        path: Its file.
        check: Raises a FreshetError for errors beyond types, such as unknown names of algorithms.

    Raises:
        Failure: The file is missing, not YAML, or a key is unknown, missing or wrong; all wrong keys are named.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
        content = yaml.load(text, _UniqueKeys) or {}  # noqa: S506  a safe loader
    except OSError as error:
        raise Failure(f"configuration {path} cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        # Not from the error, nor its whole text: it quotes the line, which may hold a password.
        raise Failure(f"configuration {path} is not usable YAML: {_wrong_yaml(error)}") from None
    if not isinstance(content, dict):
        raise Failure(f"configuration {path} must be a mapping of keys, found {type(content).__name__}")
    config = validated(kind, content, f"configuration {path}")
    try:
        check(config)
    except FreshetError as error:
        raise Failure(f"configuration {path}: {error}") from error
    return config


def validated(kind: type[Model], content: dict[str, Any], where: str) -> Model:
    """Validate keys and values; environment variables override those of a service's configuration.

    Args:
        kind: The configuration, or a section of one.
        content: As a file has it.
        where: Begins the sentence.

    Raises:
        Failure: A key or a variable is unknown, a key is missing, or a value is wrong; all of them are named.
    """
    variables = _variables(kind) if issubclass(kind, Service) else {}
    try:
        return kind(**{str(key): value for key, value in content.items()})
    except ValidationError as error:
        raise Failure("; ".join(_by_place(kind, content, error, where, variables))) from error
    except SettingsError as error:  # whose cause holds the variable's value
        names = _no_json(kind, str(error), variables)
        raise Failure(
            f"environment variable {names}: must be JSON. Give a section key by key, or as JSON"
            if names
            else f"environment: {error}"
        ) from None


def _by_place(
    kind: type[BaseModel],
    content: dict[str, Any],
    error: ValidationError,
    where: str,
    variables: dict[tuple[str, ...], str],
) -> Iterator[str]:
    """What is wrong in the file, then what is wrong in each variable, a sentence each."""
    by_place: dict[str, list[Any]] = {where: []}
    for problem in error.errors():
        named = (name for steps, name in variables.items() if _at_fault(steps, name, problem))
        variable = next(named, None)
        place = where if variable is None else f"environment variable {variable}"
        by_place.setdefault(place, []).append(problem)
    return (
        f"{place}: {sentences(kind, content, problems)}" for place, problems in by_place.items() if problems
    )


def _at_fault(steps: tuple[str, ...], name: str, problem: Any) -> bool:
    """Whether a variable has given the value that an error is about."""
    loc: Place = problem["loc"]
    if problem["type"] == "missing" or (problem["type"] == "value_error" and loc != steps):
        return False  # the rest of the section may be the file's
    if len(steps) >= len(loc):
        return steps[: len(loc)] == loc
    if steps != loc[: len(steps)]:
        return False
    try:
        given = json.loads(os.environ[name])
    except ValueError:
        return True
    return not isinstance(given, dict) or str(loc[len(steps)]) in given  # the file may have the other keys


def _variables(kind: type[Service]) -> dict[tuple[str, ...], str]:
    """The environment variables of a configuration, by the steps of their keys.

    Raises:
        Failure: A variable with the configuration's prefix names no key.
    """
    prefix = str(kind.model_config["env_prefix"])
    delimiter = kind.model_config.get("env_nested_delimiter") or "\0"
    variables, unknown = {}, []
    for name in sorted(os.environ):
        key = name[len(prefix) :].lower()
        if not name.upper().startswith(prefix) or _OF_A_CLUSTER.fullmatch(f"{key}={os.environ[name]}"):
            continue
        steps = tuple(key.split(delimiter))
        if _is_key(kind, steps):
            variables[steps] = name
        else:
            dotted = ".".join(steps)
            meant = did_you_mean(dotted, _keys(kind, lists=False))
            unknown.append(f"environment variable {name}: unknown key {dotted}{meant}")
    if unknown:
        raise Failure("; ".join(unknown))
    return variables


def _is_key(kind: type[BaseModel], steps: tuple[str, ...]) -> bool:
    """Whether a variable of these steps sets a key: one of a section, or any of a mapping."""
    field = keys_of(kind).get(steps[0])
    if field is None or len(steps) == 1:
        return field is not None
    section = _section(field.annotation)
    return _has(field.annotation, dict) if section is None else _is_key(section, steps[1:])


def _section(annotation: Any) -> type[BaseModel] | None:
    """The section of a key; None: it holds a value, or a list of sections."""
    return None if _has(annotation, list) else section_of(annotation)


def _has(annotation: Any, container: type) -> bool:
    return any(get_origin(member) is container for member in (annotation, *get_args(annotation)))


def _no_json(kind: type[BaseModel], error: str, variables: dict[tuple[str, ...], str]) -> str:
    """The names of the variables of an error's section that should be JSON and are not."""
    top = re.search(r'field "(\w+)"', error)

    def wrong(steps: tuple[str, ...], name: str) -> bool:
        if top is None or steps[0] != top[1]:
            return False
        section: type[BaseModel] | None = kind
        for step in steps[:-1]:
            section = section and _section(keys_of(section)[step].annotation)
        if section is None:  # inside a mapping
            return False
        try:
            json.loads(os.environ[name])
        except ValueError:
            return EnvSettingsSource(Service).field_is_complex(keys_of(section)[steps[-1]])
        return False

    return " and ".join(name for steps, name in variables.items() if wrong(steps, name))


def _wrong_yaml(error: yaml.YAMLError | UnicodeDecodeError) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        problem = ", ".join(text for text in (error.context, error.problem) if text)
        return f"{problem} in line {mark.line + 1}, column {mark.column + 1}"
    if isinstance(error, UnicodeDecodeError):
        return f"not UTF-8 at byte {error.start}"
    return "it holds characters that YAML doesn't take"


def sentences(kind: type[BaseModel], content: dict[str, Any], errors: list[Any]) -> str:
    """All that is wrong, each unknown key with the known one that was probably meant."""
    by_key: dict[str, list[Any]] = {}  # a value that may be of several kinds has an error of each
    meaning = {}
    for error in errors:
        key, meaning[key] = _key(kind, content, error["loc"])
        by_key.setdefault(key, []).append(error)
    problems = []
    for key, key_errors in by_key.items():
        first = key_errors[0]
        meant = _meant(kind, first["loc"]) if first["type"] == "extra_forbidden" else None
        if first["type"] == "literal_error" and isinstance(first["input"], str):
            meant = nearest(first["input"], re.findall(r"'([^']+)'", first["ctx"]["expected"]))
        if meant is None and first["type"] == "extra_forbidden" and len(first["loc"]) == 1:
            meant = _of_the_other(kind, key)
        suggestion = f". Did you mean {meant}?" if len(by_key) == 1 else f" (did you mean {meant}?)"
        problems.append(_sentence(key, meaning[key], key_errors) + (suggestion if meant else ""))
    return "; ".join(problems)


def _key(kind: type[BaseModel], content: Any, place: Place) -> tuple[str, str]:
    """A place as a dotted key, entries of lists by their names, and the first sentence about the key.

    Pydantic's places also have words for the kinds that a value may be of; they are no keys, and left out.
    """
    section: type[BaseModel] | None = kind
    key, meaning = "", ""
    for step in place:
        if isinstance(step, int):
            content = content[step] if isinstance(content, list) and step < len(content) else None
            name = content.get("name") if isinstance(content, dict) else None
            key += f"[{name if isinstance(name, str) else step}]"
            continue
        field = keys_of(section).get(step) if section is not None else None
        if field is not None:
            section, meaning = (
                section_of(field.annotation),
                (field.description or "").split(". ")[0].rstrip("."),
            )
        elif not (isinstance(content, dict) and step in map(str, content)):
            continue
        content = content.get(step) if isinstance(content, dict) else None
        key += f".{step}" if key else step
    return key, meaning


def _meant(kind: type[BaseModel], place: Place) -> str | None:
    """The key of the same section that is most like an unknown one; else the key of its name in another section."""
    section: type[BaseModel] | None = kind
    for step in (step for step in place[:-1] if isinstance(step, str)):
        assert section is not None, "only sections have keys"
        section = section_of(keys_of(section)[step].annotation)
    assert section is not None, "only sections have keys"
    unknown = str(place[-1])
    elsewhere = (known for known in _keys(kind) if known.rpartition(".")[2] == unknown)
    return nearest(unknown, keys_of(section)) or next(elsewhere, None)


def _of_the_other(kind: type[BaseModel], key: str) -> str | None:
    """A key as one of the other service's configuration; None: it has none of that name."""
    from freshet_graph.schemas.config import StreamConfig
    from freshet_graph.schemas.trainer_config import TrainerConfig

    others: dict[str, type[BaseModel]] = {"the stream's": StreamConfig, "the trainer's": TrainerConfig}
    owners = (owner for owner, other in others.items() if other is not kind and key in other.model_fields)
    owner = next(owners, None)
    return owner and f"{key} of {owner} configuration"


def _keys(kind: type[BaseModel], before: str = "", *, lists: bool = True) -> Iterator[str]:
    """All keys of a section and those inside it, dotted; with ``lists`` also those of sections in lists."""
    for name, field in keys_of(kind).items():
        yield before + name
        section = section_of(field.annotation) if lists else _section(field.annotation)
        if section is not None:
            yield from _keys(section, f"{before}{name}.", lists=lists)


def _sentence(key: str, meaning: str, errors: list[Any]) -> str:
    error = errors[0]
    if error["type"] == "extra_forbidden":
        return f"unknown key {key}"
    if error["type"] == "missing":
        return f"key {key} is missing"
    where = f"{key}: " if key else ""
    if error["type"] == "value_error":
        return where + error["msg"].removeprefix("Value error, ")
    reasons = [must_be(key_error) for key_error in errors]
    wanted = " or ".join([reasons[0], *(reason.removeprefix("must be ") for reason in reasons[1:])])
    if wanted.endswith("number") and key.endswith("_s"):
        wanted += " of seconds"
    elif meaning and wanted.endswith(("text", "values")):
        wanted += f" ({meaning})"
    # Nothing is quoted that could be, or hold, a password: what stands in the place of a section may.
    shown = not error["type"].startswith(("model", "dict")) and isinstance(
        error["input"], str | int | float | None
    )
    given = f", found {error['input']!r}"[:120] if shown and "password" not in key else ""
    return f"{where}{wanted}{given}"
