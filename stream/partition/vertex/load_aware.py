"""load-aware: equal training load per part, regardless of cuts (DynaHB, section 4.2)."""

import math
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from stream.arrays.growing import grown
from stream.arrays.kinds import Bool, Float64, Int32, Int64
from stream.kernels.node_sets import nodes_of
from stream.partition.interface import PartitionError, register
from stream.partition.vertex.base import VertexPartitioner
from stream.partition.vertex.load_aware_kernels import EXACT, advance_labels, deal_again, weigh
from stream.snapshots.delta import SnapshotDelta


@register
class LoadAware(VertexPartitioner):
    """Nodes are dealt by load in snake order; later only new nodes, and the excess of overloaded parts.

    A node's load is the number of rows that an L-layer network aggregates for it, Σ_{l ≤ L} Σ_{j ≤ l} (walks of length j that
    end in it), in the live graph. Walks are sums of labels along edges, updated by the deltas. Work is proportional to the nodes
    within L hops of those that a delta touched; only for an overloaded part are all nodes searched for its own.

    Args:
        layers: L.
        tolerance: A part gives nodes up if its load is above 1 + tolerance times the mean; it never has more than
            ⌈(1 + tolerance)·n/K⌉ nodes.
        shared: parts, seed, window and fanout of all vertex partitioners.
    """

    name: ClassVar[str] = "load-aware"

    def __init__(self, *, layers: int = 2, tolerance: float = 0.05, **shared: Any) -> None:
        super().__init__(**shared)
        if not 1 <= layers <= 8:
            raise PartitionError(f"load-aware takes layers from 1 to 8, found {layers}")
        if not 0 <= tolerance < math.inf:
            raise PartitionError(
                f"load-aware takes tolerance ≥ 0, a share of the mean load, found {tolerance}"
            )
        self.layers, self.tolerance = layers, tolerance
        # A row per node, and spare ones.
        self._labels: Float64 = np.zeros((0, layers + 1))
        self.load: Float64 = np.zeros(0)
        self._fixed: Bool = np.empty(0, np.bool_)
        self.part_load: Float64 = np.zeros(self.parts)

    def _place(self, delta: SnapshotDelta) -> tuple[Int64, Int32]:
        self._advance(delta)
        new = delta.entered[np.argsort(-self.load[delta.entered], kind="stable")]
        # Snake order: the heaviest of each round goes to the lightest part, and the next round runs backwards.
        lightest = np.argsort(self.part_load, kind="stable").astype(np.int32)
        step = np.arange(len(new)) % (2 * self.parts)
        part = lightest[np.minimum(step, 2 * self.parts - 1 - step)]
        self.part_load += np.bincount(part, self.load[new], self.parts)
        held = self._held + self._count(part)
        mean = float(self.part_load.sum()) / self.parts
        most_nodes = math.ceil((1 + self.tolerance) * int(held.sum()) / self.parts)
        heavy = self.part_load > (1 + self.tolerance) * mean
        crowded = heavy | (held > most_nodes)
        if not crowded.any():
            return new, part
        self._owner[new] = part
        nodes = nodes_of(self._home, crowded)
        order = nodes[np.argsort(-self.load[nodes], kind="stable")]
        again, to = deal_again(order, self.load, self._owner, self.part_load, held, heavy, mean, most_nodes)
        self._owner[new] = -1
        once = ~np.isin(new, again)
        return np.concatenate([new[once], again]), np.concatenate([part[once], to])

    def _advance(self, delta: SnapshotDelta) -> None:
        """Update labels, loads and loads of parts by the delta, without its new nodes."""
        left = np.bincount(self._left_from, self.load[delta.left], self.parts)
        large = self.part_load.max() >= EXACT
        self.part_load -= left
        changed = advance_labels(delta.rows, delta.touched, self._labels, self._marks, self._fixed)
        weigh(changed, self._labels, self._owner, self.load, self.part_load)
        if large or self.part_load.max() >= EXACT:  # differences may have lost digits
            old = np.flatnonzero(self._home >= 0)
            self.part_load = np.bincount(self._home[old], self.load[old], self.parts).astype(np.float64)

    def _grow(self, num_nodes: int) -> None:
        super()._grow(num_nodes)
        known = len(self._labels)
        self.load = grown(self.load, num_nodes)
        self._fixed = grown(self._fixed, num_nodes)
        self._labels = grown(self._labels, num_nodes)
        self._labels[known:, 0] = 1.0

    def _memory(self) -> dict[str, NDArray[Any]]:
        n = self._num_nodes
        return {"labels": self._labels[:n].T, "load": self.load[:n], "part_load": self.part_load}

    def _remember(self, memory: dict[str, NDArray[Any]]) -> None:
        self._labels, self.load = np.ascontiguousarray(memory["labels"].T), memory["load"]
        self.part_load = memory["part_load"]
