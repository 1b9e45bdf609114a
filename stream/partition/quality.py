"""Parts of running quality figures; ``docs/semantics.md`` ("Partition quality") defines each figure.

Means over snapshots count the snapshots in which the figure is defined. Balances are those of the latest snapshot: the largest
part over the mean part.
"""

import math

import numpy as np
from numpy.typing import NDArray


class Mean:
    """Mean over the snapshots that have a value."""

    def __init__(self) -> None:
        self.total, self.count = 0.0, 0

    def add(self, value: float) -> None:
        """Add a snapshot's value; NaN: it has none."""
        if not math.isnan(value):
            self.total += value
            self.count += 1

    def value(self, of_none: float = math.nan) -> float:
        """The mean so far, ``of_none`` before the first value."""
        return self.total / self.count if self.count else of_none


def share(part: float, whole: float) -> float:
    """``part / whole``, NaN if the whole is empty."""
    return float(part / whole) if whole else math.nan


def balance(sizes: NDArray[np.integer]) -> float:
    """Largest over mean size, NaN if all are empty."""
    return share(float(sizes.max()) * len(sizes), float(sizes.sum()))
