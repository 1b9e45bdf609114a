"""``paper``: DyGNeX-G as published (algorithms 1 and 2), with additions where its listing is incomplete.

Used groups leave the list, the target's own pair too. The zero group can be used repeatedly. There may be fewer than
G − 1 pairs. The first of equal candidates stays. α is ignored.
"""

import heapq

import numpy as np

from freshet_graph.stream.arrays.kinds import Float64, Int64
from freshet_graph.stream.kernels import njit
from freshet_graph.trainer.strategies.dygnex.scheduling.schedule import Problem, Schedule, from_bins

PAIR = 2
"""Groups on a GPU in an iteration, at most."""


def paper(problem: Problem) -> Schedule:
    """Schedule groups by DyGNeX-G, in O(n² log n) for each iteration. With L = 1 groups are only sorted and cut: no pairs."""
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
        least, times_left = np.inf, times[left]
        for with_item in range(len(left) - 1):  # the longest alone, then with each other one
            waste = _waste(times_left, with_item, least, pairs)
            if waste < least:
                least = waste
                best[:] = pairs
        iterations[done] = np.take(left, best)
        done += 1
        unused = np.ones(len(left), np.bool_)
        unused[best.ravel()] = False
        unused[0] = True
        left = left[unused]
    if len(left) > 1:
        for place in range(1, len(left)):
            iterations[done, place - 1, 0] = left[place]
        done += 1
    return iterations[:done]


@njit(cache=True, nogil=True)
def _waste(times: Float64, with_item: int, least: float, pairs: Int64) -> float:
    """Seconds that GPUs wait (eq. 9) if all follow a target; infinite as soon as they reach ``least``.

    The listing walks over all items for each next pair. Here a heap has the closest later item of each item, so a pair costs a
    logarithm. What it pops first is what the walk meets first: of equal pairs that with the shortest, then the longest item.

    Args:
        times: Of the items left, rising, the zero group first.
        with_item: Beside the longest item; their sum is the target.
        least: The least so far.
        pairs: (G, 2), written: places in ``times``.
    """
    longest, gpus = len(times) - 1, len(pairs)
    top = total = target = times[longest] + times[with_item]
    used = np.zeros(len(times), np.bool_)
    used[longest] = used[with_item] = True
    used[0] = False  # the zero group can be used again
    pairs[:] = 0
    pairs[0, 0], pairs[0, 1] = longest, with_item
    reaches, tail = np.empty(longest, np.int64), len(times)
    for head in range(longest):  # the first later item that reaches the target with it
        while tail > 0 and times[head] + times[tail - 1] >= target:
            tail -= 1
        reaches[head] = max(tail, head + 1)
    closest = [
        _closest(times, head, reaches[head], target, used) for head in range(longest) if not used[head]
    ]
    heapq.heapify(closest)
    j = 1
    while j < gpus and closest[0][0] < np.inf:
        _, head, tail = closest[0]
        if used[head]:
            heapq.heappop(closest)
            continue
        if not used[-tail]:
            load = times[head] + times[-tail]
            pairs[j, 0], pairs[j, 1] = head, -tail
            used[head] = used[-tail] = True
            used[0] = False
            top, total, j = max(top, load), total + load, j + 1
            if top * j - total >= least:  # each further pair adds to it
                return np.inf
        if not used[head]:
            heapq.heapreplace(closest, _closest(times, head, reaches[head], target, used))
    return top * gpus - total


@njit(cache=True, nogil=True)
def _closest(times: Float64, head: int, reaches: int, target: float, used: Int64) -> tuple[float, int, int]:
    """How far an item and its best later one miss a target, and both places, the later one negative; infinite without one."""
    over, under = reaches, reaches - 1
    while over < len(times) and used[over]:
        over += 1
    while under > head and used[under]:
        under -= 1
    above = times[head] + times[over] - target if over < len(times) else np.inf
    below = target - (times[head] + times[under]) if under > head else np.inf
    return (above, head, -over) if above <= below else (below, head, -under)


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
