"""``freshet-stream``: every command by name. A command's module holds its options and its body."""

from freshet_graph.stream.commands.backfill import backfill
from freshet_graph.stream.commands.build import build
from freshet_graph.stream.commands.compact import compact
from freshet_graph.stream.commands.config import config
from freshet_graph.stream.commands.inspect import inspect
from freshet_graph.stream.commands.partition import partition
from freshet_graph.stream.commands.plan import plan
from freshet_graph.stream.commands.replay import replay
from freshet_graph.stream.commands.resend import resend
from freshet_graph.stream.commands.run import run
from freshet_graph.stream.commands.savings import savings
from freshet_graph.stream.commands.schema import schema
from freshet_graph.stream.commands.synth import synth
from freshet_graph.stream.commands.try_ import try_
from freshet_graph.stream.commands.verify import verify
from freshet_graph.stream.commands.warm import warm
from freshet_graph.stream.service.command_line import application

LOGGING = ("run", "backfill")
"""Commands that log."""

app = application(
    "freshet-stream",
    "Live interactions in Kafka become snapshots, partitions and an additive store.",
    *(
        run,
        backfill,
        build,
        replay,
        resend,
        try_,
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
    ),
)
