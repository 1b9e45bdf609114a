"""Neighbouring groups on one GPU: among schedules of about the same length, the one that moves the fewest snapshots.

Group k covers the snapshots k … k + w − 1, so neighbouring groups share w − 1 of them. A GPU that keeps the snapshots of
an epoch receives each snapshot of its groups once.
"""

import numpy as np

from freshet_graph.stream.arrays.kinds import Float64, Int64
from freshet_graph.stream.kernels import njit
from freshet_graph.trainer.strategies.dygnex.scheduling.schedule import Schedule

SLACK = 0.005
"""Share by which an epoch may become longer for fewer moves."""
STEPS = 2_000_000
"""Most exchanges tried; each group counts for 30,000."""


def moved(schedule: Schedule, window: int) -> int:
    """Snapshots sent to all GPUs in an epoch, each once per GPU.

    Args:
        schedule: Groups are numbered in the order of their windows.
        window: w, snapshots of a group.
    """
    slots = schedule.slots
    covered = np.zeros((schedule.problem.gpus, len(schedule.problem.times_s) + window - 1), np.bool_)
    for gpu in range(schedule.problem.gpus):
        groups = slots[:, gpu, :]
        covered[gpu, (groups[groups >= 0][:, None] + np.arange(window))] = True
    return int(covered.sum())


def keep_runs(
    schedule: Schedule, window: int, seed: int = 0, *, slack: float = SLACK, steps: int | None = None
) -> Schedule:
    """Exchange groups between GPUs so that fewer snapshots are moved.

    Args:
        schedule: A short one.
        window: w, snapshots of a group; with one, no two groups share any.
        seed: Of the exchanges.
        slack: Share by which an epoch may become longer.
        steps: Exchanges tried; by default 30,000 per group and ``STEPS`` at most.

    Returns:
        The same groups in no more iterations, never more moves than before. An epoch is at most ``slack`` longer.
    """
    problem = schedule.problem
    if window < 2 or problem.gpus < 2 or len(problem.times_s) < 2:
        return schedule
    limit_s = float(schedule.loads_s.max(axis=1).sum()) + slack * schedule.epoch_s
    slots = anneal_moves(
        schedule.slots.copy(), problem.times_s, np.argsort(problem.times_s, kind="stable"), limit_s, window,
        min(STEPS, 30_000 * len(problem.times_s)) if steps is None else steps, seed,
    )  # fmt: skip
    return Schedule(problem, slots[(slots >= 0).any(axis=(1, 2))])


HOT, COLD = 2.0, 0.3
"""Snapshots by which an exchange may be worse at first and in the end."""


@njit(cache=True, nogil=True)
def _cover(counts: Int64, gpu: int, group: int, window: int, sign: int) -> int:
    """Add a group to a GPU, or remove it (``sign`` −1); returns the change of its number of snapshots."""
    if group < 0:
        return 0
    change = 0
    for s in range(group, group + window):
        if sign > 0:
            change += counts[gpu, s] == 0
            counts[gpu, s] += 1
        else:
            counts[gpu, s] -= 1
            change -= counts[gpu, s] == 0
    return change


@njit(cache=True, nogil=True)
def _top(loads: Float64, i: int) -> float:
    top = 0.0
    for g in range(loads.shape[1]):
        top = max(top, loads[i, g])
    return top


@njit(cache=True, nogil=True)
def _load(slots: Int64, times: Float64, i: int, g: int) -> float:
    load = 0.0
    for s in range(slots.shape[2]):
        if slots[i, g, s] >= 0:
            load += times[slots[i, g, s]]
    return load


@njit(cache=True, nogil=True)
def _put(
    slots: Int64, counts: Int64, place: Int64, i: int, g: int, s: int, j: int, h: int, r: int, window: int
) -> int:
    """Exchange two places; returns the change of moves."""
    a, b = slots[i, g, s], slots[j, h, r]
    change = _cover(counts, g, a, window, -1) + _cover(counts, h, b, window, -1)
    change += _cover(counts, g, b, window, 1) + _cover(counts, h, a, window, 1)
    slots[i, g, s], slots[j, h, r] = b, a
    gpus, per_gpu = slots.shape[1], slots.shape[2]
    if a >= 0:
        place[a] = (j * gpus + h) * per_gpu + r
    if b >= 0:
        place[b] = (i * gpus + g) * per_gpu + s
    return change


@njit(cache=True, nogil=True)
def anneal_moves(
    slots: Int64, times: Float64, order: Int64, limit: float, window: int, steps: int, seed: int
) -> Int64:
    """Exchange groups, or all groups of two places, while the epoch stays within a limit.

    Args:
        slots: int64 (m, G, L), group numbers, −1: empty; changed in place.
        times: float64 (n,), seconds of each group.
        order: int64 (n,), groups by seconds.
        limit: Largest sum over iterations of the busiest GPU's seconds.
        window: Snapshots of a group.
        steps: Exchanges tried.
        seed: Of the draw.

    Returns:
        int64 (m, G, L), the best assignment seen.
    """
    np.random.seed(seed)
    m, gpus, per_gpu = slots.shape
    n = len(times)
    counts = np.zeros((gpus, n + window - 1), np.int64)
    place, rank = np.zeros(n, np.int64), np.empty(n, np.int64)
    rank[order] = np.arange(n)
    loads = np.zeros((m, gpus))
    now, total = 0, 0.0
    for i in range(m):
        for g in range(gpus):
            loads[i, g] = _load(slots, times, i, g)
            for s in range(per_gpu):
                now += _cover(counts, g, slots[i, g, s], window, 1)
                if slots[i, g, s] >= 0:
                    place[slots[i, g, s]] = (i * gpus + g) * per_gpu + s
        total += _top(loads, i)
    best, best_slots = now, slots.copy()
    for step in range(steps):
        heat = HOT * (COLD / HOT) ** (step / steps)
        kind = np.random.randint(3)
        i, g, s = np.random.randint(m), np.random.randint(gpus), np.random.randint(per_gpu)
        whole = kind == 0
        if whole:  # all groups of two GPUs, in one iteration or in two
            j = i if np.random.randint(2) else np.random.randint(m)
            h, r = np.random.randint(gpus), s
        elif kind == 1 and slots[i, g, s] >= 0:  # two groups of about the same length
            near = rank[slots[i, g, s]] + np.random.randint(-4, 5)
            if near < 0 or near >= n:
                continue
            q = place[order[near]]
            j, h, r = q // (gpus * per_gpu), q // per_gpu % gpus, q % per_gpu
        else:
            j, h, r = np.random.randint(m), np.random.randint(gpus), np.random.randint(per_gpu)
        if g == h and (whole or i == j):
            continue
        first, last = (0, per_gpu) if whole else (0, 1)
        change = 0
        for k in range(first, last):
            change += _put(slots, counts, place, i, g, k if whole else s, j, h, k if whole else r, window)
        before_g, before_h = loads[i, g], loads[j, h]
        tops = _top(loads, i) + (_top(loads, j) if j != i else 0.0)
        loads[i, g], loads[j, h] = _load(slots, times, i, g), _load(slots, times, j, h)
        after = total - tops + _top(loads, i) + (_top(loads, j) if j != i else 0.0)
        if after <= limit and (change <= 0 or np.random.random() < np.exp(-change / heat)):
            now, total = now + change, after
            if now < best:
                best, best_slots = now, slots.copy()
            continue
        for k in range(first, last):
            _put(slots, counts, place, i, g, k if whole else s, j, h, k if whole else r, window)
        loads[i, g], loads[j, h] = before_g, before_h
    return best_slots
