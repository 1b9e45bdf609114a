"""The model of ``ilp`` for CP-SAT (OR-tools), with a schedule as hint and the lower bound as constraint."""

import numpy as np
from ortools.sat.python import cp_model

from freshet_graph.trainer.strategies.dygnex.scheduling.schedule import (
    Problem,
    Schedule,
    SearchLimits,
    from_bins,
)

UNITS = 1 << 30
"""Time is counted in whole units, so many for all groups and all α together."""
WORKERS = 8


def solve(problem: Problem, limits: SearchLimits, first: Schedule, bound_s: float) -> tuple[Schedule, float]:
    """The best schedule found, and a lower bound in seconds, from a first schedule and a known bound."""
    groups, gpus, most = len(problem.times_s), problem.gpus, problem.most
    unit_s = (float(problem.times_s.sum()) + most * problem.alpha_s) / UNITS
    times = np.rint(problem.times_s / unit_s).astype(int).tolist()
    alpha = round(problem.alpha_s / unit_s)
    model = cp_model.CpModel()
    x = [[[model.new_bool_var("") for _ in range(gpus)] for _ in range(most)] for _ in range(groups)]
    z = [model.new_int_var(0, sum(times), "") for _ in range(most)]
    used = [model.new_bool_var("") for _ in range(most)]
    for k in range(groups):
        model.add_exactly_one(x[k][i][j] for i in range(most) for j in range(gpus))
    for i in range(most):
        loads = [sum(times[k] * x[k][i][j] for k in range(groups)) for j in range(gpus)]
        for j in range(gpus):
            model.add(z[i] >= loads[j])
            model.add(sum(x[k][i][j] for k in range(groups)) <= problem.per_gpu * used[i])
        model.add(gpus * z[i] >= sum(loads))
        for k in range(groups):
            model.add(z[i] >= times[k] * sum(x[k][i]))
        if i < problem.fewest:
            model.add(used[i] == 1)
        if i:
            model.add(z[i - 1] >= z[i])
            model.add_implication(used[i], used[i - 1])
    epoch = sum(z) + alpha * sum(used)
    rounding = groups + most  # half a unit for each time and each α
    model.add(epoch >= int(bound_s / unit_s) - rounding)
    model.minimize(epoch)
    in_order = first.slots[np.argsort(-first.loads_s.max(axis=1), kind="stable")]
    slot_of = {
        k: (i, j) for i, iteration in enumerate(in_order) for j, gpu in enumerate(iteration) for k in gpu
    }
    for k in range(groups):
        for i in range(most):
            for j in range(gpus):
                model.add_hint(x[k][i][j], slot_of[k] == (i, j))
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = limits.time_s
    solver.parameters.relative_gap_limit = limits.gap / (1 + limits.gap)  # of the schedule, not of the bound
    solver.parameters.random_seed = limits.seed
    solver.parameters.num_workers = WORKERS
    if solver.solve(model) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return first, bound_s
    bins = np.full((most * gpus, problem.per_gpu), -1, np.int64)
    for i in range(most):
        for j in range(gpus):
            inside = [k for k in range(groups) if solver.boolean_value(x[k][i][j])]
            bins[i * gpus + j, : len(inside)] = inside
    return from_bins(problem, bins), (solver.best_objective_bound - rounding) * unit_s
