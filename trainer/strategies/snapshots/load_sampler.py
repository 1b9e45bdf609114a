"""Targets of a batch by load: equally many from each of several groups of like load (DynaHB section 4.2)."""

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
        order = np.argsort(-load, kind="stable")
        self._groups: list[Int64] = np.array_split(order, max(1, min(groups, len(order))))
        self._size = len(order)

    def draw(self, count: int, generator: np.random.Generator) -> Int64:
        """Distinct candidates, int64 (min(count, n),), ascending: count / N_bg of each group; those left over of drawn groups.

        Args:
            count: How many.
            generator: Draws.
        """
        count = min(count, self._size)
        quotas = self._quotas(count, generator)
        drawn = []
        for group, quota in zip(self._groups, quotas.tolist(), strict=True):
            borders = np.arange(quota + 1) * len(group) // max(quota, 1)
            drawn.append(group[borders[:-1] + (generator.random(quota) * np.diff(borders)).astype(np.int64)])
        return np.sort(np.concatenate(drawn))

    def _quotas(self, count: int, generator: np.random.Generator) -> Int64:
        sizes = np.array([len(group) for group in self._groups])
        quotas = np.minimum(count // len(sizes), sizes)
        while (left := count - int(quotas.sum())) > 0:
            room = np.flatnonzero(quotas < sizes)
            quotas[generator.permutation(room)[:left]] += 1
        return quotas
