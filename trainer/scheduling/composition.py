"""Optimiser steps that follow from the sizes of groups alone, and the ranks that train each step's groups."""

import numpy as np

from stream.arrays.kinds import Float64, Int64
from trainer.scheduling.schedule import Problem, Schedule


def fixed_steps(sizes: Float64, per_step: int) -> list[Int64]:
    """The groups of each optimiser step: the same for any number of GPUs and whatever was measured.

    Groups of about one size make a step, so that any number of GPUs can share it evenly.

    Args:
        sizes: float64 (n, 3), nodes, edges and snapshots of each group.
        per_step: Groups of a step; the last step has what is left.
    """
    order = np.argsort(-sizes.sum(axis=1), kind="stable")
    return [np.sort(order[at : at + per_step]) for at in range(0, len(order), per_step)]


def assigned(problem: Problem, steps: list[Int64]) -> Schedule:
    """Each step's groups on the GPUs, the longest first to the idlest; a step may have any number of them.

    Args:
        problem: What is scheduled; ``per_gpu`` is the largest step's number of groups.
        steps: Group numbers of each step.
    """
    slots = np.full((len(steps), problem.gpus, problem.per_gpu), -1, np.int64)
    busy_s = np.zeros(problem.gpus)
    for step, groups in enumerate(steps):
        load_s, number = np.zeros(problem.gpus), np.zeros(problem.gpus, np.int64)
        for group in sorted(groups.tolist(), key=lambda group: -problem.times_s[group]):
            gpu = int(np.lexsort((busy_s, load_s))[0])
            slots[step, gpu, number[gpu]] = group
            load_s[gpu] += problem.times_s[group]
            number[gpu] += 1
        busy_s += load_s
    return Schedule(problem, slots)
