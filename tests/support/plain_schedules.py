"""The best schedule by trying all, and plain twins of the scheduler's kernels."""

from functools import cache
from itertools import combinations

INFINITE = float("inf")


def best_epoch(times: list[float], gpus: int, per_gpu: int, alpha: float) -> float:
    """Seconds of the shortest epoch of all schedules; for about ten groups."""
    groups = len(times)
    bins = {
        sum(1 << k for k in inside): sum(times[k] for k in inside)
        for size in range(1, per_gpu + 1)
        for inside in combinations(range(groups), size)
    }

    @cache
    def iteration(some: int, left: int) -> float:
        """The shortest iteration that trains some groups on so many GPUs."""
        if not some:
            return 0.0
        if not left:
            return INFINITE
        first = some & -some
        return min(
            (
                max(load, iteration(some & ~one, left - 1))
                for one, load in bins.items()
                if one & first and not one & ~some
            ),
            default=INFINITE,
        )

    @cache
    def epoch(some: int) -> float:
        """The shortest epoch of some groups."""
        if not some:
            return 0.0
        first, best = some & -some, INFINITE
        others = part = some & ~first
        while True:
            took = iteration(part | first, gpus)
            if took < best:
                best = min(best, took + alpha + epoch(others & ~part))
            if not part:
                return best
            part = (part - 1) & others

    return epoch((1 << groups) - 1)


def paper_pairs(times: list[float], gpus: int) -> list[list[list[float]]]:
    """DyGNeX-G, algorithm 2 line by line with its repairs: times by GPU and iteration, without zero groups."""
    left, iterations = sorted(times), []
    while len(left) > gpus:
        targets = [[left[-1]], *([left[-1], other] for other in left[:-1])]
        least, best = INFINITE, []
        for target in targets:
            unused = list(left)
            for one in target:
                unused.remove(one)
            pairs = [target, *closest_pairs(unused, sum(target), gpus - 1)]
            loads = [sum(pair) for pair in pairs]
            waste = max(loads) * gpus - sum(loads)
            if waste < least:
                least, best = waste, pairs
        for one in [one for pair in best for one in pair]:
            left.remove(one)
        iterations.append(best)
    return [*iterations, [[one] for one in left]] if left else iterations


def closest_pairs(unused: list[float], target: float, count: int) -> list[list[float]]:
    """As many pairs, or single groups, whose sums are closest to a target, one after the other."""
    found = []
    while unused and len(found) < count:
        items = [0.0, *unused]
        head, tail, closest, best = 0, len(items) - 1, INFINITE, []
        while head < tail:
            load = items[head] + items[tail]
            if abs(load - target) < abs(closest - target):
                closest, best = load, [items[head], items[tail]][0 if head else 1 :]
            if load < target:
                head += 1
            else:
                tail -= 1
        for one in best:
            unused.remove(one)
        found.append(best)
    return found
