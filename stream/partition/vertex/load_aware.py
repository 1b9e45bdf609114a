"""load-aware: equal training load per part, regardless of cuts (DynaHB, section 4.2)."""

import math
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from freshet_graph.schemas.section import Section
from freshet_graph.stream.arrays.growing import with_room
from freshet_graph.stream.arrays.kinds import Bool, Float64, Int32, Int64
from freshet_graph.stream.kernels import njit
from freshet_graph.stream.partition.interface import PartitionerSetting, register
from freshet_graph.stream.partition.vertex.base import VertexPartitioner, VertexPartitionerOptions
from freshet_graph.stream.snapshots.delta import NeighbourRows, SnapshotDelta

EXACT = 2.0**53
"""Sums of whole numbers below this are exact, whatever their order."""


class LoadAwareOptions(VertexPartitionerOptions):
    """Options of ``load-aware``."""

    layers: int = Field(2, ge=1, le=8, description="L, layers of the network whose load is balanced.")
    tolerance: float = Field(
        0.05,
        ge=0,
        description="A part gives nodes up if its load is above 1 + tolerance times the mean; it never has more than "
        "⌈(1 + tolerance)·n/K⌉ nodes.",
    )


@register
class LoadAware(VertexPartitioner):
    """Nodes are dealt by load in snake order; later only new nodes, and the excess of overloaded parts.

    A node's load is the number of rows that an L-layer network aggregates for it, Σ_{l ≤ L} Σ_{j ≤ l} (walks of length j that
    end in it), in the live graph. Walks are sums of labels along edges, updated by the deltas. Work is proportional to the nodes
    within L hops of those that a delta touched; only for an overloaded part are all nodes searched for its own.
    """

    name: ClassVar[str] = "load-aware"
    Options: ClassVar[type[Section]] = LoadAwareOptions

    def __init__(self, setting: PartitionerSetting, options: LoadAwareOptions) -> None:
        super().__init__(setting, options)
        self.layers, self.tolerance = options.layers, options.tolerance
        # A row per node, and spare ones.
        self._labels: Float64 = np.zeros((0, options.layers + 1))
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
        node_count = self._nodes_per_part + self._count(part)
        mean = float(self.part_load.sum()) / self.parts
        most_nodes = math.ceil((1 + self.tolerance) * int(node_count.sum()) / self.parts)
        heavy = self.part_load > (1 + self.tolerance) * mean
        crowded = heavy | (node_count > most_nodes)
        if not crowded.any():
            return new, part
        self._owner[new] = part
        nodes = np.flatnonzero(np.append(crowded, False)[self._home])  # the last entry is for −1
        order = nodes[np.argsort(-self.load[nodes], kind="stable")]
        again, to = deal_again(
            order, self.load, self._owner, self.part_load, node_count, heavy, mean, most_nodes
        )
        self._owner[new] = -1
        once = ~np.isin(new, again)
        return np.concatenate([new[once], again]), np.concatenate([part[once], to])

    def _advance(self, delta: SnapshotDelta) -> None:
        """Update labels, loads and loads of parts by the delta, without its new nodes."""
        left = np.bincount(self._left_from, self.load[delta.left], self.parts)
        large = self.part_load.max() >= EXACT
        self.part_load -= left
        changed = advance_labels(delta.rows, delta.touched, self._labels, self._marks, self._fixed)
        load = np.zeros(len(changed))
        for layer in range(1, self.layers + 1):  # layer l is in the sums of all layers from l on
            load += (self.layers - layer + 1) * self._labels[changed, layer]
        placed = self._owner[changed] >= 0
        more = (load - self.load[changed])[placed]
        self.part_load += np.bincount(self._owner[changed[placed]], more, self.parts)
        self.load[changed] = load
        if large or self.part_load.max() >= EXACT:  # differences may have lost digits
            old = np.flatnonzero(self._home >= 0)
            self.part_load = np.bincount(self._home[old], self.load[old], self.parts).astype(np.float64)

    def _grow(self, num_nodes: int) -> None:
        super()._grow(num_nodes)
        known = len(self._labels)
        self.load = with_room(self.load, num_nodes)
        self._fixed = with_room(self._fixed, num_nodes)
        self._labels = with_room(self._labels, num_nodes)
        self._labels[known:, 0] = 1.0

    def _memory(self) -> dict[str, NDArray[Any]]:
        n = self._num_nodes
        return {"labels": self._labels[:n].T, "load": self.load[:n], "part_load": self.part_load}

    def _remember(self, memory: dict[str, NDArray[Any]]) -> None:
        self._labels, self.load = np.ascontiguousarray(memory["labels"].T), memory["load"]
        self.part_load = memory["part_load"]


