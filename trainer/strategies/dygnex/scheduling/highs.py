"""The model of ``ilp`` for HiGHS, which comes with SciPy."""

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from freshet_graph.stream.arrays.kinds import Float64, Int64
from freshet_graph.trainer.strategies.dygnex.scheduling.schedule import (
    Problem,
    Schedule,
    SearchLimits,
    from_bins,
)


def solve(problem: Problem, limits: SearchLimits, first: Schedule, bound_s: float) -> tuple[Schedule, float]:
    """The best schedule found, and a lower bound in seconds, from a known bound.

    HiGHS takes neither a seed nor a start: ``first`` is the result if it finds no schedule in time.
    """
    groups, gpus, most = len(problem.times_s), problem.gpus, problem.most
    scale_s = float(problem.times_s.sum()) + most * problem.alpha_s
    times, alpha = problem.times_s / scale_s, problem.alpha_s / scale_s
    x = np.arange(groups * most * gpus).reshape(groups, most, gpus)
    z, used = x.size + np.arange(most), x.size + most + np.arange(most)
    rows: list[tuple[Int64, Float64, float, float]] = []  # columns, values, least, most

    def add(columns: list[Int64], values: list[Float64], low: float, high: float) -> None:
        rows.append((np.concatenate(columns), np.concatenate(values), low, high))

    one = np.ones(1)
    for k in range(groups):
        add([x[k].ravel()], [np.ones(most * gpus)], 1, 1)
    for i in range(most):
        for j in range(gpus):
            add([x[:, i, j], z[i : i + 1]], [times, -one], -np.inf, 0)
            add([x[:, i, j], used[i : i + 1]], [np.ones(groups), -problem.per_gpu * one], -np.inf, 0)
        if i:
            add([z[i - 1 : i + 1]], [np.array([1.0, -1.0])], 0, np.inf)
            add([used[i - 1 : i + 1]], [np.array([1.0, -1.0])], 0, np.inf)
    cost = np.concatenate([np.zeros(x.size), np.ones(most), np.full(most, alpha)])
    add([np.concatenate([z, used])], [cost[x.size :]], bound_s / scale_s * (1 - 1e-9), np.inf)
    least = np.zeros(len(cost))
    least[used[: problem.fewest]] = 1
    number = np.repeat(np.arange(len(rows)), [len(row[0]) for row in rows])
    columns, values = np.concatenate([row[0] for row in rows]), np.concatenate([row[1] for row in rows])
    solution = milp(
        cost,
        integrality=np.where(np.isin(np.arange(len(cost)), z), 0, 1),
        bounds=Bounds(least, 1),
        constraints=LinearConstraint(
            coo_array((values, (number, columns)), shape=(len(rows), len(cost))).tocsc(),
            np.array([row[2] for row in rows]),
            np.array([row[3] for row in rows]),
        ),
        options={"time_limit": limits.time_s, "mip_rel_gap": limits.gap / (1 + limits.gap)},
    )
    proven_s = bound_s if solution.mip_dual_bound is None else float(solution.mip_dual_bound) * scale_s
    if solution.x is None:
        return first, proven_s
    bins = np.full((most, gpus, problem.per_gpu), -1, np.int64)
    for i, j in np.ndindex(most, gpus):
        inside = np.flatnonzero(solution.x[x[:, i, j]] > 0.5)
        bins[i, j, : len(inside)] = inside
    return from_bins(problem, bins.reshape(most * gpus, problem.per_gpu)), proven_s
