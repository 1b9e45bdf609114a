"""``freshet-trainer``: every command by name. A command's module holds its options and its body."""

import os

from freshet_graph.stream.service.command_line import application, run_application
from freshet_graph.trainer.commands.config import config
from freshet_graph.trainer.commands.evaluate import evaluate
from freshet_graph.trainer.commands.export import export
from freshet_graph.trainer.commands.inspect import inspect
from freshet_graph.trainer.commands.models import models
from freshet_graph.trainer.commands.run import run
from freshet_graph.trainer.commands.schedule import schedule
from freshet_graph.trainer.commands.score import score
from freshet_graph.trainer.commands.simulate import simulate
from freshet_graph.trainer.commands.warm import warm

LOGGING = ("run", "score", "evaluate", "export")
"""Commands that log."""

app = application(
    "freshet-trainer",
    "Continuous training of temporal graph neural networks on a store that the stream service writes.",
    *(run, score, evaluate, export, inspect, models, schedule, simulate, config, warm),
)


def main() -> None:
    """Entry point.

    Threads that wait for others in a product block. Those of OpenMP spin by default, which costs a loaded host many times
    the product's time. OpenMP reads this once, when torch is loaded; ranks inherit it.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    run_application(app, logging=LOGGING, extra="trainer")


if __name__ == "__main__":  # each rank of a launch
    main()
