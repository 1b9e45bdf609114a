"""The snapshots of one group as tensors, over the nodes that live in the group instead of the whole horizon."""

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from stream.arrays.kinds import Int64
from trainer.device import to_device
from trainer.nn.csr_graph import CSRGraph
from trainer.nn.directed_graph import DirectedGraph
from trainer.timeline.horizon import Horizon, OnDevice
from trainer.timeline.view import TimelineView


class GroupHorizon(Horizon):
    """As ``Horizon``, without the slots of nodes that have no edge in its own snapshots and are not asked for.

    So the cost of a group of small snapshots does not depend on larger snapshots later on the timeline. ``live`` are the
    dense ids, int64, of the nodes with an edge in one of the snapshots.
    """

    def __init__(
        self, timeline: OnDevice, view: TimelineView, taus: Sequence[int], asked: Int64, live: Int64
    ) -> None:
        super().__init__(timeline, view, taus, asked)
        slots = timeline.nodes.find(np.concatenate([live, asked]))
        self._slots = np.unique(slots[slots >= 0])
        self.nodes = np.concatenate([timeline.nodes.ids[self._slots], self._others])

    def places(self, nodes: Int64) -> Int64:
        """See ``Horizon.places``."""
        places = self._timeline.nodes.find(nodes)
        others = np.flatnonzero(places < 0)
        places = np.searchsorted(self._slots, places)
        places[others] = len(self._slots) + np.searchsorted(self._others, nodes[others])
        return places

    def graph(self, at: int) -> CSRGraph:
        """See ``Horizon.graph``."""
        if at not in self._graphs:
            self._graphs[at] = self._narrowed(self._timeline.graph(self.taus[at]))
        return self._graphs[at]

    @cached_property
    def directed(self) -> list[DirectedGraph]:
        """See ``Horizon.directed``."""
        graphs = [self._timeline.graph(tau, directed=True) for tau in self.taus]
        return [DirectedGraph(self._narrowed(graph.into), self._narrowed(graph.out_of)) for graph in graphs]

    def _slot_rows(self, tau: int, part: slice) -> Tensor:
        return self._timeline.rows(tau, slice(0, None, 1)).index_select(0, self._kept)[part]

    @cached_property
    def _kept(self) -> Tensor:
        return to_device(self._slots, self._timeline.transfer.device)

    @cached_property
    def _numbers(self) -> Tensor:
        """Compact number by slot; meaningless for slots that are left out."""
        numbers = np.zeros(len(self._timeline.nodes), np.int64)
        numbers[self._slots] = np.arange(len(self._slots))
        return to_device(numbers, self._timeline.transfer.device)

    def _narrowed(self, graph: CSRGraph) -> CSRGraph:
        """The graph over compact numbers: omitted rows are empty, so no edge is lost or moved."""
        # A graph has the slots of the time when it was made; later ones have no edge in it.
        last = graph.num_targets
        begins = graph.indptr.index_select(0, self._kept.clamp(max=last))
        more = graph.indptr[-1:].expand(len(self.nodes) + 1 - len(begins))
        sources = self._numbers.to(graph.sources.dtype).index_select(0, graph.sources)
        indptr = torch.cat([begins, more])
        return CSRGraph(indptr, sources, len(self.nodes), values=graph.values, symmetric=graph.symmetric)
