"""``freshet-trainer``: every command by name. A command's module holds its options and its body."""

import typer

from stream.service.command_line import run_application
from stream.service.version import version_option
from trainer.commands.config import config
from trainer.commands.evaluate import evaluate
from trainer.commands.export import export
from trainer.commands.models import models
from trainer.commands.run import run
from trainer.commands.schedule import schedule
from trainer.commands.simulate import simulate
from trainer.commands.warm import warm

LOGGING = ("run", "evaluate", "export")
"""Commands that log."""

app = typer.Typer(
    name="freshet-trainer",
    help="Continuous training of temporal graph neural networks on a store that the stream service writes.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.callback()(version_option("freshet-trainer"))
for command in (run, evaluate, export, models, schedule, simulate, config, warm):
    app.command()(command)


def main() -> None:
    """Entry point."""
    run_application(app, logging=LOGGING)


if __name__ == "__main__":  # what each rank of a launch runs
    main()
