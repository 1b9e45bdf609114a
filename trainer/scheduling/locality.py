"""Neighbouring groups on one GPU: among schedules of about the same length, the one that moves the fewest snapshots.

Group k covers the snapshots k … k + w − 1, so neighbouring groups share w − 1 of them. A GPU that keeps the snapshots of
an epoch receives each snapshot of its groups once.
"""

import numpy as np

from trainer.scheduling.locality_kernels import anneal_moves
from trainer.scheduling.schedule import Schedule

SLACK = 0.005
"""Share by which an epoch may become longer for fewer moves."""
STEPS = 2_000_000
"""Most exchanges tried; each group counts for 30,000."""


def moved(schedule: Schedule, window: int) -> int:
    """Snapshots sent to all GPUs in an epoch, each once per GPU.

    Args:
        schedule: Groups are numbered in the order of their windows.
        window: w, snapshots of a group.
    """
    slots = schedule.slots
    covered = np.zeros((schedule.problem.gpus, len(schedule.problem.times_s) + window - 1), np.bool_)
    for gpu in range(schedule.problem.gpus):
        groups = slots[:, gpu, :]
        covered[gpu, (groups[groups >= 0][:, None] + np.arange(window))] = True
    return int(covered.sum())


def keep_runs(
    schedule: Schedule, window: int, seed: int = 0, *, slack: float = SLACK, steps: int | None = None
) -> Schedule:
    """Exchange groups between GPUs so that fewer snapshots are moved.

    Args:
        schedule: A short one.
        window: w, snapshots of a group; with one, no two groups share any.
        seed: Of the exchanges.
        slack: Share by which an epoch may become longer.
        steps: Exchanges tried; by default 30,000 per group and ``STEPS`` at most.

    Returns:
        The same groups in no more iterations, never more moves than before. An epoch is at most ``slack`` longer.
    """
    problem = schedule.problem
    if window < 2 or problem.gpus < 2 or len(problem.times_s) < 2:
        return schedule
    limit_s = float(schedule.loads_s.max(axis=1).sum()) + slack * schedule.epoch_s
    slots = anneal_moves(
        schedule.slots.copy(), problem.times_s, np.argsort(problem.times_s, kind="stable"), limit_s, window,
        min(STEPS, 30_000 * len(problem.times_s)) if steps is None else steps, seed,
    )  # fmt: skip
    return Schedule(problem, slots[(slots >= 0).any(axis=(1, 2))])
