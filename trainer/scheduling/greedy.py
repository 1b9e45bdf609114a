"""``greedy``: bins peeled and folded, sorted and cut into iterations, then improved by local search."""

from typing import NamedTuple

import numpy as np

from stream.arrays.kinds import Float64, Int64
from trainer.scheduling.annealing_kernels import anneal
from trainer.scheduling.bound import lower_bound_s
from trainer.scheduling.greedy_kernels import fill_bins
from trainer.scheduling.schedule import Problem, Schedule, from_bins
from trainer.scheduling.search_kernels import cut, level

ENOUGH = 1e-4
"""The search ends at this share above the lower bound."""
MORE = 3
"""Largest number of iterations tried, beyond the fewest."""
ROUNDS = 12
"""Rounds of the local search."""
ANNEALED, REHEATED = 2000, 50
"""Groups up to which random exchanges are tried, and up to which for all numbers of iterations and several heats."""
STEPS, MOST_STEPS = 6000, 1_000_000
"""Random exchanges for each group, and at most."""
HEATS = (0.1, 0.5, 2.0)
"""Initial cost of an exchange, as a share of a mean bin."""


class _Found(NamedTuple):
    """Bins, and the length of an epoch with them."""

    seconds: float
    times_s: Float64  # of all items, falling
    bins: Int64


def greedy(problem: Problem, seed: int = 0, steps: int = MOST_STEPS) -> Schedule:
    """Schedule groups in O(n log n), with random exchanges up to ``ANNEALED`` groups.

    ``seed`` is that of random exchanges, ``steps`` their largest number for each number of iterations.
    """
    order = np.argsort(-problem.times_s, kind="stable")
    goal_s = (1 + ENOUGH) * lower_bound_s(problem)
    best: dict[int, _Found] = {}
    for iterations in range(problem.fewest, min(problem.most, problem.fewest + MORE) + 1):
        alpha_s = problem.alpha_s * iterations
        filled = [_filled(problem, order, iterations, alone) for alone in (False, True)]
        for at, (_, times_s, bins) in enumerate(filled):
            seconds = level(times_s, bins, problem.gpus, ROUNDS, goal_s - alpha_s) + alpha_s
            filled[at] = _Found(seconds, times_s, bins)
        best[iterations] = min(filled, key=_seconds)
        if best[iterations].seconds <= goal_s:
            break
    if len(order) <= ANNEALED and steps:
        steps = min(steps, STEPS * len(order))
        small = len(order) <= REHEATED
        promising = sorted(best, key=lambda iterations: best[iterations].seconds)
        for heat in HEATS if small else HEATS[:1]:
            for iterations in promising if small else promising[:2]:
                _, times_s, bins = best[iterations]
                if min(map(_seconds, best.values())) <= goal_s:
                    break
                alpha_s = problem.alpha_s * iterations
                warmth_s = heat * float(times_s.mean()) * problem.per_gpu
                seconds = anneal(times_s, bins, problem.gpus, steps, warmth_s, seed, goal_s - alpha_s)
                best[iterations] = _Found(seconds + alpha_s, times_s, bins)
    bins = min(best.values(), key=_seconds).bins
    return from_bins(problem, np.append(order, np.full(bins.size - len(order), -1))[bins])


def _filled(problem: Problem, order: Int64, iterations: int, alone: bool) -> _Found:
    """Bins as they are first filled."""
    times_s = np.zeros(iterations * problem.room)
    times_s[: len(order)] = problem.times_s[order]
    bins = np.empty((iterations * problem.gpus, problem.per_gpu), np.int64)
    fill_bins(times_s, problem.gpus, problem.per_gpu, alone, bins)
    return _Found(cut(times_s, bins, problem.gpus) + problem.alpha_s * iterations, times_s, bins)


def _seconds(found: _Found) -> float:
    return found.seconds
