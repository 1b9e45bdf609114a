"""The base of every configuration section."""

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic.fields import FieldInfo


def keys_of(kind: type[BaseModel]) -> dict[str, FieldInfo]:
    """The fields of a section by their keys in files; one may differ from the attribute's name."""
    return {field.alias or name: field for name, field in kind.model_fields.items()}


class Section(BaseModel):
    """Base of all configuration sections: unknown keys are refused, an empty section has its defaults."""

    model_config = ConfigDict(
        extra="forbid",
        allow_inf_nan=False,
        hide_input_in_errors=True,
        serialize_by_alias=True,  # what is dumped can be read again
    )

    @model_validator(mode="before")
    @classmethod
    def _empty(cls, content: Any) -> Any:
        return {} if content is None else content  # YAML's value of a section whose keys are all comments
