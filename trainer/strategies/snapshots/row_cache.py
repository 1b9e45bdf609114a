"""Rows of other ranks' nodes in bounded memory: the least recently used block of rows is dropped first."""

from collections import Counter
from collections.abc import Iterable

import numpy as np

from stream.arrays.kinds import Bool, Float32, Int64

BLOCK = 256
"""Rows that are added and dropped together."""
BESIDE = 16
"""Bytes per row beside its values: node and slot."""


class RowCache:
    """Rows by snapshot and node, in blocks of one snapshot each.

    Args:
        width: Of a row.
        budget_bytes: Most bytes held, but never less than one block; None: no bound.

    Attributes:
        counts: Rows found (``hit``), not found (``miss``) and dropped for others (``evicted``).
    """

    def __init__(self, width: int, budget_bytes: int | None = None) -> None:
        self.row_bytes = 4 * width + BESIDE
        self.block_bytes = BLOCK * self.row_bytes
        self._most = None if budget_bytes is None else max(1, budget_bytes // self.block_bytes)
        self._values: Float32 = np.empty((0, width), np.float32)
        self._kept: dict[int, _Kept] = {}
        self._snapshot: list[int | None] = []  # of each block; None: it is free
        self._used: list[int] = []  # when each block was last read
        self._clock = 0
        self.counts: Counter[str] = Counter()

    @property
    def held_bytes(self) -> int:
        """Bytes of the blocks in use."""
        return self.block_bytes * sum(tau is not None for tau in self._snapshot)

    def since_last(self) -> Counter[str]:
        """The counts since the last call."""
        counts, self.counts = self.counts, Counter()
        return counts

    def find(self, tau: int, nodes: Int64) -> tuple[Bool, Float32]:
        """Rows of a snapshot.

        Args:
            tau: Snapshot.
            nodes: int64 (n,), ascending.

        Returns:
            bool (n,), whether a row is held; and the held rows, float32 (held, width).
        """
        self._clock += 1
        kept = self._kept.get(tau)
        if kept is None or not len(kept.nodes):
            return np.zeros(len(nodes), np.bool_), self._values[:0]
        place = np.minimum(np.searchsorted(kept.nodes, nodes), len(kept.nodes) - 1)
        there: Bool = kept.nodes[place] == nodes
        slots = kept.slots[place[there]]
        for block in np.unique(slots // BLOCK):
            self._used[block] = self._clock
        return there, self._values[slots]

    def add(self, tau: int, nodes: Int64, rows: Float32) -> None:
        """Hold rows that are not held yet, as many as fit.

        Args:
            tau: Snapshot.
            nodes: int64 (n,), ascending.
            rows: float32 (n, width).
        """
        if self._most is not None:
            nodes = nodes[: self._most * BLOCK]
        self._clock += 1
        slots = np.empty(len(nodes), np.int64)
        kept = self._kept.setdefault(tau, _Kept())
        for at in range(0, len(nodes), BLOCK):
            block = self._free_block()
            self._snapshot[block], self._used[block] = tau, self._clock
            count = min(BLOCK, len(nodes) - at)
            slots[at : at + count] = np.arange(block * BLOCK, block * BLOCK + count)
        self._values[slots] = rows[: len(nodes)]
        kept.add(nodes, slots)

    def keep(self, taus: Iterable[int]) -> None:
        """Drop all other snapshots."""
        for tau in set(self._kept) - set(taus):
            self._drop(tau)

    def _drop(self, tau: int) -> None:
        del self._kept[tau]
        self._snapshot = [None if of == tau else of for of in self._snapshot]

    def _free_block(self) -> int:
        if None in self._snapshot:
            return self._snapshot.index(None)
        if self._most is not None and len(self._snapshot) >= self._most:
            block = min(range(len(self._used)), key=self._used.__getitem__)
            tau = self._snapshot[block]
            assert tau is not None
            self.counts["evicted"] += self._kept[tau].remove_block(block)
            return block
        block = len(self._snapshot)
        self._snapshot.append(None)
        self._used.append(0)
        if (block + 1) * BLOCK > len(self._values):
            blocks = max(1, 2 * block) if self._most is None else self._most
            room = np.empty((blocks * BLOCK, self._values.shape[1]), np.float32)
            room[: len(self._values)] = self._values
            self._values = room
        return block


class _Kept:
    """The slots of a snapshot's nodes."""

    def __init__(self) -> None:
        self.nodes, self.slots = np.empty(0, np.int64), np.empty(0, np.int64)

    def add(self, nodes: Int64, slots: Int64) -> None:
        at = np.searchsorted(self.nodes, nodes)
        self.nodes = np.insert(self.nodes, at, nodes)
        self.slots = np.insert(self.slots, at, slots)

    def remove_block(self, block: int) -> int:
        stays = self.slots // BLOCK != block
        self.nodes, self.slots = self.nodes[stays], self.slots[stays]
        return int((~stays).sum())
