"""How a file of events is read that does not look like Freshet's own: the options of every command that reads files."""

from typing import Any, Literal

from pydantic import ConfigDict, Field, field_validator, model_validator

from freshet_graph.schemas.events import event_schema
from freshet_graph.schemas.section import Section

EVENT_COLUMNS = tuple(event_schema("int").names)
"""Columns of events."""

Preset = Literal["jodie", "tgb", "dyglib", "snap"]

PRESETS: dict[Preset, dict[str, Any]] = {
    # https://snap.stanford.edu/jodie: four columns, then features under one name; users and items are numbered from 0 each.
    "jodie": {"columns": "src=0,dst=1,t=2,label=3", "feature_columns": "*", "bipartite": True},
    "tgb": {},  # its edge lists differ: ``freshet_graph.stream.decode.file_columns`` looks at the header
    "dyglib": {"columns": "src=u,dst=i,t=ts,label=label"},
    "snap": {"columns": "src=0,dst=1,t=2", "delimiter": " ", "comment": "#", "no_header": True},
}
"""The options that each preset stands for."""

_SHOWN_AS = {"preset": "as"}


class FileOptions(Section):
    """Options of a file. Without any, columns have an event's names and times are seconds."""

    model_config = ConfigDict(frozen=True)

    columns: str | None = Field(
        None,
        description="The file's names of an event's columns, such as src=user,dst=item,t=ts, or their numbers from 0; others "
        "keep their names.",
    )
    feature_columns: str | None = Field(
        None,
        description="Columns that are an event's features: names, numbers or globs, such as amount,f*. '*': all that are "
        "not read otherwise. log:amount is sign · log(1 + |amount|).",
    )
    time_unit: Literal["s", "ms", "us", "ns", "rfc3339"] | None = Field(
        None, description="Unit of numeric times, or rfc3339. Default: s, or RFC 3339 in all rows."
    )
    bipartite: bool = Field(
        False,
        description="Sources and destinations are numbered apart: dst 5 becomes -6, and dst a becomes dst:a.",
    )
    delimiter: str | None = Field(
        None,
        description="Character between cells; ' ' is any number of blanks and tabs. Default: a tab if the header has one, "
        "otherwise a comma.",
    )
    comment: str | None = Field(None, description="Lines of text that begin with this are left out.")
    no_header: bool = Field(False, description="The first line is a row. Columns have numbers from 0.")
    preset: Preset | None = Field(
        None,
        description="Files of JODIE, TGB, DyGLib or SNAP: all of these at once. An option beside it takes its place.",
    )

    @model_validator(mode="before")
    @classmethod
    def _with_preset(cls, content: Any) -> Any:
        if not isinstance(content, dict):
            return content
        return {**PRESETS.get(content.get("preset"), {}), **content}  # type: ignore[arg-type]

    @field_validator("columns")
    @classmethod
    def _pairs(cls, text: str | None) -> str | None:
        _names(text)
        return text

    @field_validator("delimiter")
    @classmethod
    def _character(cls, text: str | None) -> str | None:
        text = "\t" if text in ("\\t", "tab") else text
        if text is not None and (len(text.encode()) != 1 or text in '\n\r"'):
            raise ValueError("must be one character, such as ';'")
        return text

    @field_validator("comment")
    @classmethod
    def _beginning(cls, text: str | None) -> str | None:
        if text is not None and not text.strip():
            raise ValueError("must be a character, such as '#'")
        return text

    @property
    def names(self) -> dict[str, str]:
        """The file's column by the event's, for those that ``columns`` names."""
        return _names(self.columns)

    @property
    def given(self) -> dict[str, str | bool]:
        """The options that differ from their defaults, those of the preset left out."""
        values = self.model_dump(exclude_defaults=True, include=set(FileOptions.model_fields))
        preset = PRESETS[self.preset] if self.preset is not None else {}
        return {name: value for name, value in values.items() if preset.get(name) != value}

    @property
    def flags(self) -> list[str]:
        """These options on a command line."""
        return [word for name, value in self.given.items() for word in _flag(name, value)]


def flag_of(name: str) -> str:
    """The flag of an option's name."""
    return f"--{_SHOWN_AS.get(name, name).replace('_', '-')}"


def _flag(name: str, value: str | bool) -> list[str]:
    return [flag_of(name)] if value is True else [flag_of(name), str(value)]


def _names(text: str | None) -> dict[str, str]:
    names: dict[str, str] = {}
    for pair in text.split(",") if text else []:
        name, sign, column = (part.strip() for part in pair.partition("="))
        if not sign or not column:
            raise ValueError(f"takes pairs such as src=user,dst=item,t=ts, found {pair!r}")
        if name not in EVENT_COLUMNS:
            raise ValueError(f"names {name}, which events don't have. They have {', '.join(EVENT_COLUMNS)}")
        if name in names or column in names.values():
            raise ValueError(f"names {name if name in names else column} twice")
        names[name] = column
    return names


AS_EVENTS = FileOptions()
"""A file with the columns of events."""
