"""A commented configuration file, generated from the models so that it is never out of date."""

from enum import Enum
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import yaml
from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from freshet_graph.schemas.section import keys_of


def example(kind: type[BaseModel], required: dict[str, Any], *, title: str) -> str:
    """YAML text of a configuration with every key, its meaning, unit, bounds and default; … for one that has no default.

    Args:
        kind: The configuration model.
        required: Values to show, nested like the file; every required key must be there. A section in the place of a value is
            shown with all of its keys.
        title: First comment line.
    """
    return (
        f"# {title}\n# Keys without a comment mark are required or shown with a typical value. With a section that is left out, "
        "its keys are comments too; those with … are required.\n\n"
        + "\n".join(_lines(kind, required, 0))
        + "\n"
    )


def described(kind: type[BaseModel]) -> str:
    """YAML text with every key of a section as a comment: its meaning, bounds and default."""
    return "\n".join(_lines(kind, {}, 0))


def _lines(kind: type[BaseModel], values: dict[str, Any], depth: int) -> list[str]:
    pad = "  " * depth
    lines: list[str] = []
    for name, field in keys_of(kind).items():
        section = section_of(field.annotation)
        given = values.get(name)
        lines += [f"{pad}# {note}" for note in _notes(field, section)]
        if section is not None and isinstance(given, list):
            lines.append(f"{pad}{name}:")
            for entry in given:
                lines += [f"{pad}  {line}" for line in _entry(_lines(section, entry, 0))]
        elif section is not None and not isinstance(given, list) and _is_section(field.annotation):
            lines.append(f"{pad}{name}:")
            lines += _lines(section, given or {}, depth + 1)
        elif isinstance(given, BaseModel):
            lines.append(f"{pad}{name}:")
            lines += _lines(type(given), given.model_dump(exclude_unset=True), depth + 1)
        elif given is not None or name in values:
            lines.append(f"{pad}{name}: {_inline(given)}")
        elif field.is_required():
            lines.append(f"{pad}{name}: …")
        else:
            lines.append(f"{pad}# {name}: {_inline(_default(field))}")
            if section is not None:  # left out by default: its keys, too, are comments
                inner = _lines(section, {}, 0)
                inner = _entry(inner) if get_origin(field.annotation) is list else inner
                lines += [f"{pad}#   {line}" for line in inner]
    return lines


def _entry(lines: list[str]) -> list[str]:
    """The lines of a section as an entry of a list."""
    first = next(i for i, line in enumerate(lines) if not line.startswith("#"))
    return [*lines[:first], f"- {lines[first]}", *(f"  {line}" for line in lines[first + 1 :])]


def _notes(field: FieldInfo, section: type[BaseModel] | None) -> list[str]:
    text = field.description or ((section.__doc__ or "").splitlines()[0] if section else "")
    choices = _choices(field.annotation)
    if len(choices) > 1:
        text = f"{text} One of {', '.join(choices)}."
    bounds = [
        f"{sign} {getattr(constraint, attribute)}"
        for kind, sign, attribute in ((Ge, "≥", "ge"), (Gt, ">", "gt"), (Le, "≤", "le"), (Lt, "<", "lt"))
        for constraint in field.metadata
        if isinstance(constraint, kind)
    ]
    if bounds:
        text = f"{text} ({', '.join(bounds)})"
    return [text] if text else []


def _default(field: FieldInfo) -> Any:
    value = field.get_default(call_default_factory=True, validated_data={})
    return None if value is PydanticUndefined else value


def _inline(value: Any) -> str:
    if isinstance(value, SecretStr):
        value = "…"
    elif isinstance(value, Enum):
        value = value.value
    elif isinstance(value, tuple):
        value = list(value)
    elif isinstance(value, BaseModel):
        value = value.model_dump(mode="json")
    return (
        yaml.safe_dump(value, default_flow_style=True, width=1000, allow_unicode=True)
        .split("\n...")[0]
        .strip()
    )


def _members(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType, list) else (annotation,)


def section_of(annotation: Any) -> type[BaseModel] | None:
    """The section of a key, alone or in a list; None if it holds a value."""
    for member in _members(annotation):
        if isinstance(member, type) and issubclass(member, BaseModel):
            return member
    return None


def _is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _choices(annotation: Any) -> list[str]:
    members = _members(annotation)
    return [str(choice) for member in members if get_origin(member) is Literal for choice in get_args(member)]
