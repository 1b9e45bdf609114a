"""Kernels of the greedy schedule: bins are filled by peeling and folding."""

import numpy as np

from stream.arrays.kinds import Float64, Int64
from stream.kernels import njit


@njit(cache=True, nogil=True)
def fill_bins(times: Float64, gpus: int, per_gpu: int, alone: bool, bins: Int64) -> None:
    """Fill bins so that each G of them can make an iteration with little waste.

    Peel: while the longest item with the shortest ones is more than a mean bin, it sets the cap of G bins. Each takes
    the longest item left, and then the longest that still fit under the cap. Then, if ``alone``, empty places go
    beside the longest items: these set the cap of an iteration that is shorter than others, whose other bins are
    filled up to the cap. Fold the rest: the shortest bins take the longest items, in L rounds; with L = 2 that is the
    i-th longest with the i-th shortest.

    Args:
        times: (b · L,) seconds of all items, falling; empty places are items of zero seconds at the end.
        gpus: G.
        per_gpu: L.
        alone: Whether empty places are put beside the longest items.
        bins: (b, L), filled with numbers of items; b is a multiple of G.
    """
    items, room = len(times), gpus * per_gpu
    after = np.arange(items + 1)  # by union-find: the first remaining item from here on
    ends = np.array([0, items - 1])
    total, done = times.sum(), 0
    while items - done * per_gpu > room:
        cap = times[ends[0]] + _shortest(times, after, ends[1], per_gpu - 1)
        if cap <= total / (len(bins) - done):
            break
        for _ in range(gpus):
            total -= _fill(times, after, ends, ends[0], cap, bins[done])
            done += 1
    positive = int((times > 0).sum())
    while alone and items - done * per_gpu > room and per_gpu > 1 and times[ends[1]] == 0:
        cap, shortest = times[ends[0]], _last(after, positive - 1)
        for _ in range(gpus):
            begin = ends[0]
            if times[ends[1]] > 0:  # no place is empty: the longest item beside which others fit
                begin = _first(after, _first_up_to(times, cap - (per_gpu - 1) * times[shortest]))
                begin = ends[0] if begin == items else begin
            _fill(times, after, ends, begin, cap, bins[done])
            shortest = _last(after, shortest)
            done += 1
    rest = np.empty(items - done * per_gpu, np.int64)
    k = 0
    for item in range(items):
        if after[item] == item:
            rest[k] = item
            k += 1
    _fold(times, rest, bins[done:])


@njit(cache=True, nogil=True)
def _shortest(times: Float64, after: Int64, tail: int, count: int) -> float:
    """Seconds of the shortest remaining items."""
    total = 0.0
    for _ in range(count):
        tail = _last(after, tail)
        total += times[tail]
        tail -= 1
    return total


@njit(cache=True, nogil=True)
def _fill(times: Float64, after: Int64, ends: Int64, begin: int, cap: float, taken: Int64) -> float:
    """Fill a bin with an item and the longest that fit beside it under the cap; returns its seconds."""
    items, per_gpu = len(times), len(taken)
    load = 0.0
    for s in range(per_gpu):
        item = begin
        if s > 0:
            kept = (per_gpu - 1 - s) * times[ends[1]]
            item = _first(after, _first_up_to(times, cap - load - kept))
            if item == items:  # nothing fits: the shortest
                item = ends[1]
        taken[s] = item
        load += times[item]
        after[item] = item + 1
        ends[0] = _first(after, ends[0])
        ends[1] = _last(after, ends[1])
    return load


@njit(cache=True, nogil=True)
def _first(after: Int64, item: int) -> int:
    """The first remaining item from here on, or the number of items; paths are halved on the way."""
    while after[item] != item:
        after[item] = after[after[item]]
        item = after[item]
    return item


@njit(cache=True, nogil=True)
def _last(after: Int64, item: int) -> int:
    """The last remaining item up to here, or −1."""
    while item >= 0 and after[item] != item:
        item -= 1
    return item


@njit(cache=True, nogil=True)
def _first_up_to(times: Float64, limit: float) -> int:
    """The first item of falling times that is not above a limit, or the number of items."""
    low, high = 0, len(times)
    while low < high:
        middle = (low + high) // 2
        if times[middle] <= limit:
            high = middle
        else:
            low = middle + 1
    return low


@njit(cache=True, nogil=True)
def _fold(times: Float64, left: Int64, bins: Int64) -> None:
    """Deal items in rounds, each from the longest on to the bins from the shortest on."""
    count, per_gpu = bins.shape
    load = np.zeros(count)
    for s in range(per_gpu):
        order = np.argsort(load, kind="mergesort")
        for k in range(count):
            item = left[s * count + k]
            bins[order[k], s] = item
            load[order[k]] += times[item]
