"""A lower bound on an epoch: no schedule with the same GPUs, L and α is shorter."""

import numpy as np

from stream.arrays.kinds import Float64, Int64
from stream.kernels import njit
from trainer.scheduling.schedule import Problem


def lower_bound_s(problem: Problem) -> float:
    """Seconds that any schedule of the problem takes at least.

    Let T_1 ≥ T_2 ≥ … be the times of the iterations, without α. The largest of three bounds counts:

    - All GPUs are busy except for unavoidable waste: Σ T = (Σ t + waste) / G. T_i is at least the
      ((i − 1) L G + 1)-th largest group τ_i, since i − 1 iterations have no room for more. A bin whose groups are all
      at most τ_i / L wastes at least τ_i less their sum, and at most as many bins as there are longer groups avoid that.
    - Σ τ_i.
    - The fullest bins (by number) of all iterations have ⌈n / G⌉ groups together.

    α is paid in ⌈n / (L G)⌉ iterations at least.
    """
    times_s = -np.sort(-problem.times_s)
    if not len(times_s):
        return 0.0
    sums_s = np.concatenate([[0.0], np.cumsum(times_s)])
    tops_s = times_s[:: problem.room]
    shorter = np.searchsorted(-times_s, -tops_s / problem.per_gpu)
    wasted_s = _waste(tops_s, shorter, sums_s, problem.gpus, problem.per_gpu)
    together_s = float(times_s[len(times_s) - problem.most :].sum())
    work_s = max((float(sums_s[-1]) + wasted_s) / problem.gpus, float(tops_s.sum()), together_s)
    return work_s + problem.alpha_s * problem.fewest


@njit(cache=True, nogil=True)
def _waste(tops: Float64, shorter: Int64, sums: Float64, gpus: int, per_gpu: int) -> float:
    """Seconds of idle GPUs that no schedule avoids: the best division of iterations into ranges.

    Args:
        tops: (m,), least times of iterations, falling.
        shorter: (m,), number of groups longer than tops / L: the first that is not.
        sums: (n + 1,), of the longest groups.
        gpus: G.
        per_gpu: L.
    """
    count, groups = len(tops), len(sums) - 1
    caps = np.zeros(count + 1)
    caps[1:] = np.cumsum(tops)
    best = np.zeros(count + 1)
    for end in range(1, count + 1):
        best[end] = best[end - 1]
        for begin in range(end):
            bins = (end - begin) * gpus - shorter[end - 1]
            if bins <= 0:
                break
            # Bins with a longer group are assumed to be those with the largest caps: the others are the last ones.
            whole, rest = bins // gpus, bins % gpus
            least = gpus * (caps[end] - caps[end - whole])
            if rest:
                least += rest * tops[end - whole - 1]
            first = shorter[begin]
            filled = sums[min(groups, first + per_gpu * bins)] - sums[first]
            best[end] = max(best[end], best[begin] + least - filled)
    return best[count]
