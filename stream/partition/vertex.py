"""What all vertex partitioners share: owners over snapshots, their changes, quality and state."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stream.partition.interface import Assignment, Kind, Quality, Why
from stream.partition.quality import DEFAULT_FANOUT, VertexQuality
from stream.snapshots.delta import Int32, SnapshotDelta
from stream.snapshots.state_table import pack, unpack


class VertexPartitioner(ABC):
    """Gives every live node one owner a snapshot.

    A node that leaves the live graph loses its owner (GONE); when it comes back it is NEW.

    Args:
        parts: K.
        seed: Seed of every draw.
        window: w, snapshots that trainers look back.
        fanout: f of the utility's edge weights (DistDy section 3.4).
    """

    name: ClassVar[str]
    kind: ClassVar[Kind] = "vertex"

    def __init__(self, *, parts: int, seed: int = 0, window: int = 4, fanout: int = DEFAULT_FANOUT) -> None:
        self.parts, self.seed, self.window = parts, seed, window
        self._home: Int32 = np.empty(0, np.int32)
        self._quality = VertexQuality(parts, fanout)
        self._unmeasured: tuple[SnapshotDelta, int] | None = None

    @abstractmethod
    def _place(self, delta: SnapshotDelta) -> Int32:
        """Owners of ``delta.live``, int32 in [0, K).

        ``self._home`` holds, for all dense ids, the owners at the snapshot before; −1 for nodes that were
        not live. It must be left as it is.
        """

    def update(self, delta: SnapshotDelta) -> Assignment:
        """Partition snapshot ``delta.tau``; called once a snapshot, in order."""
        self._measure()
        self._grow(delta.num_nodes)
        left = self._home >= 0
        left[delta.live] = False
        gone = np.flatnonzero(left)
        self._home[gone] = -1
        before = self._home[delta.live]
        owner = self._place(delta)
        new, moved = before < 0, (before >= 0) & (before != owner)
        self._home[delta.live] = owner
        self._unmeasured = delta, int(moved.sum())

        placed = new | moved
        node = np.concatenate([delta.live[placed], gone])
        part = np.concatenate([owner[placed], np.full(len(gone), -1, np.int32)])
        why = np.concatenate([np.where(new[placed], Why.NEW, Why.MOVED), np.full(len(gone), Why.GONE)])
        order = np.argsort(node)
        return Assignment(node[order], part[order].astype(np.int32), why[order].astype(np.int8))

    def home(self) -> Int32:
        """Owner of every dense id so far, int32 (num_nodes,); −1 for nodes that are not live. A view."""
        return self._home

    def quality(self) -> Quality:
        """Quality of all snapshots so far."""
        self._measure()
        return self._quality.quality()

    def state(self) -> pa.Table:
        """Everything that the next update depends on, the running quality included."""
        self._measure()
        return pack({"home": self._home, "quality": self._quality.state(), **self._memory()})

    def restore(self, table: pa.Table) -> None:
        """Continue from a ``state()``."""
        arrays = unpack(table)
        self._unmeasured = None
        self._home = arrays.pop("home")
        self._quality.restore(arrays.pop("quality"))
        self._remember(arrays)

    def _memory(self) -> dict[str, NDArray[Any]]:
        """State of the algorithm besides owners and quality."""
        return {}

    def _remember(self, memory: dict[str, NDArray[Any]]) -> None:
        """Take back what ``_memory`` gave."""
        if memory:
            raise ValueError(f"this is not a state of {self.name}: it has {', '.join(memory)}")

    def _grow(self, num_nodes: int) -> None:
        new = num_nodes - len(self._home)
        if new > 0:
            self._home = np.concatenate([self._home, np.full(new, -1, np.int32)])

    def _measure(self) -> None:
        """Fold in the last snapshot's quality: put off until asked for, so that updates are only partitioning."""
        if self._unmeasured is not None:
            delta, moved = self._unmeasured
            self._quality.observe(delta, self._home, moved)
            self._unmeasured = None
