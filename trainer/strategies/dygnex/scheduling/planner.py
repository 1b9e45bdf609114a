"""Plans of a pass: the ranks and optimiser steps of all groups, planned again as groups come and go."""

from dataclasses import dataclass

import numpy as np

from freshet_graph.stream.arrays.kinds import Float64, Int64
from freshet_graph.trainer.strategies.dygnex.scheduling.schedule import (
    Problem,
    Schedule,
    SearchLimits,
    lower_bound_s,
)
from freshet_graph.trainer.strategies.dygnex.scheduling.solve import ALGORITHMS

SEARCHED = 2_000
"""Most random exchanges of a solver. Each pass is planned, and a pass may take half a second."""


@dataclass(frozen=True, slots=True)
class PassPlan:
    """A pass over groups.

    Attributes:
        schedule: By predicted seconds.
        gap: Share of the lower bound by which it is longer; NaN for ``fixed``, whose steps do not depend on it.
    """

    schedule: Schedule
    gap: float

    def with_slots(self, slots: Int64) -> "PassPlan":
        """The same groups by another assignment, as ``Schedule.slots``."""
        return PassPlan(Schedule(self.schedule.problem, slots), self.gap)

    def balance(self, measured_s: Float64, error: float) -> dict[tuple[str, str], float]:
        """Balance of the GPUs' work, predicted and measured; undefined figures are left out.

        Args:
            measured_s: float64 (n,), seconds that each group took.
            error: Of predicted seconds.
        """
        problem = self.schedule.problem
        measured = Schedule(
            Problem(measured_s, problem.gpus, problem.per_gpu, problem.alpha_s), self.schedule.slots
        )
        figures = {("gap", "predicted"): self.gap, ("error", "predicted"): error}
        for name, schedule in (("predicted", self.schedule), ("measured", measured)):
            figures["imbalance", name] = schedule.imbalance
            figures["efficiency", name] = schedule.efficiency
        return {key: value for key, value in figures.items() if np.isfinite(value)}


@dataclass(frozen=True, slots=True)
class Planner:
    """Plans passes.

    Attributes:
        gpus: G.
        composition: ``fixed``: steps follow from sizes alone; ``schedule``: the schedule groups them into steps.
        algorithm: Of ``ALGORITHMS``, for ``schedule``.
        per_gpu: L, groups of one GPU in one step, for ``schedule``.
        per_step: Groups of a step, for ``fixed``.
        alpha_s: α, seconds of the all-reduce that ends a step.
    """

    gpus: int
    composition: str
    algorithm: str
    per_gpu: int
    per_step: int
    alpha_s: float

    def plan(self, sizes: Float64, times_s: Float64, seed: list[int]) -> PassPlan:
        """PassPlan a pass.

        Args:
            sizes: float64 (n, 3) or more, nodes, edges and snapshots of each group first, one group at least.
            times_s: float64 (n,), predicted seconds of each; they do not affect the steps of ``fixed``.
            seed: Of the order of steps.
        """
        draw = np.random.default_rng(seed)
        if self.composition == "fixed":
            steps = fixed_steps(sizes[:, :3], self.per_step)
            steps = [steps[place] for place in draw.permutation(len(steps))]
            problem = Problem(times_s, self.gpus, max(map(len, steps)), self.alpha_s)
            return PassPlan(assigned(problem, steps), float("nan"))
        problem = Problem(times_s, self.gpus, self.per_gpu, self.alpha_s)
        schedule, _ = ALGORITHMS[self.algorithm](problem, SearchLimits(time_s=1.0, steps=SEARCHED))
        bound_s = lower_bound_s(problem)
        gap = schedule.epoch_s / bound_s - 1 if bound_s else float("nan")
        return PassPlan(Schedule(problem, draw.permutation(schedule.slots)), gap)


def fixed_steps(sizes: Float64, per_step: int) -> list[Int64]:
    """The groups of each optimiser step, the same for any number of GPUs and any measurements.

    Groups of about one size make a step, so that any number of GPUs can share it evenly.

    Args:
        sizes: float64 (n, 3), nodes, edges and snapshots of each group.
        per_step: Groups of a step; the last step has the rest.
    """
    order = np.argsort(-sizes.sum(axis=1), kind="stable")
    return [np.sort(order[first : first + per_step]) for first in range(0, len(order), per_step)]


def assigned(problem: Problem, steps: list[Int64]) -> Schedule:
    """Each step's groups, of any number, on the GPUs: the longest first, to the GPU with the least work.

    ``problem.per_gpu`` is the largest step's number of groups; ``steps`` has the group numbers of each step.
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
