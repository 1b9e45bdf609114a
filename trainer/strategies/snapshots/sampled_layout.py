"""A window whose rows are spread over ranks by node: each (node, snapshot, layer) is computed by the node's owner.

DistDy section 3.1 has the owner of a training node sample its neighbours, fetch the features of those that other
workers store, and gather the node's structural embeddings of earlier snapshots from the workers that stored it
then. With more than one layer a neighbour's own neighbours are with the neighbour's owner, so here every layer's
row is computed by its owner and sent to whoever asks: features of remote neighbours at the lowest layer,
embeddings above. Nothing is computed twice, edges never travel, and with equal samples the result is that of one
rank, whatever the partition.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from trainer.device import to_device
from trainer.models.stages import Carry, CellStage, GraphStage
from trainer.nn.csr_graph import CSRGraph
from trainer.ranks import Ranks
from trainer.strategies.request import Request
from trainer.strategies.snapshots.past import Past

Int64 = NDArray[np.int64]
Encode = Callable[[Int64], Tensor]


@dataclass(frozen=True, slots=True)
class _Level:
    """One graph stage, as this rank computes it.

    Attributes:
        request: Who wants which of its rows.
        graph: Targets × sources, all snapshots side by side.
        own: int64 (targets,), the targets' places among the sources.
        answered: int64, the target of each row that is wanted.
    """

    request: Request
    graph: CSRGraph
    own: Tensor
    answered: Tensor


class SampledLayout:
    """Rows of some nodes in every snapshot, for models whose graph stages all come before their time stages.

    Args:
        stages: The model's graph stages, in order.
        past: The window.
        nodes: int64 (n,) sorted and distinct; other ranks may ask for others, or for none.
        encode: Input rows (m, d₀) of sorted, distinct keys; a collective.
        ranks: All ranks make a layout together.
        seed: Of the neighbour samples; equal on all ranks.

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
    ) -> None:
        self.steps = len(past.snapshots)
        self._nodes, self._encode = len(nodes), encode
        self._levels: list[_Level] = []
        wanted = past.keys(nodes).ravel()
        self._there = to_device(past.homes(wanted) >= 0, ranks.device).view(self.steps, self._nodes)
        for layer in reversed(range(len(stages))):
            request = Request(wanted, past.homes(wanted), ranks)
            targets, place = np.unique(request.asked, return_inverse=True)
            indptr, neighbours = past.sample(targets, stages[layer].fanout, seed + layer)
            wanted = np.unique(np.concatenate([targets, neighbours]))
            graph = CSRGraph(
                to_device(indptr, ranks.device),
                to_device(np.searchsorted(wanted, neighbours), ranks.device),
                len(wanted),
            )
            own = to_device(np.searchsorted(wanted, targets), ranks.device)
            self._levels.append(_Level(request, graph, own, to_device(place, ranks.device)))
        self._lowest = wanted

    def inputs(self) -> Tensor:
        """See ``Layout.inputs``: of the neighbours farthest away."""
        return self._encode(self._lowest)

    def along_graph(self, stage: GraphStage, weights: list[Any], x: Tensor) -> Tensor:
        """See ``Layout.along_graph``: all snapshots in one product, whose weights are the same."""
        level = self._levels.pop()
        rows = stage(level.graph, x.index_select(0, level.own), x, weights[0] if weights else None)
        return level.request.answer(rows.index_select(0, level.answered), "embeddings")

    def summaries(self, stage: GraphStage, x: Tensor) -> list[Tensor]:
        """Not possible: a snapshot's other rows are elsewhere."""
        raise AssertionError(f"{type(stage).__name__} was not refused")

    def along_both(self, stage: CellStage, x: Tensor, carry: Carry) -> tuple[Tensor, Carry]:
        """Not possible: the rows of a cell's neighbours are elsewhere."""
        raise AssertionError(f"{type(stage).__name__} was not refused")

    def to_nodes(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """See ``Layout.to_nodes``: rows are zero where a node had not come yet."""
        return x.view(self.steps, self._nodes, x.shape[1]), self._there

    def to_snapshots(self, rows: Tensor) -> Tensor:
        """Not possible: the rows of neighbours are not there."""
        raise AssertionError("a graph stage after a time stage was not refused")

    def embeddings(self, x: Tensor) -> Tensor:
        """See ``Layout.embeddings``."""
        return self.to_nodes(x)[0]
