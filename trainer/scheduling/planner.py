"""Which rank trains which groups in which optimiser step of a pass, planned anew as groups come and go."""

from dataclasses import dataclass

import numpy as np

from stream.arrays.kinds import Float64, Int64
from trainer.scheduling.bound import lower_bound_s
from trainer.scheduling.composition import assigned, fixed_steps
from trainer.scheduling.schedule import Limits, Problem, Schedule
from trainer.scheduling.solve import ALGORITHMS

COMPOSITIONS = ("fixed", "schedule")
SEARCHED = 2_000
"""Random exchanges of a solver, at most. A plan is made in every pass, which may take half a second."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A pass over groups.

    Attributes:
        schedule: By predicted seconds.
        gap: Share of the lower bound by which it is longer; NaN for ``fixed``, whose steps nobody chose by it.
    """

    schedule: Schedule
    gap: float

    def with_slots(self, slots: Int64) -> "Plan":
        """The same groups by another assignment, as ``Schedule.slots``."""
        return Plan(Schedule(self.schedule.problem, slots), self.gap)

    def balance(self, measured_s: Float64, error: float) -> dict[tuple[str, str], float]:
        """How evenly GPUs work, predicted and measured; figures without a meaning are left out.

        Args:
            measured_s: float64 (n,), seconds that each group took.
            error: Of predicted seconds.
        """
        problem = self.schedule.problem
        measured = Schedule(
            Problem(measured_s, problem.gpus, problem.per_gpu, problem.alpha_s), self.schedule.slots
        )
        found = {("gap", "predicted"): self.gap, ("error", "predicted"): error}
        for name, schedule in (("predicted", self.schedule), ("measured", measured)):
            found["imbalance", name] = schedule.imbalance
            found["efficiency", name] = schedule.efficiency
        return {key: value for key, value in found.items() if np.isfinite(value)}


@dataclass(frozen=True, slots=True)
class Planner:
    """Plans passes.

    Attributes:
        gpus: G.
        composition: ``fixed``: steps follow from sizes alone; ``schedule``: the schedule decides which groups make a step.
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

    def plan(self, sizes: Float64, times_s: Float64, seed: list[int]) -> Plan:
        """Plan a pass.

        Args:
            sizes: float64 (n, 3), nodes, edges and snapshots of each group, one group at least.
            times_s: float64 (n,), predicted seconds of each; of no consequence to the steps of ``fixed``.
            seed: Of the order of steps.
        """
        draw = np.random.default_rng(seed)
        if self.composition == "fixed":
            steps = fixed_steps(sizes, self.per_step)
            steps = [steps[at] for at in draw.permutation(len(steps))]
            problem = Problem(times_s, self.gpus, max(map(len, steps)), self.alpha_s)
            return Plan(assigned(problem, steps), float("nan"))
        problem = Problem(times_s, self.gpus, self.per_gpu, self.alpha_s)
        found, _ = ALGORITHMS[self.algorithm](problem, Limits(time_s=1.0, steps=SEARCHED))
        bound_s = lower_bound_s(problem)
        gap = found.epoch_s / bound_s - 1 if bound_s else float("nan")
        return Plan(Schedule(problem, draw.permutation(found.slots)), gap)
