"""A schedule of snapshot groups: the GPU and iteration of each group, and the cost."""

from dataclasses import dataclass

import numpy as np

from freshet_graph.stream.arrays.kinds import Float64, Int64
from freshet_graph.stream.kernels import njit


@dataclass(frozen=True, slots=True)
class Problem:
    """Groups to be scheduled (DyGNeX eq. 4 and 5).

    Attributes:
        times_s: float64 (n,), seconds that each group takes; not negative.
        gpus: G.
        per_gpu: L, groups that one GPU trains in one iteration at most.
        alpha_s: α, seconds of the all-reduce that ends each iteration.
    """

    times_s: Float64
    gpus: int
    per_gpu: int = 2
    alpha_s: float = 0.0

    @property
    def room(self) -> int:
        """Groups that fit into one iteration."""
        return self.gpus * self.per_gpu

    @property
    def fewest(self) -> int:
        """Iterations that any schedule has at least."""
        return -(-len(self.times_s) // self.room)

    @property
    def most(self) -> int:
        """Iterations that some best schedule does not exceed.

        Its bins, sorted by load and cut into chunks of G, cost no more in no more iterations, and no bin is empty.
        """
        return -(-len(self.times_s) // self.gpus)


@dataclass(frozen=True, slots=True)
class SearchLimits:
    """Limits of an algorithm, and its seed.

    Attributes:
        gap: Distance from the lower bound that is good enough for ``ilp``, as a share of the bound.
        time_s: Seconds that its solver may take.
        seed: Of random exchanges, and of the solver.
        steps: Most random exchanges for each number of iterations.
    """

    gap: float = 0.02
    time_s: float = 30.0
    seed: int = 0
    steps: int = 1_000_000


@dataclass(frozen=True, slots=True)
class Schedule:
    """An assignment of all groups.

    Attributes:
        problem: Groups and GPUs.
        slots: int64 (m, G, L), group numbers from 0; −1: empty.
    """

    problem: Problem
    slots: Int64

    @property
    def loads_s(self) -> Float64:
        """float64 (m, G), seconds that each GPU works in each iteration."""
        return np.append(self.problem.times_s, 0.0)[self.slots].sum(axis=2)

    @property
    def epoch_s(self) -> float:
        """Seconds of an epoch: the busiest GPU of each iteration, and α for each."""
        return float(self.loads_s.max(axis=1, initial=0.0).sum() + self.problem.alpha_s * len(self.slots))

    @property
    def efficiency(self) -> float:
        """Share of all GPUs' time in which they train; NaN if an epoch takes no time."""
        epoch_s = self.epoch_s
        return float(self.problem.times_s.sum() / (self.problem.gpus * epoch_s)) if epoch_s else float("nan")

    @property
    def imbalance(self) -> float:
        """Time of the busiest GPU over that of the least busy one in an epoch, without waiting (DyGNeX 5.2).

        It leaves out GPUs that never work, so show ``efficiency`` beside it. NaN if no GPU works.
        """
        busy_s = self.loads_s.sum(axis=0)
        busy_s = busy_s[busy_s > 0]
        return float(busy_s.max() / busy_s.min()) if len(busy_s) else float("nan")

    def iterations(self) -> list[list[list[int]]]:
        """The schedule as iterations of G lists of group numbers."""
        return [
            [[group for group in gpu if group >= 0] for gpu in iteration] for iteration in self.slots.tolist()
        ]


def from_bins(problem: Problem, bins: Int64) -> Schedule:
    """The best schedule of given bins: sorted by load and cut into chunks of G.

    Bins int64 (b, L) are groups that one GPU trains in one iteration; −1: none. In each iteration the fullest bin goes to
    the GPU that has worked least so far.
    """
    times_s = np.append(problem.times_s, 0.0)
    bins = bins[(bins >= 0).any(axis=1)]
    order = np.argsort(-times_s[bins].sum(axis=1), kind="stable")
    iterations = -(-len(bins) // problem.gpus)
    slots = np.full((iterations * problem.gpus, problem.per_gpu), -1, np.int64)
    slots[: len(bins)] = bins[order]
    return spread(Schedule(problem, slots.reshape(iterations, problem.gpus, problem.per_gpu)))


def spread(schedule: Schedule) -> Schedule:
    """The same iterations with GPUs exchanged, so that all work for about the same time in an epoch."""
    slots, loads_s = schedule.slots.copy(), schedule.loads_s
    busy_s = np.zeros(schedule.problem.gpus)
    for i, load_s in enumerate(loads_s):
        idlest, fullest = np.argsort(busy_s, kind="stable"), np.argsort(-load_s, kind="stable")
        slots[i, idlest] = schedule.slots[i, fullest]
        busy_s[idlest] += load_s[fullest]
    return Schedule(schedule.problem, slots)


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
