"""``ilp``: DyGNeX-L, integer linear programming to within a gap, by CP-SAT (extra ``ilp``) or else SciPy's HiGHS.

The model (eq. 6 to 8) has x[k, i, j], whether group k is trained in iteration i by GPU j, and z[i], the length of
iteration i. Under minimisation z[i] ≥ Σ t[k] x[k, i, j] is enough: neither the running maximum nor the big M of the
published linearisation is needed. The number of iterations is free, so α counts. Iterations are in order of length.
"""

import importlib.util

from freshet_graph.stream.optional import package
from freshet_graph.trainer.strategies.dygnex.scheduling.greedy import greedy
from freshet_graph.trainer.strategies.dygnex.scheduling.schedule import (
    Problem,
    Schedule,
    SearchLimits,
    lower_bound_s,
)

TO_THE_END = 12
"""Groups up to which the gap is ignored: the best schedule is found as fast."""
LARGEST = 100_000
"""Largest number of variables with which a solver makes progress within seconds."""


def ilp(problem: Problem, limits: SearchLimits, solver: str | None = None) -> tuple[Schedule, float]:
    """The best schedule found within the limits, and a lower bound in seconds.

    The greedy schedule is the start. It is the result if its gap is small enough or the model is too large for a solver.
    ``solver`` is ``cp-sat`` or ``highs``; None: CP-SAT if it is installed, else SciPy's HiGHS.
    """
    first, bound_s = greedy(problem, limits.seed, limits.steps), lower_bound_s(problem)
    groups = len(problem.times_s)
    gap = limits.gap if groups > TO_THE_END else 0.0
    variables = groups * problem.most * problem.gpus
    if first.epoch_s <= (1 + max(gap, 1e-12)) * bound_s or variables > LARGEST:
        return first, bound_s
    limits = SearchLimits(gap, limits.time_s, limits.seed)
    if solver is None:
        solver = "cp-sat" if importlib.util.find_spec("ortools") else "highs"
    if solver == "cp-sat":
        from freshet_graph.trainer.strategies.dygnex.scheduling.cp_sat import solve
    else:
        package("scipy", "the algorithm ilp", "'freshet-graph[ilp]'")
        from freshet_graph.trainer.strategies.dygnex.scheduling.highs import solve
    exact, proven_s = solve(problem, limits, first, bound_s)
    best = min(first, exact, key=lambda schedule: schedule.epoch_s)
    return best, min(max(bound_s, proven_s), best.epoch_s)
