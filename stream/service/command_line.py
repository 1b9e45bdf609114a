"""The outermost call of a service's commands: how its standard error looks, and what a defect leaves there."""

import sys
from collections.abc import Collection

import typer

from stream.service.failure import FAILED, complain
from stream.service.json_lines import lines_are_json, take_to_json_lines


def run_application(app: typer.Typer, *, logging: Collection[str]) -> None:
    """Run the command that the process was started with, and leave with its exit code.

    Args:
        app: All commands.
        logging: Those whose standard error is a log. Without a terminal it is JSON lines from the first to the last;
            of the others it is a sentence for whoever called.
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
