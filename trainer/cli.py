"""``freshet-trainer``: every command by name. A command's module holds its options and its body."""

import typer

from trainer.commands.config import config
from trainer.commands.evaluate import evaluate
from trainer.commands.export import export
from trainer.commands.models import models
from trainer.commands.run import run
from trainer.commands.warm import warm

app = typer.Typer(
    name="freshet-trainer",
    help="Continuously trained temporal graph neural networks on a store that the stream service writes.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for command in (run, evaluate, export, models, config, warm):
    app.command()(command)


def main() -> None:
    """Entry point."""
    app()


if __name__ == "__main__":  # what each rank of a launch runs
    main()
