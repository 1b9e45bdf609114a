"""Kernels of the annealing: random exchanges of two items, of which fewer and fewer may lengthen the epoch."""

import numpy as np

from stream.arrays.kinds import Float64, Int64
from stream.kernels import njit
from trainer.scheduling.search_kernels import cut


@njit(cache=True, nogil=True)
def _tops(load: Float64, gpus: int, i: int, first: Int64, second: Float64) -> None:
    """The fullest bin of an iteration, and the load of the next; −1 with one GPU."""
    top, next_load = i * gpus, -1.0
    for b in range(i * gpus + 1, (i + 1) * gpus):
        if load[b] > load[top]:
            next_load, top = load[top], b
        elif load[b] > next_load:
            next_load = load[b]
    first[i], second[i] = top, next_load


@njit(cache=True, nogil=True)
def _rise(
    load: Float64, first: Int64, second: Float64, gpus: int, a: int, less: float, b: int, more: float
) -> float:
    """Seconds by which an epoch gets longer if bin ``a`` has ``less`` load and bin ``b`` ``more``."""
    i, j = a // gpus, b // gpus
    now = load[first[i]]
    if i != j:
        top = max(load[a] - less, second[i] if first[i] == a else now)
        other = max(load[b] + more, second[j] if first[j] == b else load[first[j]])
        return top - now + other - load[first[j]]
    if first[i] != a and first[i] != b:
        return max(now, load[a] - less, load[b] + more) - now
    top = max(load[a] - less, load[b] + more)
    for c in range(i * gpus, (i + 1) * gpus):
        if c not in (a, b):
            top = max(top, load[c])
    return top - now


@njit(cache=True, nogil=True)
def _swap(
    times: Float64, bins: Int64, place: Int64, load: Float64, first: Int64, second: Float64, gpus: int,
    x: int, y: int,
) -> None:  # fmt: skip
    """Exchange two items and update their bins."""
    per_gpu = bins.shape[1]
    p, q = place[x], place[y]
    place[x], place[y] = q, p
    bins[p // per_gpu, p % per_gpu], bins[q // per_gpu, q % per_gpu] = y, x
    for b in (p // per_gpu, q // per_gpu):
        load[b] = 0.0
        for s in range(per_gpu):
            load[b] += times[bins[b, s]]
        _tops(load, gpus, b // gpus, first, second)


@njit(cache=True, nogil=True)
def _see(
    times: Float64, bins: Int64, gpus: int, place: Int64, load: Float64, first: Int64, second: Float64
) -> None:
    """Fill in the places of items, the loads of bins, and the fullest bins."""
    count, per_gpu = bins.shape
    for b in range(count):
        load[b] = 0.0
        for s in range(per_gpu):
            place[bins[b, s]] = b * per_gpu + s
            load[b] += times[bins[b, s]]
    for i in range(count // gpus):
        _tops(load, gpus, i, first, second)


@njit(cache=True, nogil=True)
def anneal(times: Float64, bins: Int64, gpus: int, steps: int, heat: float, seed: int, goal: float) -> float:
    """Improve bins in place by random exchanges, of which fewer and fewer may lengthen the epoch; keep the best bins.

    Args:
        times: (b · L,) seconds of all items, falling.
        bins: (b, L) numbers of items.
        gpus: G; b is a multiple of it.
        steps: Exchanges to try.
        heat: Seconds that an exchange may cost at first, about.
        seed: The same seed gives the same bins.
        goal: Seconds of an epoch, without α, that are good enough.

    Returns:
        Seconds of an epoch without α.
    """
    np.random.seed(seed)
    count, per_gpu = bins.shape
    items, iterations = count * per_gpu, count // gpus
    place, load = np.empty(items, np.int64), np.empty(count)
    first, second = np.empty(iterations, np.int64), np.empty(iterations)
    best = cut(times, bins, gpus)
    kept, now = bins.copy(), best
    stages = 40
    for stage in range(stages):
        if best <= goal:
            break
        warmth = heat * 0.8**stage
        _see(times, bins, gpus, place, load, first, second)
        for _ in range(steps // stages):
            a = first[np.random.randint(iterations)]
            if np.random.random() < 0.3:
                a = np.random.randint(count)
            x, y = bins[a, np.random.randint(per_gpu)], np.random.randint(items)
            b = place[y] // per_gpu
            moved = times[x] - times[y]
            if a == b or moved == 0.0:
                continue
            rise = _rise(load, first, second, gpus, a, moved, b, moved)
            if rise <= 0 or np.random.random() < np.exp(-rise / warmth):
                _swap(times, bins, place, load, first, second, gpus, x, y)
        now = cut(times, bins, gpus)
        if now < best:
            best = now
            kept[:] = bins
    bins[:] = kept
    return best
