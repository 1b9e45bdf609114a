"""The outermost call of a service's commands: the form of its standard error, and reports of defects."""

import sys
from collections.abc import Collection

import typer

from stream.service.failure import FAILED, complain
from stream.service.json_lines import lines_are_json, take_to_json_lines


def run_application(app: typer.Typer, *, logging: Collection[str]) -> None:
    """Run the command of this process, and exit with its code.

    Args:
        app: All commands.
        logging: Commands whose standard error is a log, which is all JSON lines unless it is a terminal.
    """
    if sys.argv[1:2] and sys.argv[1] in logging:
        take_to_json_lines()
    try:
        app()
    except Exception as error:
        if not lines_are_json():
            raise
        complain(f"unexpected {type(error).__name__}: {error}", error)
        sys.exit(FAILED)
