"""``psg`` and ``psg-sorted``: one whole snapshot group on each GPU in each iteration, in order of time or of length."""

import numpy as np

from trainer.scheduling.schedule import Problem, Schedule, from_bins


def psg(problem: Problem) -> Schedule:
    """Partition by snapshot group (DyGNeX 5.1): group k is trained by GPU k mod G in iteration k div G."""
    slots = np.full((problem.most * problem.gpus, problem.per_gpu), -1, np.int64)
    slots[: len(problem.times_s), 0] = np.arange(len(problem.times_s))
    return Schedule(problem, slots.reshape(problem.most, problem.gpus, problem.per_gpu))


def psg_sorted(problem: Problem) -> Schedule:
    """The same with groups in order of length, so that those of an iteration take about the same time."""
    bins = np.full((len(problem.times_s), problem.per_gpu), -1, np.int64)
    bins[:, 0] = np.arange(len(bins))
    return from_bins(problem, bins)
