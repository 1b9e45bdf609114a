"""A configuration's JSON Schema, draft 2020-12, by which editors complete and check its file."""

from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from freshet_graph.schemas.section import keys_of
from freshet_graph.stream.service.example import section_of

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def json_schema(kind: type[BaseModel], title: str) -> dict[str, Any]:
    """The schema of a configuration file.

    Every key has its description and, unless it is required, its default. A section may be null, as YAML has it if all
    of its keys are comments.

    Args:
        kind: The configuration model.
        title: Of the schema.
    """
    schema = kind.model_json_schema()
    definitions = schema.pop("$defs", {})
    _complete(schema, kind, definitions, set())
    about = {"$schema": DIALECT, "title": title, "description": (kind.__doc__ or "").splitlines()[0]}
    return {
        **about,
        **{key: value for key, value in schema.items() if key not in about},
        "$defs": definitions,
    }


def _complete(
    schema: dict[str, Any], kind: type[BaseModel], definitions: dict[str, Any], done: set[type[BaseModel]]
) -> None:
    """Add what pydantic leaves out: defaults that a factory makes, and descriptions of keys that hold sections."""
    for name, field in keys_of(kind).items():
        key, section = schema["properties"][name], section_of(field.annotation)
        key.pop("title", None)
        if section is not None:
            key.setdefault("description", (section.__doc__ or "").splitlines()[0])
        if not field.is_required():
            key.setdefault("default", _default(field))
        if section is None or section in done:
            continue
        done.add(section)
        inner = definitions[section.__name__]
        _complete(inner, section, definitions, done)
        if not any(inner_field.is_required() for inner_field in section.model_fields.values()):
            inner["type"] = ["object", "null"]


def _default(field: FieldInfo) -> Any:
    value = field.get_default(call_default_factory=True, validated_data={})
    return value.model_dump(mode="json") if isinstance(value, BaseModel) else value
