"""``freshet-stream``: every command by name. A command's module holds its options and its body."""

import typer

from stream.commands.backfill import backfill
from stream.commands.compact import compact
from stream.commands.config import config
from stream.commands.inspect import inspect
from stream.commands.partition import partition
from stream.commands.plan import plan
from stream.commands.replay import replay
from stream.commands.run import run
from stream.commands.savings import savings
from stream.commands.schema import schema
from stream.commands.synth import synth
from stream.commands.verify import verify
from stream.commands.warm import warm
from stream.service.version import version_option

LOGGING = ("run", "backfill")
"""Commands that log."""

app = typer.Typer(
    name="freshet-stream",
    help="Live interactions in Kafka become snapshots, partitions and an additive store.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.callback()(version_option("freshet-stream"))
for command in (
    run,
    backfill,
    replay,
    inspect,
    verify,
    compact,
    plan,
    partition,
    savings,
    synth,
    schema,
    config,
    warm,
):
    app.command()(command)
