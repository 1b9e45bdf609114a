"""Every algorithm by its name, and the figures of a schedule."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from freshet_graph.stream.nearest import did_you_mean
from freshet_graph.stream.service.failure import Failure
from freshet_graph.trainer.strategies.dygnex.scheduling.greedy import greedy
from freshet_graph.trainer.strategies.dygnex.scheduling.ilp import ilp
from freshet_graph.trainer.strategies.dygnex.scheduling.locality import keep_runs, moved
from freshet_graph.trainer.strategies.dygnex.scheduling.paper import paper, psg, psg_sorted
from freshet_graph.trainer.strategies.dygnex.scheduling.schedule import (
    Problem,
    Schedule,
    SearchLimits,
    lower_bound_s,
)

Algorithm = Callable[[Problem, SearchLimits], tuple[Schedule, float]]


def _bounded(algorithm: Callable[[Problem, SearchLimits], Schedule]) -> Algorithm:
    return lambda problem, limits: (algorithm(problem, limits), lower_bound_s(problem))


ALGORITHMS: dict[str, Algorithm] = {
    "greedy": _bounded(lambda problem, limits: greedy(problem, limits.seed, limits.steps)),
    "paper": _bounded(lambda problem, _: paper(problem)),
    "ilp": ilp,
    "psg": _bounded(lambda problem, _: psg(problem)),
    "psg-sorted": _bounded(lambda problem, _: psg_sorted(problem)),
    "auto": lambda problem, limits: ALGORITHMS[resolved("auto", problem)](problem, limits),
}

FEW = 100
"""Groups from which ``auto`` no longer takes the integer program (DyGNeX appendix G)."""


def resolved(algorithm: str, problem: Problem) -> str:
    """The algorithm that schedules a problem: for ``auto`` ``ilp`` below ``FEW`` groups, else ``greedy``."""
    if algorithm != "auto":
        return algorithm
    return "ilp" if len(problem.times_s) < FEW else "greedy"


_SMALL = Problem(np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.5]), 2)
"""Its best schedule lies above the lower bound, so that no part of a search is left out."""


@dataclass(frozen=True, slots=True)
class Solved:
    """A schedule and how it was found.

    Attributes:
        algorithm: Its name; of ``auto``, the one that it chose.
        schedule: The assignment.
        lower_bound_s: Seconds that any schedule of the same problem takes at least.
        solve_s: Seconds that the algorithm took, without compilation.
        moves: Snapshots sent to GPUs in an epoch, with and without regard to neighbours; None if no window was given.
    """

    algorithm: str
    schedule: Schedule
    lower_bound_s: float
    solve_s: float
    moves: tuple[int, int] | None = None

    @property
    def gap(self) -> float:
        """Share of the lower bound by which an epoch is longer; NaN if the bound is zero."""
        return self.schedule.epoch_s / self.lower_bound_s - 1 if self.lower_bound_s else float("nan")

    def figures(self) -> dict[str, Any]:
        """Figures by the keys of docs/cli.md."""
        problem = self.schedule.problem
        return {
            "algorithm": self.algorithm,
            "groups": len(problem.times_s),
            "gpus": problem.gpus,
            "iterations": len(self.schedule.slots),
            "epoch_s": self.schedule.epoch_s,
            "lower_bound_s": self.lower_bound_s,
            "gap": self.gap,
            "imbalance": self.schedule.imbalance,
            "efficiency": self.schedule.efficiency,
            "solve_s": self.solve_s,
            **({} if self.moves is None else dict(zip(("moved", "moved_before"), self.moves, strict=True))),
        }


def require_algorithm(name: str) -> None:
    """Check the name of an algorithm.

    Raises:
        Failure: It does not exist.
    """
    if name not in ALGORITHMS:
        raise Failure(f"--algorithm {name} does not exist{did_you_mean(name, list(ALGORITHMS))}")


def solve(
    problem: Problem, algorithm: str, limits: SearchLimits | None = None, window: int | None = None
) -> Solved:
    """Schedule groups by an algorithm of ``ALGORITHMS``.

    Args:
        problem: With one group at least.
        algorithm: Its name.
        limits: Seed, and limits of ``ilp``.
        window: Snapshots of a group; if given, neighbouring groups stay on one GPU where an epoch hardly gets longer.
    """
    limits, algorithm = limits or SearchLimits(), resolved(algorithm, problem)
    ready = "greedy" if algorithm == "ilp" else algorithm
    # Kernels are compiled, or loaded from their cache, before time is measured.
    warm_up, _ = ALGORITHMS[ready](_SMALL, limits)
    if window is not None:
        keep_runs(warm_up, window, steps=1)
    began = time.perf_counter()
    schedule, bound_s = ALGORITHMS[algorithm](problem, limits)
    if window is None:
        return Solved(algorithm, schedule, bound_s, time.perf_counter() - began)
    near = keep_runs(schedule, window, limits.seed)
    took_s = time.perf_counter() - began
    return Solved(algorithm, near, bound_s, took_s, (moved(near, window), moved(schedule, window)))
