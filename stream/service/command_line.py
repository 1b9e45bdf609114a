"""A service's application: its commands, the form of its standard error, and reports of defects."""

import sys
from collections.abc import Callable, Collection, Sequence
from typing import Annotated, Any

import typer

from freshet_graph.schemas.errors import one_line
from freshet_graph.schemas.version import version
from freshet_graph.stream.optional import missing_extra
from freshet_graph.stream.service.failure import FAILED, complain
from freshet_graph.stream.service.json_lines import lines_are_json, take_to_json_lines

LOG_FORMAT = "--log-format"


def application(name: str, about: str, *commands: Callable[..., Any]) -> typer.Typer:
    """The commands under one name, which also takes ``--version``."""
    app = typer.Typer(
        name=name,
        help=about,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )

    def show(wanted: bool) -> None:
        if wanted:
            typer.echo(f"{name} {version()}")
            raise typer.Exit

    @app.callback()
    def main(
        _: Annotated[
            bool, typer.Option("--version", callback=show, is_eager=True, help="Print the version and exit.")
        ] = False,
    ) -> None:
        pass

    for command in commands:
        app.command()(command)
    return app


def run_application(app: typer.Typer, *, logging: Collection[str], extra: str) -> None:
    """Run the command of this process, and exit with its code.

    Args:
        app: All commands.
        logging: Commands whose standard error is a log, which is all JSON lines unless it is a terminal, or --log-format is
            text.
        extra: The extra of the distribution that brings what the commands need.
    """
    if sys.argv[1:2] and sys.argv[1] in logging:
        take_to_json_lines(_log_form(sys.argv[2:]))
    try:
        app()
    except ModuleNotFoundError as error:
        complain(one_line(missing_extra(f"freshet-{extra} {' '.join(sys.argv[1:2])}", error, extra)))
        sys.exit(FAILED)
    except Exception as error:
        if not lines_are_json():
            raise
        complain(f"unexpected {type(error).__name__}: {error}", error)
        sys.exit(FAILED)


def _log_form(arguments: Sequence[str]) -> str | None:
    """The value of ``--log-format``, needed before options are parsed: their errors are lines, too."""
    for here, following in zip(arguments, (*arguments[1:], ""), strict=True):
        if here == LOG_FORMAT:
            return following
        if here.startswith(f"{LOG_FORMAT}="):
            return here.partition("=")[2]
    return None
