"""The base of every configuration section."""

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator


class Section(BaseModel):
    """Base of all configuration sections: unknown keys are refused, an empty section has its defaults."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, hide_input_in_errors=True)

    @model_validator(mode="before")
    @classmethod
    def _empty(cls, content: Any) -> Any:
        return {} if content is None else content  # YAML's value of a section whose keys are all comments
