"""The flags of commands that read files of events: one declaration, from the fields of ``FileOptions``."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from freshet_graph.schemas.file_options import FileOptions, flag_of
from freshet_graph.stream.service.config_file import sentences

_ARGUMENT = "reading"


def reads_files(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command a flag for each field of ``FileOptions``; it gets all of them as its argument ``reading``."""

    @wraps(command)
    def with_flags(**given: Any) -> None:
        chosen = {name: given.pop(name) for name in FileOptions.model_fields}
        chosen = {name: value for name, value in chosen.items() if value not in (None, False)}
        try:
            options = FileOptions.model_validate(chosen)
        except ValidationError as error:
            sentence = sentences(FileOptions, chosen, error.errors())
            key, _, rest = sentence.partition(":")
            raise typer.BadParameter(f"{flag_of(key)}{rest}") from None
        command(**given, **{_ARGUMENT: options})

    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        parameters += _flags() if parameter.name == _ARGUMENT else [parameter]
    vars(with_flags)["__signature__"] = inspect.Signature(parameters)
    with_flags.__annotations__.update({parameter.name: parameter.annotation for parameter in parameters})
    return with_flags


def _flags() -> list[inspect.Parameter]:
    flags = []
    for name, field in FileOptions.model_fields.items():
        is_switch = field.annotation is bool
        option = typer.Option(
            flag_of(name), help=field.description, metavar=None if is_switch else _METAVARS[name]
        )
        kind = bool if is_switch else str | None
        flags.append(
            inspect.Parameter(
                name,
                inspect.Parameter.POSITIONAL_OR_KEYWORD,
                default=field.default,
                annotation=Annotated[kind, option],
            )
        )
    return flags


_METAVARS = {
    "columns": "NAME=COLUMN,…",
    "feature_columns": "COLUMN,…",
    "time_unit": "s|ms|us|ns|rfc3339",
    "delimiter": "C",
    "comment": "C",
    "preset": "jodie|tgb|dyglib|snap",
}
