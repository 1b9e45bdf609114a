"""A window whose rows are spread over ranks by node: each (node, snapshot, layer) is computed by the node's owner.

In DistDy section 3.1 the owner of a training node samples its neighbours, fetches the features of those that other
workers store, and gathers the node's structural embeddings of earlier snapshots from the workers that stored it then.
With several layers the owner of a neighbour has that neighbour's own neighbours. So here every layer's row is computed
by its owner and sent on request: features of remote neighbours at the lowest layer, embeddings above. Nothing is
computed twice, edges never travel, and with equal samples the result is that of one rank for any partition.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from torch import Tensor

from stream.arrays.kinds import Int64
from trainer.device import to_device
from trainer.models.stages import Carry, CellStage, GraphStage
from trainer.nn.csr_graph import CSRGraph
from trainer.nn.products import padded
from trainer.ranks import Ranks
from trainer.strategies.request import Request
from trainer.strategies.snapshots.hop import Hop
from trainer.strategies.snapshots.past import Past

Encode = Callable[[Int64], Tensor]


@dataclass(frozen=True, slots=True)
class Shared:
    """A sample and its inputs, shared by steps over parts of its nodes.

    Attributes:
        hops: One per graph stage, in order.
        inputs: Rows of the lowest hop's sources; if the lowest stage gathers, what it has gathered for its targets.
        gathers: Whether it does, see ``GraphStage.gather``.
        below: Of each hop but the lowest: int64, where its sources stand among the targets of the one below.
    """

    hops: list[Hop]
    inputs: Tensor
    gathers: bool
    below: list[Int64]


@dataclass(frozen=True, slots=True)
class _Level:
    """One graph stage, as this rank computes it.

    Attributes:
        request: Who wants which of its rows.
        hop: Its targets and their sources; None: of a shared sample, whose inputs are gathered.
        answered: int64, the target of each row that is wanted; None: each is wanted once, in order.
    """

    request: Request
    hop: Hop | None
    answered: Tensor | None


class SampledLayout:
    """Rows of some nodes in every snapshot, for models whose graph stages all come before their time stages.

    Args:
        stages: The model's graph stages, in order.
        past: The window.
        nodes: int64 (n,) sorted and distinct; other ranks may ask for others, or for none.
        encode: Input rows (m, d₀) of sorted, distinct keys; a collective.
        ranks: All ranks make a layout together.
        seed: Of the neighbour samples; equal on all ranks.
        shared: Shared data of a layout with the same seed, whose nodes include these.

    Attributes:
        steps: Snapshots.
    """

    def __init__(
        self,
        stages: Sequence[GraphStage],
        past: Past,
        nodes: Int64,
        encode: Encode,
        ranks: Ranks,
        seed: int,
        shared: Shared | None = None,
    ) -> None:
        self.steps = len(past.snapshots)
        self._nodes, self._encode, self._shared, self._ranks = len(nodes), encode, shared, ranks
        self._levels: list[_Level] = []
        wanted = past.keys(nodes).ravel()
        homes = past.homes(wanted)
        self._there = to_device(homes >= 0, ranks.device).view(self.steps, self._nodes)
        self._used: Int64 | None = None
        for layer in reversed(range(len(stages))):
            request = Request(wanted, homes, ranks)
            if ranks.size == 1:
                targets, answered = request.asked, None
            else:
                targets, place = np.unique(request.asked, return_inverse=True)
                answered = to_device(place, ranks.device)
            if shared is None:
                hop = Hop.drawn(past, targets, stages[layer].fanout, seed + layer)
            else:
                if ranks.size > 1 or self._used is None:  # one rank is asked for all that it wants
                    self._used = np.searchsorted(shared.hops[layer].targets, targets)
                if shared.gathers and not layer:
                    self._levels.append(_Level(request, None, answered))
                    return
                hop, self._used = shared.hops[layer].of(self._used)
                if layer and ranks.size == 1:
                    self._used = shared.below[layer - 1][self._used]
            self._levels.append(_Level(request, hop, answered))
            wanted = hop.sources
            if layer:
                homes = past.homes(wanted) if ranks.size > 1 else np.zeros(len(wanted), np.int32)
        self._lowest = wanted

    def inputs(self) -> Tensor:
        """See ``Layout.inputs``: of the neighbours farthest away."""
        if self._shared is None:
            return self._encode(self._lowest)
        assert self._used is not None
        used, inputs = self._used, self._shared.inputs
        if self._shared.gathers:
            beyond = padded(len(used), inputs) - len(used)  # rows that nobody asks for
            used = np.concatenate([used, np.zeros(beyond, np.int64)])
        return inputs.index_select(0, self._places(used))

    def share(self, stage: GraphStage) -> Shared:
        """Data for layouts of some of these nodes, without a gradient; the lowest stage gathers, if it can."""
        hops = [level.hop for level in reversed(self._levels) if level.hop is not None]
        below = [np.searchsorted(low.targets, high.sources) for low, high in pairwise(hops)]
        x = self.inputs()
        table = stage.gather(self._graph(hops[0]), self._places(hops[0].own), x)
        return Shared(hops, x if table is None else table, table is not None, below)

    def along_graph(self, stage: GraphStage, weights: list[Any], x: Tensor) -> Tensor:
        """See ``Layout.along_graph``: all snapshots, with the same weights, in one product."""
        level = self._levels.pop()
        if level.hop is None:
            assert self._used is not None
            rows = stage.gathered(x, len(self._used))
        else:
            graph, own = self._graph(level.hop), self._places(level.hop.own)
            table = stage.gather(graph, own, x)
            if table is not None:
                rows = stage.gathered(table, len(own))
            else:
                rows = stage(graph, x.index_select(0, own), x, weights[0] if weights else None)
        if level.answered is not None:
            rows = rows.index_select(0, level.answered)
        return level.request.answer(rows, "embeddings")

    def summaries(self, stage: GraphStage, x: Tensor) -> list[Tensor]:
        """Not possible: other rows of a snapshot are on other ranks."""
        raise AssertionError(f"{type(stage).__name__} was not refused")

    def along_both(self, stage: CellStage, x: Tensor, carry: Carry) -> tuple[Tensor, Carry]:
        """Not possible: the rows of a cell's neighbours are on other ranks."""
        raise AssertionError(f"{type(stage).__name__} was not refused")

    def to_nodes(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """See ``Layout.to_nodes``: rows are zero where a node had not come yet."""
        return x.view(self.steps, self._nodes, x.shape[1]), self._there

    def to_snapshots(self, rows: Tensor) -> Tensor:
        """Not possible: the rows of neighbours are missing."""
        raise AssertionError("a graph stage after a time stage was not refused")

    def embeddings(self, x: Tensor) -> Tensor:
        """See ``Layout.embeddings``."""
        return self.to_nodes(x)[0]

    def _graph(self, hop: Hop) -> CSRGraph:
        return CSRGraph(self._places(hop.indptr), self._places(hop.neighbours), len(hop.sources))

    def _places(self, places: Int64) -> Tensor:
        return to_device(places, self._ranks.device)
