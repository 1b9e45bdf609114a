"""Consecutive snapshots of a timeline as tensors: graphs, inputs, and the nodes that had come."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from stream.arrays.kinds import Bool, Float32, Int64
from trainer.device import to_device
from trainer.models.interface import STRUCTURE, NodeInputs
from trainer.nn.csr_graph import CSRGraph
from trainer.nn.directed_graph import DirectedGraph
from trainer.timeline.nodes import FREE, HorizonNodes
from trainer.timeline.snapshot import Snapshot, raw
from trainer.timeline.transfer import Transfer
from trainer.timeline.view import TimelineView


class OnDevice(Protocol):
    """The part of a ``Timeline`` that a horizon needs."""

    nodes: HorizonNodes
    transfer: Transfer

    def graph(self, tau: int, *, directed: bool = False) -> Any:
        """See ``Timeline.graph``."""
        ...

    def rows(self, tau: int, part: slice) -> Tensor:
        """See ``Timeline.rows``."""
        ...

    def active(self, tau: int) -> Int64:
        """See ``Timeline.active``."""
        ...

    def release(self, taus: Sequence[int]) -> None:
        """See ``Timeline.release``."""
        ...


class Horizon:
    """Consecutive snapshots over compact numbers: slots of nodes with an edge in one of them, then further asked nodes.

    A node without edges affects no other row, so it can be left out. Memory follows the live nodes, not the number of ids
    that the stream has had. A horizon is valid until the timeline takes in another snapshot.

    Args:
        timeline: Has the graphs.
        view: Has the inputs of nodes.
        taus: Interval indices, ascending.
        asked: int64, ascending, dense ids of the nodes whose rows are wanted.

    Attributes:
        taus: Interval indices.
        nodes: int64 (n,), dense ids by compact number; ``FREE`` for free slots.
    """

    def __init__(self, timeline: OnDevice, view: TimelineView, taus: Sequence[int], asked: Int64) -> None:
        self.taus = list(taus)
        self._others = asked[timeline.nodes.find(asked) < 0]
        self.nodes: Int64 = np.concatenate([timeline.nodes.ids, self._others])
        self._timeline, self._view = timeline, view
        self._graphs: dict[int, CSRGraph] = {}
        self._active: dict[int, Bool] = {}

    def places(self, nodes: Int64) -> Int64:
        """Compact numbers int64 (n,) of nodes that are live or were asked for."""
        places = self._timeline.nodes.find(nodes)
        others = np.flatnonzero(places < 0)
        places[others] = len(self._timeline.nodes) + np.searchsorted(self._others, nodes[others])
        return places

    def graph(self, at: int) -> CSRGraph:
        """The adjacency of the snapshot at a place, symmetric and square."""
        if at not in self._graphs:
            self._graphs[at] = _widened(self._timeline.graph(self.taus[at]), len(self.nodes))
        return self._graphs[at]

    def graphs(self) -> list[CSRGraph]:
        """Those of all snapshots."""
        return [self.graph(at) for at in range(len(self.taus))]

    def active(self, at: int) -> Bool:
        """Bool (n,): the nodes that have an edge in the snapshot at a place, from the host."""
        if at not in self._active:
            found = np.zeros(len(self.nodes), np.bool_)
            found[self._timeline.nodes.find(self._timeline.active(self.taus[at]))] = True
            self._active[at] = found
        return self._active[at]

    def release(self, places: Sequence[int]) -> None:
        """Drop the graphs of snapshots from the device, which moves back to them on demand."""
        for at in places:
            self._graphs.pop(at, None)
        self._timeline.release([self.taus[at] for at in places])

    @cached_property
    def directed(self) -> list[DirectedGraph]:
        """The directed pairs of each snapshot with their weights, both ways; self-loops are left out."""
        graphs = [self._timeline.graph(tau, directed=True) for tau in self.taus]
        n = len(self.nodes)
        return [DirectedGraph(_widened(graph.into, n), _widened(graph.out_of, n)) for graph in graphs]

    @cached_property
    def there(self) -> Tensor:
        """Bool (t, n): the node had come by that snapshot."""
        host = self._view.timeline
        come = [self.nodes < host.snapshots[host.place(tau)].num_nodes for tau in self.taus]
        return to_device(np.stack(come) & (self.nodes != FREE), self._timeline.transfer.device)

    def inputs(self, at: int) -> NodeInputs:
        """The inputs of every node in the snapshot at a place; zeros before a node has come."""
        means = self._view.timeline.smoothing.kind == "m-product"
        rows = self._rows(at, slice(0, None, 1))
        return split_rows(self.nodes, rows, None if means else self.graph(at).degrees)

    def inputs_alone(self, at: int, part: slice, chosen: Int64) -> NodeInputs:
        """The inputs of nodes that have no edge in the snapshot at a place, without its graph.

        Args:
            at: Place of the snapshot.
            part: First compact number and step, of this rank's nodes.
            chosen: int64, places among those.
        """
        means = self._view.timeline.smoothing.kind == "m-product"
        rows = self._rows(at, part)
        rows = rows.index_select(0, to_device(chosen, rows.device))
        return split_rows(self.nodes[part][chosen], rows, None if means else rows.new_zeros(len(rows)))

    def _rows(self, at: int, part: slice) -> Tensor:
        """``node_rows`` of every ``part.step``-th compact number from ``part.start`` on."""
        tau = self.taus[at]
        rows = self._slot_rows(tau, part)
        others = self._others[(part.start - len(self._timeline.nodes)) % part.step :: part.step]
        if len(others):
            rows = torch.cat([rows, self._timeline.transfer.features(node_rows(self._view, tau, others))])
        return rows

    def _slot_rows(self, tau: int, part: slice) -> Tensor:
        return self._timeline.rows(tau, part)


def split_rows(nodes: Int64, rows: Tensor, degrees: Tensor | None) -> NodeInputs:
    """Inputs of nodes from ``node_rows`` and degrees; None: the rows have them."""
    if degrees is None:
        return NodeInputs(torch.from_numpy(nodes), rows[:, :-STRUCTURE], rows[:, -STRUCTURE:])
    degree = degrees.double().log1p().float().unsqueeze(1)
    structure = torch.cat([degree, rows[:, 1 - STRUCTURE :]], dim=1)
    return NodeInputs(torch.from_numpy(nodes), rows[:, : 1 - STRUCTURE], structure)


def node_rows(view: TimelineView, tau: int, nodes: Int64) -> Float32:
    """Inputs that do not follow from a snapshot's graph: float32 (n, F + STRUCTURE − 1) features and activity.

    Under the M-product they are means over the raw snapshots, and degrees are among them: (n, F + STRUCTURE), in order of
    features, log(1 + degree) and activity.

    Args:
        view: Has the features.
        tau: Snapshot.
        nodes: int64 (n,) dense ids, or ``FREE``.
    """
    host = view.timeline
    place = host.place(tau)
    if host.smoothing.kind != "m-product":
        return _own_rows(view, host.snapshots[place], nodes)
    members = host.members(place)
    total = np.zeros((len(nodes), 0), np.float32)
    for member in members:
        own = _own_rows(view, member, nodes)
        split = own.shape[1] - STRUCTURE + 1
        degree = _raw_degree(member, nodes)
        rows = np.column_stack([own[:, :split], degree, own[:, split:]])
        total = total + rows if total.shape[1] else rows
    return total / np.float32(len(members))


def _own_rows(view: TimelineView, snapshot: Snapshot, nodes: Int64) -> Float32:
    there = np.flatnonzero((nodes != FREE) & (nodes < snapshot.num_nodes))
    features = view.features(nodes[there], snapshot.tau)
    rows = np.zeros((len(nodes), features.shape[1] + STRUCTURE - 1), np.float32)
    rows[there, : features.shape[1]] = features
    at, found = _found(snapshot.active, nodes)
    rows[found, features.shape[1] :] = snapshot.activity[at]
    return rows


def _raw_degree(snapshot: Snapshot, nodes: Int64) -> Float32:
    (entries,) = raw([snapshot], directed=False)
    ends, degree = np.unique(entries.ends, return_counts=True)
    at, found = _found(ends, nodes)
    rows = np.zeros(len(nodes), np.float32)
    rows[found] = np.log1p(degree[at])
    return rows


def _found(known: Int64, nodes: Int64) -> tuple[Int64, Int64]:
    """Places in ascending ``known`` of the nodes that are there, and their places in ``nodes``."""
    at = np.searchsorted(known, nodes)
    found = at < len(known)
    found[found] = known[at[found]] == nodes[found]
    return at[found], np.flatnonzero(found)


def _widened(graph: CSRGraph, rows: int) -> CSRGraph:
    """The same graph with more, empty rows and columns."""
    if graph.num_targets == rows:
        return graph
    more = graph.indptr[-1:].expand(rows - graph.num_targets)
    return CSRGraph(
        torch.cat([graph.indptr, more]), graph.sources, rows, values=graph.values, symmetric=graph.symmetric
    )
