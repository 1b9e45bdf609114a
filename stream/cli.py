"""``freshet-stream``: every command by name. A command's module holds its options and its body."""

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
from stream.service.command_line import application

LOGGING = ("run", "backfill")
"""Commands that log."""

app = application(
    "freshet-stream",
    "Live interactions in Kafka become snapshots, partitions and an additive store.",
    *(run, backfill, replay, inspect, verify, compact, plan, partition, savings, synth, schema, config, warm),
)
