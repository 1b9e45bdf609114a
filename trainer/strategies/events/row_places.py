"""Rows of a table by node, for a rank that holds rows of some nodes only."""

import numpy as np

from stream.arrays.kinds import Int64


class RowPlaces:
    """Rows of nodes; returned rows are used again.

    Attributes:
        end: Number of rows of the table.
    """

    def __init__(self) -> None:
        self.end = 0
        self._at = np.empty(0, np.int32)  # −1: no row
        self._free: Int64 = np.empty(0, np.int64)

    def grow(self, num_nodes: int) -> None:
        """Make room for ids below ``num_nodes``."""
        more = num_nodes - len(self._at)
        if more > 0:
            self._at = np.concatenate([self._at, np.full(more, -1, np.int32)])

    def of(self, nodes: Int64) -> Int64:
        """int64 (n,) rows of nodes; −1 for nodes without one, and for unknown ids."""
        if len(nodes) and int(nodes.max()) >= len(self._at):
            inside = nodes < len(self._at)
            rows = np.full(len(nodes), -1, np.int64)
            rows[inside] = self._at[nodes[inside]]
            return rows
        return self._at[nodes].astype(np.int64)

    def hold(self, nodes: Int64) -> Int64:
        """Give rows to those of some distinct, known nodes that have none; returns the new rows."""
        bare = nodes[self._at[nodes] < 0]
        again = min(len(bare), len(self._free))
        rows = np.concatenate(
            [self._free[len(self._free) - again :], np.arange(self.end, self.end + len(bare) - again)]
        )
        self._free = self._free[: len(self._free) - again]
        self.end += len(bare) - again
        self._at[bare] = rows
        return rows

    def release(self, nodes: Int64) -> None:
        """Take the rows of some distinct nodes back."""
        rows = self.of(nodes)
        self._free = np.concatenate([self._free, rows[rows >= 0]])
        self._at[nodes[rows >= 0]] = -1

    def keep(self, kept: Int64) -> None:
        """Forget all nodes except these, ascending, which are renumbered in their order and keep their rows."""
        gone = self._at >= 0
        gone[kept] = False
        self.release(np.flatnonzero(gone))
        self._at[: len(kept)] = self._at[kept]
        self._at[len(kept) :] = -1

    def held(self) -> Int64:
        """Nodes with a row, ascending."""
        return np.flatnonzero(self._at >= 0)

    @property
    def memory_bytes(self) -> int:
        """Bytes held."""
        return self._at.nbytes + self._free.nbytes
