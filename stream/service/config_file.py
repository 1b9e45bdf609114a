"""YAML files into validated configuration; errors name the file, the key and what was expected."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_settings import SettingsError

from freshet_graph.schemas.config import Service
from freshet_graph.schemas.errors import FreshetError, must_be
from freshet_graph.schemas.section import keys_of
from freshet_graph.stream.nearest import nearest
from freshet_graph.stream.service.example import section_of
from freshet_graph.stream.service.failure import Failure

Config = TypeVar("Config", bound=Service)
Model = TypeVar("Model", bound=BaseModel)


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
        Failure: A key is unknown, missing or wrong; all wrong keys are named.
    """
    try:
        return kind(**{str(key): value for key, value in content.items()})
    except ValidationError as error:
        raise Failure(f"{where}: {sentences(kind, content, error.errors())}") from error
    except SettingsError as error:  # whose cause holds the variable's value
        raise Failure(f"environment: {error}; sections are given as JSON, or key by key") from None


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


def _key(kind: type[BaseModel], content: Any, place: tuple[int | str, ...]) -> tuple[str, str]:
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


def _meant(kind: type[BaseModel], place: tuple[int | str, ...]) -> str | None:
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


def _keys(kind: type[BaseModel], before: str = "") -> Iterator[str]:
    """All keys of a section and those inside it, dotted."""
    for name, field in keys_of(kind).items():
        yield before + name
        section = section_of(field.annotation)
        if section is not None:
            yield from _keys(section, f"{before}{name}.")


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
