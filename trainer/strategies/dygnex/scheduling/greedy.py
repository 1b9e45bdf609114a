"""``greedy``: bins are filled by peeling and folding or as published, then mended by a local search and annealing."""

from typing import NamedTuple

import numpy as np

from freshet_graph.stream.arrays.kinds import Float64, Int64
from freshet_graph.stream.kernels import njit
from freshet_graph.trainer.strategies.dygnex.scheduling.paper import PAIR, paper
from freshet_graph.trainer.strategies.dygnex.scheduling.schedule import (
    Problem,
    Schedule,
    from_bins,
    lower_bound_s,
)

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
    epoch_s = cut(times, bins, gpus)
    for _ in range(rounds):
        if epoch_s <= goal:
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
        before, epoch_s = epoch_s, cut(times, bins, gpus)
        if epoch_s >= before * (1 - 1e-5):
            break
    return epoch_s


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
    best_bins, now = bins.copy(), best
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
            best_bins[:] = bins
    bins[:] = best_bins
    return best


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
            reserved_s = (per_gpu - 1 - s) * times[ends[1]]
            item = _first(after, _first_up_to(times, cap - load - reserved_s))
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


ENOUGH = 1e-4
"""The search ends at this share above the lower bound."""
MORE = 3
"""Largest number of iterations tried, beyond the fewest."""
ROUNDS = 12
"""Rounds of the local search."""
PUBLISHED = 300
"""Groups up to which DyGNeX-G, which is slow, is one of the first fillings: it finds pairs of equal sums that peeling misses."""
ANNEALED, REHEATED = 2000, 50
"""Groups up to which random exchanges are tried, and up to which for all numbers of iterations and several heats."""
STEPS, MOST_STEPS = 6000, 1_000_000
"""Random exchanges for each group, and at most."""
HEATS = (0.1, 0.5, 2.0)
"""Initial cost of an exchange, as a share of a mean bin."""


class _Packing(NamedTuple):
    """Bins, and the length of an epoch with them."""

    seconds: float
    times_s: Float64  # of all items, falling
    bins: Int64


def greedy(problem: Problem, seed: int = 0, steps: int = MOST_STEPS) -> Schedule:
    """Schedule groups in O(n log n), with random exchanges up to ``ANNEALED`` groups.

    ``seed`` is that of random exchanges, ``steps`` their largest number for each number of iterations.
    """
    order = np.argsort(-problem.times_s, kind="stable")
    goal_s = (1 + ENOUGH) * lower_bound_s(problem)
    best: dict[int, _Packing] = {}
    for iterations in range(problem.fewest, min(problem.most, problem.fewest + MORE) + 1):
        alpha_s = problem.alpha_s * iterations
        filled = [_filled(problem, order, iterations, alone) for alone in (False, True)]
        for number, (_, times_s, bins) in enumerate(filled):
            seconds = level(times_s, bins, problem.gpus, ROUNDS, goal_s - alpha_s) + alpha_s
            filled[number] = _Packing(seconds, times_s, bins)
        best[iterations] = min(filled, key=_seconds)
        if best[iterations].seconds <= goal_s:
            break
    unfinished = min(map(_seconds, best.values())) > goal_s
    if unfinished and len(order) <= PUBLISHED and problem.per_gpu >= PAIR:
        published = _published(problem, order)
        iterations = len(published.bins) // problem.gpus
        best[iterations] = min(published, best.get(iterations, published), key=_seconds)
    if len(order) <= ANNEALED and steps:
        steps = min(steps, STEPS * len(order))
        small = len(order) <= REHEATED
        promising = sorted(best, key=lambda iterations: best[iterations].seconds)
        for heat in HEATS if small else HEATS[:1]:
            for iterations in promising if small else promising[:2]:
                _, times_s, bins = best[iterations]
                if min(map(_seconds, best.values())) <= goal_s:
                    break
                alpha_s = problem.alpha_s * iterations
                warmth_s = heat * float(times_s.mean()) * problem.per_gpu
                seconds = anneal(times_s, bins, problem.gpus, steps, warmth_s, seed, goal_s - alpha_s)
                best[iterations] = _Packing(seconds + alpha_s, times_s, bins)
    bins = min(best.values(), key=_seconds).bins
    return from_bins(problem, np.append(order, np.full(bins.size - len(order), -1))[bins])


def _filled(problem: Problem, order: Int64, iterations: int, alone: bool) -> _Packing:
    """Bins as they are first filled."""
    times_s = np.zeros(iterations * problem.room)
    times_s[: len(order)] = problem.times_s[order]
    bins = np.empty((iterations * problem.gpus, problem.per_gpu), np.int64)
    fill_bins(times_s, problem.gpus, problem.per_gpu, alone, bins)
    return _Packing(cut(times_s, bins, problem.gpus) + problem.alpha_s * iterations, times_s, bins)


def _published(problem: Problem, order: Int64) -> _Packing:
    """Bins of DyGNeX-G; empty places are items of zero seconds."""
    slots = paper(problem).slots
    times_s = np.zeros(slots.size)
    times_s[: len(order)] = problem.times_s[order]
    bins = np.argsort(order)[slots]
    bins[slots < 0] = np.arange(len(order), slots.size)
    bins = bins.reshape(-1, problem.per_gpu)
    return _Packing(cut(times_s, bins, problem.gpus) + problem.alpha_s * len(slots), times_s, bins)


def _seconds(packing: _Packing) -> float:
    return packing.seconds
