"""``--version`` of both commands."""

from collections.abc import Callable
from importlib.metadata import version
from typing import Annotated

import typer


def version_option(command: str) -> Callable[..., None]:
    """A callback for a typer application that takes ``--version`` and prints it after the command's name."""

    def show(wanted: bool) -> None:
        if wanted:
            typer.echo(f"{command} {version('freshet')}")
            raise typer.Exit

    def main(
        _: Annotated[
            bool,
            typer.Option("--version", callback=show, is_eager=True, help="Print the version and exit."),
        ] = False,
    ) -> None:
        pass

    return main
