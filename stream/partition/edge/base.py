"""The base of all edge partitioners: parts of nodes over snapshots, sizes, quality and state."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stream.arrays.growing import grown
from stream.arrays.kinds import Int32, Int64
from stream.partition.edge.quality import EdgeQuality, Placed
from stream.partition.interface import Assignment, Kind, Quality, foreign_state
from stream.snapshots.delta import SnapshotDelta
from stream.snapshots.state_table import pack, unpack


class EdgePartitioner(ABC):
    """Assigns the inserts of a snapshot to parts; a node is in every part with an insert of it, or in its home.

    Args:
        parts: P.
        seed: Seed of the draws that break ties.
        window: Unused in this package.

    Attributes:
        sizes: Events assigned to each part, int64 (P,).
    """

    name: ClassVar[str]
    kind: ClassVar[Kind] = "edge"

    def __init__(self, *, parts: int, seed: int = 0, window: int = 4) -> None:
        self.parts, self.seed, self.window = parts, seed, window
        self._home: Int32 = np.empty(0, np.int32)  # −1 for nodes without edges
        self.sizes: Int64 = np.zeros(parts, np.int64)
        self._placements: Int64 = np.zeros(parts, np.int64)  # nodes in each part, copies included
        self._events = 0
        self._quality = EdgeQuality(parts)

    @abstractmethod
    def _place(self, delta: SnapshotDelta) -> Placed:
        """Assign the inserts of a snapshot, and update ``_home``, ``sizes`` and ``_placements``.

        ``_events`` counts the events before it.
        """

    @abstractmethod
    def _memory(self) -> dict[str, NDArray[Any]]:
        """State of the algorithm besides homes, sizes, placements and quality."""

    @abstractmethod
    def _remember(self, memory: dict[str, NDArray[Any]]) -> None:
        """Restore ``_memory``; homes, sizes and placements are restored already. A KeyError means a foreign state."""

    def update(self, delta: SnapshotDelta) -> Assignment:
        """Assign the inserts of snapshot ``delta.tau``; called once per snapshot, in order."""
        self._grow(delta.num_nodes)
        placed = self._place(delta)
        self._events += len(delta.op)
        self._quality.observe(placed, self._placements, self.sizes, live=delta.num_live)
        return placed.assignment

    def home(self) -> Int32:
        """Home of every dense id so far, int32 (num_nodes,); −1 for nodes without edges. A view."""
        return self._home

    def quality(self) -> Quality:
        """Quality of all snapshots so far; ``cut_final`` needs the events again and is NaN."""
        return self._quality.quality()

    def state(self) -> pa.Table:
        """The state that the next update depends on, including the running quality."""
        return pack(
            {
                "home": self._home,
                "sizes": self.sizes,
                "placements": self._placements,
                "quality": self._quality.state(),
                **self._memory(),
            }
        )

    def restore(self, table: pa.Table) -> None:
        """Continue from a ``state()``.

        Raises:
            PartitionError: The state is from another partitioner or release.
        """
        state: dict[str, NDArray[Any]] = unpack(table)
        try:
            self._home, self.sizes = state.pop("home"), state.pop("sizes")
            self._placements = state.pop("placements")
            self._quality.restore(state.pop("quality"))
            self._remember(state)
        except KeyError as missing:
            raise foreign_state(self.name, missing) from missing

    def _grow(self, num_nodes: int) -> None:
        """Extend every array with a row per node."""
        self._home = grown(self._home, num_nodes, -1)
