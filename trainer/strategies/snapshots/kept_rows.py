"""Inputs of other ranks' nodes by snapshot, kept from step to step within a budget."""

from collections import Counter
from collections.abc import Collection, Iterable

import numpy as np
from numpy.typing import NDArray

from stream.arrays.kinds import Bool, Float32, Int64


class KeptRows:
    """Rows by snapshot and node. A sealed snapshot never changes, so a row is right while its snapshot is in the window.

    Args:
        width: Of a row.
        budget_bytes: Beyond it, ``trim`` leaves the rows of the newest step only; None: no bound.

    Attributes:
        counts: Rows found (``hit``), not found (``miss``) and dropped to stay within the budget (``evicted``).
    """

    def __init__(self, width: int, budget_bytes: int | None = None) -> None:
        self._none = np.empty(0, np.int64), np.empty((0, width), np.float32)
        self._budget = budget_bytes
        self._kept: dict[int, tuple[Int64, Float32]] = {}
        self.counts: Counter[str] = Counter()

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(nodes.nbytes + rows.nbytes for nodes, rows in self._kept.values())

    def since_last(self) -> Counter[str]:
        """The counts since the last call."""
        counts, self.counts = self.counts, Counter()
        return counts

    def nodes(self, tau: int) -> Int64:
        """Nodes of a snapshot with a row, int64, ascending."""
        return self._kept.get(tau, self._none)[0]

    def find(self, tau: int, nodes: Int64) -> tuple[Bool, Float32]:
        """Which of some nodes, int64 (n,), ascending, have a row, bool (n,), and those rows, float32 (found, width)."""
        known, rows = self._kept.get(tau, self._none)
        there = among(nodes, known)
        return there, rows[np.searchsorted(known, nodes[there])]

    def add(self, tau: int, nodes: Int64, rows: Float32) -> None:
        """Keep rows, float32 (n, width), of nodes, int64 (n,), ascending; those that are kept already stay."""
        known, kept = self._kept.get(tau, self._none)
        fresh = np.flatnonzero(~among(nodes, known))
        at = np.searchsorted(known, nodes[fresh])
        self._kept[tau] = np.insert(known, at, nodes[fresh]), np.insert(kept, at, rows[fresh], axis=0)

    def keep(self, taus: Collection[int]) -> None:
        """Drop all other snapshots."""
        self._kept = {tau: rows for tau, rows in self._kept.items() if tau in taus}

    def trim(self, needed: Iterable[tuple[int, Int64]], beside: int = 0) -> bool:
        """Drop what the newest step did not need, if more is kept than the budget.

        Args:
            needed: By snapshot, the nodes that it needed, int64, ascending.
            beside: Bytes kept elsewhere, which count.

        Returns:
            Whether rows were dropped.
        """
        if self._budget is None or self.nbytes + beside <= self._budget:
            return False
        before, kept = self._count(), self._kept
        self._kept = {}
        for tau, nodes in needed:
            known, rows = kept.get(tau, self._none)
            chosen = among(known, nodes)
            self._kept[tau] = known[chosen], rows[chosen]
        self.counts["evicted"] += before - self._count()
        return True

    def _count(self) -> int:
        return sum(len(nodes) for nodes, _ in self._kept.values())


def among(nodes: NDArray[np.signedinteger], known: NDArray[np.signedinteger]) -> Bool:
    """Which nodes, (n,), are among known ones, ascending: bool (n,)."""
    if not len(known):
        return np.zeros(len(nodes), np.bool_)
    found: Bool = known[np.minimum(np.searchsorted(known, nodes), len(known) - 1)] == nodes
    return found
