"""Targets of a batch by load: equal numbers from each of several groups of similar load (DynaHB section 4.2)."""

import numpy as np

from stream.arrays.kinds import Float64, Int64

GROUPS = 10
"""N_bg of the authors' code."""


class LoadBalancedSampler:
    """Draws targets so that every batch of a size has nearly the same load.

    Loads have heavy tails, so a group is divided again, into as many strata as it has targets in the batch.

    Args:
        load: float64 (n,), of each candidate.
        groups: N_bg; there are never more than candidates.
    """

    def __init__(self, load: Float64, groups: int = GROUPS) -> None:
        self._order = np.argsort(-load, kind="stable")
        self._size, groups = len(load), max(1, min(groups, len(load)))
        numbers = np.arange(groups + 1)
        self._begins: Int64 = numbers * (self._size // groups) + np.minimum(numbers, self._size % groups)

    def draw(self, count: int, generator: np.random.Generator) -> Int64:
        """Distinct candidates, int64 (min(count, n),), ascending: count / N_bg of each group, the rest of drawn groups."""
        count = min(count, self._size)
        quotas = self._quotas(count, generator)
        group = np.repeat(np.arange(len(quotas)), quotas)
        of, sizes = quotas[group], np.diff(self._begins)[group]
        stratum = np.arange(count) - (np.cumsum(quotas) - quotas)[group]
        low, high = stratum * sizes // of, (stratum + 1) * sizes // of
        drawn = self._begins[group] + low + (generator.random(count) * (high - low)).astype(np.int64)
        return np.sort(self._order[drawn])

    def _quotas(self, count: int, generator: np.random.Generator) -> Int64:
        sizes = np.diff(self._begins)
        quotas = np.minimum(count // len(sizes), sizes)
        while (left := count - int(quotas.sum())) > 0:
            room = np.flatnonzero(quotas < sizes)
            quotas[generator.permutation(room)[:left]] += 1
        return quotas