@njit(cache=True, nogil=True)
def advance_labels(rows: NeighbourRows, touched: Int64, labels: Float64, marks: Bool, fixed: Bool) -> Int64:
    """Update label sums after a delta: ``labels[v, l] = Σ labels[u, l − 1]`` over v's neighbours u.

    Nodes with a changed row are summed again. All others still have their neighbours, so these pass their change one layer up
    (DynaHB Alg. 1 lines 3 to 7, for the changes of a delta): work is proportional to the rows of changed nodes.

    Args:
        rows: The live graph.
        touched: int64, distinct, every node with a changed row.
        labels: float64 (≥ N, L + 1), labels[:, 0] all 1; written to. Whole numbers.
        marks: bool (≥ N,), all false before and after.
        fixed: bool (≥ N,), nodes whose sums are computed again; all false before and after.

    Returns:
        Nodes with a label that may have changed, int64, distinct.
    """
    due = np.empty(len(marks), np.int64)  # pages are touched only for changes
    size = len(touched)
    for i in range(size):
        due[i] = touched[i]
        marks[touched[i]] = fixed[touched[i]] = True
    changed = np.empty(0, np.int64)
    change = np.empty(0, np.float64)
    for layer in range(1, labels.shape[1]):
        for i in range(len(changed)):
            for j in range(rows.start[changed[i]], rows.end[changed[i]]):
                u = rows.indices[j]
                if not marks[u]:
                    marks[u] = True
                    due[size] = u
                    size += 1
        # Changes one layer below are added to unchanged rows; sums that may have lost digits are computed again.
        old = np.empty(size, np.float64)
        for i in range(size):
            old[i] = labels[due[i], layer]
        for i in range(len(changed)):
            for j in range(rows.start[changed[i]], rows.end[changed[i]]):
                labels[rows.indices[j], layer] += change[i]
        count = 0
        for i in range(size):
            v = due[i]
            if fixed[v] or not (abs(labels[v, layer]) < EXACT and old[i] < EXACT):
                total = 0.0
                for j in range(rows.start[v], rows.end[v]):
                    total += labels[rows.indices[j], layer - 1]
                labels[v, layer] = total
            count += labels[v, layer] != old[i]
        changed = np.empty(count, np.int64)
        change = np.empty(count, np.float64)
        count = 0
        for i in range(size):
            v = due[i]
            if labels[v, layer] != old[i]:
                changed[count], change[count] = v, labels[v, layer] - old[i]
                count += 1
    for i in range(size):
        marks[due[i]] = fixed[due[i]] = False
    return due[:size].copy()


@njit(cache=True, nogil=True)
def deal_again(
    order: Int64,
    load: Float64,
    owner: Int32,
    part_load: Float64,
    count: Int64,
    heavy: Bool,
    mean: float,
    most_nodes: int,
) -> tuple[Int64, Int32]:
    """Take the excess from overloaded parts, and deal it to the lightest parts.

    A heavy part gives up nodes, the heaviest first, each only if it leaves the part at the mean or above. Then a part above
    ``most_nodes`` gives up its lightest. The nodes given up are dealt heaviest first, each to the part with the least load (then
    the lower) that has fewer than ``most_nodes``.

    Args:
        order: int64 (n,) at least the nodes of heavy parts and of those above ``most_nodes``, heaviest first.
        load: float64 (≥ N,).
        owner: int32 (≥ N,).
        part_load: float64 (K,); written to.
        count: int64 (K,) nodes per part; written to.
        heavy: bool (K,).
        mean: Mean of the parts' loads.
        most_nodes: K·most_nodes ≥ the nodes of all parts.

    Returns:
        Nodes given up, heaviest first, int64, and their new parts, int32.
    """
    given = np.zeros(len(order), np.bool_)
    total = 0
    for i in range(len(order)):
        v = order[i]
        k = owner[v]
        if heavy[k] and load[v] > 0.0 and part_load[k] - load[v] >= mean:
            given[i] = True
            part_load[k] -= load[v]
            count[k] -= 1
            total += 1
    for i in range(len(order) - 1, -1, -1):
        k = owner[order[i]]
        if not given[i] and count[k] > most_nodes:
            given[i] = True
            part_load[k] -= load[order[i]]
            count[k] -= 1
            total += 1
    node, part = np.empty(total, np.int64), np.empty(total, np.int32)
    n = 0
    for i in range(len(order)):
        if not given[i]:
            continue
        best = -1
        for p in range(len(count)):
            if count[p] < most_nodes and (best < 0 or part_load[p] < part_load[best]):
                best = p
        node[n], part[n] = order[i], best
        n += 1
        part_load[best] += load[order[i]]
        count[best] += 1
    return node, part
