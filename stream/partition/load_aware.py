"""load-aware: equal training load a part, whatever is cut (DynaHB section 4.2, seed 002)."""

import math
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from stream.partition.interface import PartitionError, register
from stream.partition.load_aware_kernels import advance_labels, deal_again
from stream.partition.vertex import VertexPartitioner
from stream.snapshots.delta import Float64, Int32, Int64, SnapshotDelta


@register
class LoadAware(VertexPartitioner):
    """Nodes dealt by load in snake order; later only new nodes, and what makes a part too heavy.

    A node's load is what an L-layer network aggregates for it, Σ_{l ≤ L} Σ_{j ≤ l} (walks of length j that end in it),
    of the live graph. Walks are sums of labels along edges, kept current by the deltas.

    Args:
        layers: L.
        tolerance: A part is dealt from where its load is above 1 + tolerance times the mean; its nodes are never above
            ⌈(1 + tolerance)·n/K⌉.
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
        self._labels: Float64 = np.zeros((layers + 1, 0))
        self._load: Float64 = np.zeros(0)

    def _place(self, delta: SnapshotDelta) -> Int32:
        self._advance(delta)
        live, n = delta.live, len(delta.live)
        owner = self._home.copy()
        if n == 0:
            return owner[live]
        old, new = live[owner[live] >= 0], live[owner[live] < 0]
        # Snake order: the heaviest of each round goes to the lightest part, the next round the other way.
        lightest = np.argsort(self._loads(owner, old), kind="stable")
        heaviest = new[np.argsort(-self._load[new], kind="stable")]
        step = np.arange(len(new)) % (2 * self.parts)
        owner[heaviest] = lightest[np.minimum(step, 2 * self.parts - 1 - step)]
        part_load = self._loads(owner, live)
        count = np.bincount(owner[live], minlength=self.parts)
        mean = float(part_load.sum()) / self.parts
        most_nodes = math.ceil((1 + self.tolerance) * n / self.parts)
        heavy = part_load > (1 + self.tolerance) * mean
        if heavy.any() or count.max() > most_nodes:
            order = live[np.argsort(-self._load[live], kind="stable")]
            deal_again(order, self._load, owner, part_load, count, heavy, mean, most_nodes)
        placed: NDArray[np.int32] = owner[live]
        return placed

    def _loads(self, owner: Int32, nodes: Int64) -> Float64:
        """Load of every part, float64 (K,)."""
        return np.bincount(owner[nodes], self._load[nodes], self.parts).astype(np.float64)

    def _advance(self, delta: SnapshotDelta) -> None:
        new = delta.num_nodes - len(self._load)
        if new > 0:
            fresh = np.zeros((self.layers + 1, new))
            fresh[0] = 1.0
            self._labels = np.concatenate([self._labels, fresh], axis=1)
            self._load = np.concatenate([self._load, np.zeros(new)])
        changed = advance_labels(delta.graph.indptr, delta.graph.indices, delta.touched, self._labels)
        # Layer j is in the sums of all layers from j on.
        weights = np.arange(self.layers, 0, -1, dtype=np.float64)
        self._load[changed] = weights @ self._labels[1:, changed]

    def _memory(self) -> dict[str, NDArray[Any]]:
        return {"labels": self._labels, "load": self._load}

    def _remember(self, memory: dict[str, NDArray[Any]]) -> None:
        self._labels, self._load = memory["labels"], memory["load"]
