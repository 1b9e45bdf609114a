"""The last snapshots of the graph on one rank's device, as tensors over the nodes that live in them."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from freshet_graph.stream.arrays.kinds import Bool, Float32, Int64
from freshet_graph.stream.kernels.node_sets import locate
from freshet_graph.trainer.device import to_device
from freshet_graph.trainer.models.interface import STRUCTURE, NodeInputs
from freshet_graph.trainer.nn.graph import CSRGraph, DirectedGraph
from freshet_graph.trainer.timeline.device import DeviceTimeline
from freshet_graph.trainer.timeline.graph import Snapshot, TimelineView, raw
from freshet_graph.trainer.timeline.nodes import FREE, HorizonNodes
from freshet_graph.trainer.timeline.transfer import Mode, Transfer


class Timeline:
    """Keeps the last snapshots of a view on the device, over the slots of the nodes that live in them.

    Args:
        device: Where graphs and inputs live.
        mode: How graphs are sent.

    Attributes:
        nodes: Slots.
        transfer: Counts the bytes sent.
    """

    def __init__(self, device: torch.device, mode: Mode) -> None:
        self.nodes, self.transfer = HorizonNodes(), Transfer(device)
        self._mode = mode
        self._view: TimelineView | None = None
        self._begun = 0
        self._seen = -1  # number of the newest snapshot that was taken in
        self._moved: dict[bool, DeviceTimeline] = {}
        self._graphs: dict[tuple[int, bool], Any] = {}
        self._rows: dict[tuple[int, int, int], tuple[int, Tensor]] = {}
        self._active: dict[int, Int64] = {}

    def take_in(self, view: TimelineView) -> None:
        """Take in the newest snapshots of a view."""
        host = view.timeline
        if view is not self._view or host.begun != self._begun:
            self._view, self._begun, self._seen = view, host.begun, -1
            self._moved, self._graphs, self._rows, self._active = {}, {}, {}, {}
            self.nodes.begin()
            if not host.smooths and host.snapshots[0].undirected is not None:  # taken up in the middle
                self.nodes.enter(np.unique(host.whole(0, directed=False).ends))
        generation, oldest, begins = self.nodes.generation, host.snapshots[0].number, self._seen < 0
        for snapshot in host.snapshots:
            if snapshot.number > self._seen:
                self.nodes.enter(snapshot.entered)
                self.nodes.leave(snapshot.left, snapshot.number if host.smooths else snapshot.number - 1)
        self._seen = host.snapshots[-1].number
        (self.nodes.end_of_beginning if begins else self.nodes.forget)(oldest)
        taus = set(host.taus)
        fresh = generation == self.nodes.generation
        self._graphs = {key: graph for key, graph in self._graphs.items() if fresh and key[0] in taus}
        self._rows = {key: rows for key, rows in self._rows.items() if key[0] in taus}
        self._active = {tau: nodes for tau, nodes in self._active.items() if tau in taus}

    def before_newest(self, wanted: Int64) -> "Horizon":
        """The snapshots before the newest, which its prediction may look at."""
        return self._horizon(slice(-1), wanted)

    def through_newest(self, wanted: Int64) -> "Horizon":
        """The newest snapshots, which the next prediction will look at."""
        return self._horizon(slice(None), wanted)

    def graph(self, tau: int, *, directed: bool = False) -> Any:
        """The graph of a snapshot over the slots of the time when it was first asked for."""
        assert self._view is not None
        if (tau, directed) not in self._graphs:
            if directed not in self._moved:
                self._moved[directed] = DeviceTimeline(
                    self._view.timeline, self.nodes, self.transfer, self._mode, directed=directed
                )
            self._graphs[tau, directed] = self._moved[directed].graph_of(tau)
        return self._graphs[tau, directed]

    def rows(self, tau: int, part: slice) -> Tensor:
        """``node_rows`` of a part of the slots in a snapshot, on the device; sent again if a slot has another node."""
        assert self._view is not None
        key = tau, part.start, part.step
        if key not in self._rows or self._rows[key][0] != self.nodes.version:
            sent = self.transfer.features(node_rows(self._view, tau, self.nodes.ids[part]))
            self._rows[key] = self.nodes.version, sent
        return self._rows[key][1]

    def active(self, tau: int) -> Int64:
        """Dense ids of the nodes that have an edge in a snapshot, ascending, from the host."""
        assert self._view is not None
        if tau not in self._active:
            host = self._view.timeline
            self._active[tau] = np.unique(host.whole(host.place(tau), directed=False).ends)
        return self._active[tau]

    def release(self, taus: Sequence[int]) -> None:
        """Drop graphs. The device keeps their differences, so building them again sends nothing."""
        for tau in taus:
            self._graphs.pop((tau, False), None)

    @property
    def memory_bytes(self) -> int:
        """Bytes held beside the view: slots, and the graphs on the device."""
        graphs = sum(
            tensor.nbytes
            for graph in self._graphs.values()
            for csr in ((graph.into, graph.out_of) if isinstance(graph, DirectedGraph) else (graph,))
            for tensor in (csr.indptr, csr.sources, csr.values)
            if tensor is not None
        )
        rows = sum(sent.nbytes for _, sent in self._rows.values())
        moved = sum(adjacency.memory_bytes for adjacency in self._moved.values())
        return self.nodes.memory_bytes + rows + graphs + moved

    def _horizon(self, chosen: slice, wanted: Int64) -> "Horizon":
        assert self._view is not None
        host = self._view.timeline
        return Horizon(self, self._view, host.taus[chosen][-(host.length - 1) :], wanted)


class Horizon:
    """Consecutive snapshots over compact numbers: slots of nodes with an edge in one of them, then further asked nodes.

    A node without edges affects no other row, so it can be left out. Memory follows the live nodes, not the number of ids
    that the stream has had. A horizon is valid until the timeline takes in another snapshot.

    Args:
        timeline: Has the graphs.
        view: Has the inputs of nodes.
        taus: Interval indices, ascending.
        wanted: int64, ascending, dense ids of the nodes whose rows are wanted.

    Attributes:
        taus: Interval indices.
        nodes: int64 (n,), dense ids by compact number; ``FREE`` for free slots.
    """

    def __init__(self, timeline: Timeline, view: TimelineView, taus: Sequence[int], wanted: Int64) -> None:
        self.taus = list(taus)
        self._others = wanted[timeline.nodes.find(wanted) < 0]
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

    def graph(self, place: int) -> CSRGraph:
        """The adjacency of the snapshot at a place, symmetric and square."""
        if place not in self._graphs:
            self._graphs[place] = self._over_nodes(self._timeline.graph(self.taus[place]))
        return self._graphs[place]

    def graphs(self) -> list[CSRGraph]:
        """Those of all snapshots."""
        return [self.graph(place) for place in range(len(self.taus))]

    def active(self, place: int) -> Bool:
        """Bool (n,): the nodes that have an edge in the snapshot at a place, from the host."""
        if place not in self._active:
            is_active = np.zeros(len(self.nodes), np.bool_)
            is_active[self._timeline.nodes.find(self._timeline.active(self.taus[place]))] = True
            self._active[place] = is_active
        return self._active[place]

    def release(self, places: Sequence[int]) -> None:
        """Drop the graphs of snapshots from the device, which moves back to them on demand."""
        for place in places:
            self._graphs.pop(place, None)
        self._timeline.release([self.taus[place] for place in places])

    @cached_property
    def directed(self) -> list[DirectedGraph]:
        """The directed pairs of each snapshot with their weights, both ways; self-loops are left out."""
        graphs = [self._timeline.graph(tau, directed=True) for tau in self.taus]
        return [
            DirectedGraph(self._over_nodes(graph.into), self._over_nodes(graph.out_of)) for graph in graphs
        ]

    @cached_property
    def present(self) -> Tensor:
        """Bool (t, n): the node had come by that snapshot."""
        host = self._view.timeline
        come = [self.nodes < host.snapshots[host.place(tau)].num_nodes for tau in self.taus]
        return to_device(np.stack(come) & (self.nodes != FREE), self._timeline.transfer.device)

    def inputs(self, place: int) -> NodeInputs:
        """The inputs of every node in the snapshot at a place; zeros before a node has come."""
        means = self._view.timeline.smoothing.kind == "m-product"
        rows = self._rows(place, slice(0, None, 1))
        return split_rows(self.nodes, rows, None if means else self.graph(place).degrees)

    def inputs_alone(self, place: int, part: slice, chosen: Int64) -> NodeInputs:
        """The inputs of nodes that have no edge in the snapshot at a place, without its graph.

        Args:
            place: Place of the snapshot.
            part: First compact number and step, of this rank's nodes.
            chosen: int64, places among those.
        """
        means = self._view.timeline.smoothing.kind == "m-product"
        rows = self._rows(place, part)
        rows = rows.index_select(0, to_device(chosen, rows.device))
        return split_rows(self.nodes[part][chosen], rows, None if means else rows.new_zeros(len(rows)))

    def _rows(self, place: int, part: slice) -> Tensor:
        """``node_rows`` of every ``part.step``-th compact number from ``part.start`` on."""
        tau = self.taus[place]
        rows = self._slot_rows(tau, part)
        others = self._others[(part.start - len(self._timeline.nodes)) % part.step :: part.step]
        if len(others):
            rows = torch.cat([rows, self._timeline.transfer.features(node_rows(self._view, tau, others))])
        return rows

    def _slot_rows(self, tau: int, part: slice) -> Tensor:
        return self._timeline.rows(tau, part)

    def _over_nodes(self, graph: CSRGraph) -> CSRGraph:
        """A graph of the timeline over compact numbers: those beyond its slots have empty rows."""
        n = len(self.nodes)
        if graph.num_targets == n:
            return graph
        indptr = torch.cat([graph.indptr, graph.indptr[-1:].expand(n - graph.num_targets)])
        return CSRGraph(indptr, graph.sources, n, values=graph.values, symmetric=graph.symmetric)


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
        member_rows = _own_rows(view, member, nodes)
        split = member_rows.shape[1] - STRUCTURE + 1
        degree = _raw_degree(member, nodes)
        rows = np.column_stack([member_rows[:, :split], degree, member_rows[:, split:]])
        total = total + rows if total.shape[1] else rows
    return total / np.float32(len(members))


def _own_rows(view: TimelineView, snapshot: Snapshot, nodes: Int64) -> Float32:
    arrived = np.flatnonzero((nodes != FREE) & (nodes < snapshot.num_nodes))
    features = view.features(nodes[arrived], snapshot.tau)
    rows = np.zeros((len(nodes), features.shape[1] + STRUCTURE - 1), np.float32)
    rows[arrived, : features.shape[1]] = features
    place, active = locate(snapshot.active, nodes)
    rows[active, features.shape[1] :] = snapshot.activity[place[active]]
    return rows


def _raw_degree(snapshot: Snapshot, nodes: Int64) -> Float32:
    (entries,) = raw([snapshot], directed=False)
    ends, degree = np.unique(entries.ends, return_counts=True)
    place, linked = locate(ends, nodes)
    rows = np.zeros(len(nodes), np.float32)
    rows[linked] = np.log1p(degree[place[linked]])
    return rows


class GroupHorizon(Horizon):
    """As ``Horizon``, without the slots of nodes that have no edge in its own snapshots and are not asked for.

    So the cost of a group of small snapshots does not depend on larger snapshots later on the timeline. ``live`` are the
    dense ids, int64, of the nodes with an edge in one of the snapshots.
    """

    def __init__(
        self, timeline: Timeline, view: TimelineView, taus: Sequence[int], wanted: Int64, live: Int64
    ) -> None:
        super().__init__(timeline, view, taus, wanted)
        slots = timeline.nodes.find(np.concatenate([live, wanted]))
        self._slots = np.unique(slots[slots >= 0])
        self.nodes = np.concatenate([timeline.nodes.ids[self._slots], self._others])

    @override
    def places(self, nodes: Int64) -> Int64:
        places = self._timeline.nodes.find(nodes)
        others = np.flatnonzero(places < 0)
        places = np.searchsorted(self._slots, places)
        places[others] = len(self._slots) + np.searchsorted(self._others, nodes[others])
        return places

    @override
    def _slot_rows(self, tau: int, part: slice) -> Tensor:
        return self._timeline.rows(tau, slice(0, None, 1)).index_select(0, self._slots_on_device)[part]

    @cached_property
    def _slots_on_device(self) -> Tensor:
        return to_device(self._slots, self._timeline.transfer.device)

    @cached_property
    def _numbers(self) -> Tensor:
        """Compact number by slot; meaningless for slots that are left out."""
        numbers = np.zeros(len(self._timeline.nodes), np.int64)
        numbers[self._slots] = np.arange(len(self._slots))
        return to_device(numbers, self._timeline.transfer.device)

    @override
    def _over_nodes(self, graph: CSRGraph) -> CSRGraph:
        # Omitted rows are empty, so no edge is lost or moved.
        # A graph has the slots of the time when it was made; later ones have no edge in it.
        last = graph.num_targets
        begins = graph.indptr.index_select(0, self._slots_on_device.clamp(max=last))
        more = graph.indptr[-1:].expand(len(self.nodes) + 1 - len(begins))
        sources = self._numbers.to(graph.sources.dtype).index_select(0, graph.sources)
        indptr = torch.cat([begins, more])
        return CSRGraph(indptr, sources, len(self.nodes), values=graph.values, symmetric=graph.symmetric)
