"""What all edge partitioners share: parts of nodes over snapshots, sizes, quality and state."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stream.arrays.growing import grown
from stream.arrays.kinds import Int32, Int64
from stream.partition.edge.quality import EdgeQuality
from stream.partition.interface import Assignment, Kind, PartitionError, Quality
from stream.snapshots.delta import SnapshotDelta
from stream.snapshots.state_table import pack, unpack


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """What became of one snapshot.

    Attributes:
        assignment: Changes of nodes, and the part of each event.
        inserts: Insert events.
        discarded: Those that got no part.
        seen: Distinct nodes in all events so far.
        shared: Nodes in more than one part.
        placed: Nodes in at least one part.
        moved: Nodes whose home changed.
    """

    assignment: Assignment
    inserts: int
    discarded: int = 0
    seen: int
    shared: int
    placed: int
    moved: int = 0


class EdgePartitioner(ABC):
    """Assigns the inserts of a snapshot to parts; a node is in every part that has an insert of it, or in its home.

    Args:
        parts: P.
        seed: Seed of the draws that break ties.
        window: Unused by those of this package.
    """

    name: ClassVar[str]
    kind: ClassVar[Kind] = "edge"

    def __init__(self, *, parts: int, seed: int = 0, window: int = 4) -> None:
        self.parts, self.seed, self.window = parts, seed, window
        self._home: Int32 = np.empty(0, np.int32)  # −1 for nodes without edges
        self._sizes: Int64 = np.zeros(parts, np.int64)  # events assigned to each part
        self._placements: Int64 = np.zeros(parts, np.int64)  # nodes in each part, copies included
        self._events = 0
        self._quality = EdgeQuality(parts)

    @abstractmethod
    def _place(self, delta: SnapshotDelta) -> Placed:
        """Assign the inserts of a snapshot, and keep ``_home``, ``_sizes`` and ``_placements`` current.

        ``_events`` counts the events before it.
        """

    @abstractmethod
    def _memory(self) -> dict[str, NDArray[Any]]:
        """State of the algorithm besides homes, sizes, placements and quality."""

    @abstractmethod
    def _remember(self, memory: dict[str, NDArray[Any]]) -> None:
        """Take back what ``_memory`` gave; homes, sizes and placements are there. A KeyError is another state's."""

    def update(self, delta: SnapshotDelta) -> Assignment:
        """Assign the inserts of snapshot ``delta.tau``; called once a snapshot, in order."""
        self._grow(delta.num_nodes)
        placed = self._place(delta)
        self._events += len(delta.op)
        self._quality.observe(
            inserts=placed.inserts,
            discarded=placed.discarded,
            seen=placed.seen,
            shared=placed.shared,
            placements=self._placements,
            placed_nodes=placed.placed,
            assigned=self._sizes,
            moved=placed.moved,
            live=delta.num_live,
        )
        return placed.assignment

    def home(self) -> Int32:
        """Home of every dense id so far, int32 (num_nodes,); −1 for nodes without edges. A view."""
        return self._home

    def quality(self) -> Quality:
        """Quality of all snapshots so far; ``cut_final`` needs the events again and is NaN."""
        return self._quality.quality()

    def state(self) -> pa.Table:
        """Everything that the next update depends on, the running quality included."""
        return pack(
            {
                "home": self._home,
                "sizes": self._sizes,
                "placements": self._placements,
                "quality": self._quality.state(),
                **self._memory(),
            }
        )

    def restore(self, table: pa.Table) -> None:
        """Continue from a ``state()``.

        Raises:
            PartitionError: The state is of another partitioner, or of a release before this shape.
        """
        state: dict[str, NDArray[Any]] = unpack(table)
        try:
            self._home, self._sizes = state.pop("home"), state.pop("sizes")
            self._placements = state.pop("placements")
            self._quality.restore(state.pop("quality"))
            self._remember(state)
        except KeyError as missing:
            raise PartitionError(
                f"this is not a state of {self.name} as of this release, it has no {missing.args[0]}. Remove the lane's "
                "folder and let the stream job build it again"
            ) from missing

    def _grow(self, num_nodes: int) -> None:
        """Make room for a row a node in every array that has one."""
        self._home = grown(self._home, num_nodes, -1)
