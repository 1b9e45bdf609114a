"""YAML files into validated configuration, with errors that name file, key and what was expected."""

from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from schemas.config import Service
from stream.service.failure import Failure

Config = TypeVar("Config", bound=Service)


class _UniqueKeys(yaml.SafeLoader):
    """YAML as it is meant: a key given twice is an error, not the last one's victory."""

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


def load_config(kind: type[Config], path: str | Path) -> Config:
    """Read and validate a configuration file; environment variables override its keys.

    Raises:
        Failure: The file is missing, not YAML, or a key is unknown, missing or wrong; all wrong keys are named.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
        content = yaml.load(text, _UniqueKeys) or {}  # noqa: S506  a safe loader
    except OSError as error:
        raise Failure(f"configuration {path} cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise Failure(f"configuration {path} is not usable YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise Failure(f"configuration {path} must be a mapping of keys, found {type(content).__name__}")
    try:
        return kind(**content)
    except ValidationError as error:
        raise Failure(f"configuration {path}: {'; '.join(_sentence(e) for e in error.errors())}") from error


def _sentence(error: Any) -> str:
    key = ".".join(str(part) for part in error["loc"]) or "the file"
    if error["type"] == "extra_forbidden":
        return f"unknown key {key}"
    if error["type"] == "missing":
        return f"key {key} is missing"
    message = error["msg"].removeprefix("Value error, ")
    found = "" if "password" in key else f", found {error['input']!r}"[:120]
    return f"{key}: {message[0].lower()}{message[1:]}{found if error['type'] != 'value_error' else ''}"
