"""``paper``: DyGNeX-G as published (algorithms 1 and 2), with additions where its listing is incomplete.

Used groups leave the list, the target's own pair too. The zero group can be used repeatedly. There may be fewer than
G − 1 pairs. The first of equal candidates stays. α is ignored.
"""

import numpy as np

from freshet_graph.stream.arrays.kinds import Float64, Int64
from freshet_graph.stream.kernels import njit
from freshet_graph.trainer.strategies.dygnex.scheduling.schedule import Problem, Schedule, from_bins

PAIR = 2
"""Groups on a GPU in an iteration, at most."""


def paper(problem: Problem) -> Schedule:
    """Schedule groups by DyGNeX-G, in O(n³). With L = 1 there are no pairs: groups are only sorted and cut."""
    if problem.per_gpu < PAIR:
        return psg_sorted(problem)
    order = np.argsort(problem.times_s, kind="stable")
    pairs = _pairs(np.append(0.0, problem.times_s[order]), problem.gpus)  # item 0 is the zero group
    slots = np.full((*pairs.shape[:2], problem.per_gpu), -1, np.int64)
    slots[:, :, :PAIR] = np.append(-1, order)[pairs]
    return Schedule(problem, slots)


@njit(cache=True, nogil=True)
def _pairs(times: Float64, gpus: int) -> Int64:
    """Pairs of items for every GPU and iteration, (m, G, 2).

    Args:
        times: (n + 1,), rising, the zero group first.
        gpus: G.
    """
    left = np.arange(len(times))
    iterations = np.zeros((len(times), gpus, PAIR), np.int64)
    pairs, best = np.zeros((gpus, PAIR), np.int64), np.zeros((gpus, PAIR), np.int64)
    done = 0
    while len(left) - 1 > gpus:
        least = np.inf
        for with_item in range(len(left) - 1):  # the longest alone, then with each other one
            used = np.zeros(len(left), np.bool_)
            waste = _waste(times, left, with_item, least, used, pairs)
            if waste < least:
                least = waste
                best[:] = pairs
        iterations[done] = best
        done += 1
        taken = np.zeros(len(times), np.bool_)
        for item in best.flat:
            taken[item] = True
        taken[0] = False
        left = left[~taken[left]]
    if len(left) > 1:
        for place in range(1, len(left)):
            iterations[done, place - 1, 0] = left[place]
        done += 1
    return iterations[:done]


@njit(cache=True, nogil=True)
def _waste(times: Float64, left: Int64, with_item: int, least: float, used: Int64, pairs: Int64) -> float:
    """Seconds that GPUs wait (eq. 9) if all follow a target; infinite as soon as they reach ``least``."""
    longest, gpus = len(left) - 1, len(pairs)
    target = times[left[longest]] + times[left[with_item]]
    pairs[:] = 0
    pairs[0, 0], pairs[0, 1] = left[longest], left[with_item]
    used[longest] = used[with_item] = True
    used[0] = False
    top, total = target, target
    for j in range(1, gpus):
        head, tail = _closest(times, left, target, used)
        if tail == 0:
            break
        load = times[left[head]] + times[left[tail]]
        pairs[j, 0], pairs[j, 1] = left[head], left[tail]
        used[head] = used[tail] = True
        used[0] = False
        top, total = max(top, load), total + load
        if top * (j + 1) - total >= least:  # each further pair adds to it
            return np.inf
    return top * gpus - total


@njit(cache=True, nogil=True)
def _closest(times: Float64, left: Int64, target: float, used: Int64) -> tuple[int, int]:
    """The pair whose sum is closest to a target, by two pointers; (0, 0) if no pair is left."""
    head, tail = 0, len(left) - 1
    closest, best_head, best_tail = np.inf, 0, 0
    while True:
        while tail > 0 and used[tail]:
            tail -= 1
        while head < tail and used[head]:
            head += 1
        if head >= tail:
            return best_head, best_tail
        load = times[left[head]] + times[left[tail]]
        if abs(load - target) < abs(closest - target):
            closest, best_head, best_tail = load, head, tail
        if load < target:
            head += 1
        else:
            tail -= 1


def psg(problem: Problem) -> Schedule:
    """Partition by snapshot group (DyGNeX 5.1): group k is trained by GPU k mod G in iteration k div G."""
    slots = np.full((problem.most * problem.gpus, problem.per_gpu), -1, np.int64)
    slots[: len(problem.times_s), 0] = np.arange(len(problem.times_s))
    return Schedule(problem, slots.reshape(problem.most, problem.gpus, problem.per_gpu))


def psg_sorted(problem: Problem) -> Schedule:
    """The same with groups in order of length, so that those of an iteration take about the same time."""
    bins = np.full((len(problem.times_s), problem.per_gpu), -1, np.int64)
    bins[:, 0] = np.arange(len(bins))
    return from_bins(problem, bins)
