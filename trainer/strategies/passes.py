"""One pass of a strategy over its examples: it says what its steps are, and all else of a pass stands here."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from torch import Tensor, nn

from freshet_graph.stream.arrays.kinds import Int64
from freshet_graph.stream.service.heartbeat import beat
from freshet_graph.trainer.learning.step import Learner
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.strategies.interface import StepReport


@dataclass(slots=True)
class Step:
    """One optimiser step of a pass.

    A step whose gradients are summed is one step of all ranks, and has their counts. A rank that steps alone has its own.

    Attributes:
        loss: Of this rank, a scalar, or a function that computes its gradients (see ``Learner.follow``); None: nothing to
            learn in this step.
        queries: Questions that are learned.
        items: Events or nodes that no other step of the pass has; if steps share some, their numbers, int64.
        weight: Of this rank's ``loss`` in the sum over ranks, unless it is a function; None: 1 / ``queries``.
        scale: Factor from ``loss`` to the sum over this rank's questions: their number, if it is a mean.
        replayed: Old events learned again, by a step that is none of those reported.
        summed: Whether ``loss`` leaves gradients that are already summed over ranks; the strategy sums the losses, too.
        left_out: Whether loss or gradient was not finite; known after the pass.
    """

    loss: Tensor | Callable[[], Tensor | None] | None
    queries: int
    items: int | Int64
    weight: float | None = None
    scale: int = 1
    replayed: int = 0
    summed: bool = False
    left_out: bool = False


def run(model: nn.Module, learner: Learner, ranks: Ranks, steps: Iterable[Step]) -> StepReport:
    """Take the steps of a pass; a collective.

    Args:
        model: In training mode while steps are made and taken.
        learner: Takes them. One that sums gradients takes equally many steps on all ranks.
        ranks: All ranks.
        steps: Each is made after the one before was taken.

    Returns:
        The report, without figures of the strategy. Steps that were left out count as ``nonfinite`` only.
    """
    every: list[Step] = []
    model.train()
    for step in steps:
        beat()
        if step.loss is None or isinstance(step.loss, Tensor):
            weight = 1 / max(step.queries, 1) if step.weight is None else step.weight
            learner.step(step.loss, weight, step.scale)
        else:
            learner.follow(step.loss, summed=step.summed, scale=step.scale)
        step.loss = None  # which holds the graph of its computation
        every.append(step)
    model.eval()
    taken, losses = [], []
    for step, (loss, step.left_out) in zip(every, learner.settled(), strict=True):
        if not step.left_out:
            taken.append(step)
            losses.append(loss)
    loss, queries, events = math.fsum(losses), sum(step.queries for step in taken), _distinct(taken)
    if learner.alone:  # otherwise losses came with the gradients, and every rank knows the counts
        loss, *counts = ranks.total([loss, queries, events])
        queries, events = (int(count) for count in counts)
    return StepReport(
        steps=sum(not step.replayed for step in every),
        events=events,
        loss=loss / queries if queries else None,
        replayed=sum(step.replayed for step in taken),
        nonfinite=len(every) - len(taken),
        seconds=learner.seconds(),
    )


def _distinct(taken: list[Step]) -> int:
    """Items of some steps; those with numbers are counted once."""
    numbers = [step.items for step in taken if isinstance(step.items, np.ndarray)]
    counted = sum(int(step.items) for step in taken if not isinstance(step.items, np.ndarray))
    return counted + (len(np.unique(np.concatenate(numbers))) if numbers else 0)
