"""Kernels of the local search: exchanges of two items of different bins that lengthen no iteration."""

import numpy as np

from stream.arrays.kinds import Float64, Int64
from stream.kernels import njit

REACH = 48
"""Places tried for one item of the fullest bin, nearest in time first."""


@njit(cache=True, nogil=True)
def cut(times: Float64, bins: Int64, gpus: int) -> float:
    """Sort bins by load, falling, in place, so that each G make an iteration; returns Σ of the fullest."""
    count, per_gpu = bins.shape
    load = np.zeros(count)
    for b in range(count):
        for s in range(per_gpu):
            load[b] -= times[bins[b, s]]
    order = np.argsort(load, kind="mergesort")
    bins[:] = bins[order]
    return -load[order][::gpus].sum()


@njit(cache=True, nogil=True)
def level(times: Float64, bins: Int64, gpus: int, rounds: int, goal: float) -> float:
    """Lower the fullest bins of iterations in place, by exchanges that lengthen no iteration.

    In each round a bin above its iteration's target, fullest first, exchanges an item for a shorter one whose bin has
    slack. The target lies at a quarter of the way from the mean bin to the fullest one. A bin that finds none ends its
    iteration's turn. After each round bins are sorted and cut again, which never makes an epoch longer.

    Args:
        times: (b · L,) seconds of all items, falling.
        bins: (b, L) numbers of items.
        gpus: G; b is a multiple of it.
        rounds: Most rounds.
        goal: Seconds of an epoch, without α, that are good enough.

    Returns:
        Seconds of an epoch without α.
    """
    count, per_gpu = bins.shape
    place, load, caps = np.empty(count * per_gpu, np.int64), np.empty(count), np.empty(count // gpus)
    found = cut(times, bins, gpus)
    for _ in range(rounds):
        if found <= goal:
            break
        for b in range(count):
            load[b] = 0.0
            for s in range(per_gpu):
                place[bins[b, s]] = b * per_gpu + s
                load[b] += times[bins[b, s]]
        caps[:] = load[::gpus]
        for i in range(count // gpus):
            mean = load[i * gpus : (i + 1) * gpus].mean()
            target = mean + (caps[i] - mean) / 4
            for b in range(i * gpus, (i + 1) * gpus):
                caps[i] = max(load[b], target)
                if load[b] <= target or not _lower(times, bins, place, load, caps, gpus, b, target):
                    break
        before, found = found, cut(times, bins, gpus)
        if found >= before * (1 - 1e-5):
            break
    return found


@njit(cache=True, nogil=True)
def _lower(
    times: Float64, bins: Int64, place: Int64, load: Float64, caps: Float64, gpus: int, a: int, target: float
) -> bool:
    """Bring a bin to its target by one exchange that raises no bin above its cap; False if none is near."""
    per_gpu, items = bins.shape[1], len(times)
    for s in range(per_gpu):
        item = bins[a, s]
        other, step = item, 1
        for tried in range(REACH):
            other += step
            if tried % 8 == 7:
                step *= 2
            if other >= items:
                break
            moved = times[item] - times[other]
            if load[a] - moved > target:
                continue
            q = place[other]
            b = q // per_gpu
            i = b // gpus
            if b == a or load[b] + moved > (target if i == a // gpus else caps[i]):
                continue
            place[item], place[other] = q, a * per_gpu + s
            bins[a, s], bins[b, q % per_gpu] = other, item
            load[a] -= moved
            load[b] += moved
            return True
    return False
