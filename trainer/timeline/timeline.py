"""The timeline of one rank: the last snapshots of the graph on its device, over the nodes that live in them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stream.arrays.kinds import Int64
from trainer.nn.directed_graph import DirectedGraph
from trainer.timeline.device import DeviceTimeline
from trainer.timeline.horizon import Horizon, node_rows
from trainer.timeline.nodes import HorizonNodes
from trainer.timeline.snapshot import Snapshot
from trainer.timeline.transfer import Mode, Transfer
from trainer.timeline.view import TimelineView


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
                self._enter(snapshot, smooths=host.smooths)
        self._seen = host.snapshots[-1].number
        (self.nodes.end_of_beginning if begins else self.nodes.forget)(oldest)
        taus = set(host.taus)
        fresh = generation == self.nodes.generation
        self._graphs = {key: graph for key, graph in self._graphs.items() if fresh and key[0] in taus}
        self._rows = {key: rows for key, rows in self._rows.items() if key[0] in taus}
        self._active = {tau: nodes for tau, nodes in self._active.items() if tau in taus}

    def before_newest(self, asked: Int64) -> Horizon:
        """The snapshots before the newest, which its prediction may look at."""
        return self._horizon(slice(-1), asked)

    def through_newest(self, asked: Int64) -> Horizon:
        """The newest snapshots, which the next prediction will look at."""
        return self._horizon(slice(None), asked)

    def graph(self, tau: int, *, directed: bool = False) -> Any:
        """The graph of a snapshot over the slots of the time when it was first asked for."""
        assert self._view is not None
        found = self._graphs.get((tau, directed))
        if found is None:
            if directed not in self._moved:
                self._moved[directed] = DeviceTimeline(
                    self._view.timeline, self.nodes, self.transfer, self._mode, directed=directed
                )
            found = self._graphs[tau, directed] = self._moved[directed].at(tau)
        return found

    def rows(self, tau: int, part: slice) -> Tensor:
        """``node_rows`` of a part of the slots in a snapshot, on the device; sent again if a slot has another node."""
        assert self._view is not None
        key = tau, part.start, part.step
        version, found = self._rows.get(key, (-1, None))
        if found is None or version != self.nodes.version:
            found = self.transfer.features(node_rows(self._view, tau, self.nodes.ids[part]))
            self._rows[key] = self.nodes.version, found
        return found

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
            for each in ((graph.into, graph.out_of) if isinstance(graph, DirectedGraph) else (graph,))
            for tensor in (each.indptr, each.sources, each.values)
            if tensor is not None
        )
        rows = sum(found.nbytes for _, found in self._rows.values())
        return (
            self.nodes.memory_bytes + rows + graphs + sum(each.memory_bytes for each in self._moved.values())
        )

    def _enter(self, snapshot: Snapshot, *, smooths: bool) -> None:
        self.nodes.enter(snapshot.entered)
        self.nodes.leave(snapshot.left, snapshot.number if smooths else snapshot.number - 1)

    def _horizon(self, chosen: slice, asked: Int64) -> Horizon:
        assert self._view is not None
        host = self._view.timeline
        return Horizon(self, self._view, host.taus[chosen][-(host.length - 1) :], asked)
