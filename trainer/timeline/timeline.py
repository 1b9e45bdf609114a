"""The last snapshots of the graph, whole, over the nodes that live in them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stream.snapshots.delta import Csr
from trainer.data.activity import activity_of
from trainer.data.views import GraphView
from trainer.device import to_device
from trainer.models.interface import NodeInputs
from trainer.nn.csr_graph import CSRGraph

Int64 = NDArray[np.int64]
Float32 = NDArray[np.float32]
Bool = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """One snapshot as the store has it.

    Attributes:
        tau: Interval index.
        graph: Adjacency over dense ids.
        activity: float32 (dense ids of τ, 2).
        live: int64, ascending: nodes with an edge.
    """

    tau: int
    graph: Csr
    activity: Float32
    live: Int64

    @property
    def num_nodes(self) -> int:
        return len(self.activity)


class Timeline:
    """Keeps the last snapshots of a window that advances.

    Args:
        length: H, snapshots that a horizon has at most.
    """

    def __init__(self, length: int) -> None:
        self.length = length
        self._snapshots: dict[int, _Snapshot] = {}

    def take_in(self, window: GraphView) -> None:
        """Read the snapshots of a window that are not known yet, and forget those that it no longer has."""
        self._snapshots = {
            tau: self._snapshots.get(tau) or _read(window, tau) for tau in window.taus[-self.length - 1 :]
        }

    def before_newest(self, window: GraphView, asked: Int64) -> "Horizon":
        """The snapshots before the newest, which its prediction may look at."""
        return self._horizon(window, list(self._snapshots)[:-1], asked)

    def through_newest(self, window: GraphView, asked: Int64) -> "Horizon":
        """The newest snapshots, which the next prediction will look at."""
        return self._horizon(window, list(self._snapshots), asked)

    @property
    def memory_bytes(self) -> int:
        """Bytes held beside the window: activities and lists of live nodes."""
        return sum(each.activity.nbytes + each.live.nbytes for each in self._snapshots.values())

    def _horizon(self, window: GraphView, taus: Sequence[int], asked: Int64) -> "Horizon":
        return Horizon(window, [self._snapshots[tau] for tau in taus[-self.length :]], asked)


class Horizon:
    """Consecutive snapshots over compact numbers: nodes with an edge in one of them, then those asked for.

    A node without any edge changes nobody else's row, so leaving it out changes no row. Memory follows the nodes that
    live, however many ids the stream has had.

    Args:
        window: Has the features of its snapshots.
        snapshots: Oldest first.
        asked: int64, dense ids that rows are wanted of.

    Attributes:
        taus: Interval indices.
        nodes: int64 (n,), dense ids by compact number.
    """

    def __init__(self, window: GraphView, snapshots: Sequence[_Snapshot], asked: Int64) -> None:
        self.taus = [snapshot.tau for snapshot in snapshots]
        empty = np.empty(0, np.int64)
        live = np.unique(np.concatenate([empty, *(snapshot.live for snapshot in snapshots)]))
        self.nodes: Int64 = np.concatenate([live, np.setdiff1d(asked, live)])
        self._window, self._snapshots = window, snapshots
        self._linked = len(live)

    def places(self, nodes: Int64) -> Int64:
        """Compact numbers int64 (n,) of nodes that are live or were asked for."""
        order = np.argsort(self.nodes)
        found: Int64 = order[np.searchsorted(self.nodes, nodes, sorter=order)]
        return found

    def graphs(self, device: torch.device) -> list[CSRGraph]:
        """The adjacency of each snapshot, symmetric and square."""
        return [self._graph(snapshot.graph, device) for snapshot in self._snapshots]

    def there(self, device: torch.device) -> Tensor:
        """Bool (t, n): the node had come by that snapshot."""
        return to_device(np.stack([self._there(snapshot) for snapshot in self._snapshots]), device)

    def inputs(self, device: torch.device) -> list[NodeInputs]:
        """The inputs of every node in each snapshot; zeros before a node has come."""
        return [self._inputs(snapshot, device) for snapshot in self._snapshots]

    def _there(self, snapshot: _Snapshot) -> Bool:
        there: Bool = self.nodes < snapshot.num_nodes
        return there

    def _graph(self, graph: Csr, device: torch.device) -> CSRGraph:
        rows = self.nodes[: self._linked]
        rows = rows[rows < graph.num_nodes]
        degree = graph.indptr[rows + 1] - graph.indptr[rows]
        indptr = np.zeros(len(self.nodes) + 1, np.int64)
        np.cumsum(degree, out=indptr[1 : len(rows) + 1])
        indptr[len(rows) + 1 :] = indptr[len(rows)]
        # Rows of nodes that are not live are empty, so all entries stay, in their order.
        assert indptr[-1] == len(graph.indices)
        sources = np.searchsorted(rows, graph.indices)
        return CSRGraph(
            to_device(indptr, device), to_device(sources, device), len(self.nodes), symmetric=True
        )

    def _inputs(self, snapshot: _Snapshot, device: torch.device) -> NodeInputs:
        there = self._there(snapshot)
        known = self.nodes[there]
        features = self._window.features(known, snapshot.tau)
        structure = np.zeros((len(self.nodes), 3), np.float32)
        degree = snapshot.graph.indptr[known + 1] - snapshot.graph.indptr[known]
        structure[there] = np.column_stack([np.log1p(degree), snapshot.activity[known]])
        every = np.zeros((len(self.nodes), features.shape[1]), np.float32)
        every[there] = features
        return NodeInputs(
            torch.from_numpy(self.nodes), to_device(every, device), to_device(structure, device)
        )


def _read(window: GraphView, tau: int) -> _Snapshot:
    graph = window.csr(tau)
    return _Snapshot(
        tau,
        graph,
        activity_of(window.events(tau), graph.num_nodes),
        np.flatnonzero(np.diff(graph.indptr)),
    )
