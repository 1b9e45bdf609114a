"""``freshet-trainer`` in a process forked from one that has loaded it."""

import torch._dynamo  # noqa: F401  the first optimiser of a process loads it, which is most of a start
from command_job import begin

import trainer.service  # noqa: F401
from trainer.cli import main
from trainer.models.interface import MODELS

MODELS.all()  # loads them


def freshet_trainer(arguments: list[str], log: str) -> None:
    """The whole command; ends the process."""
    begin(["freshet-trainer", *arguments], log)
    main()
