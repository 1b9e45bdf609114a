"""``tmgcn``: a convolution in each snapshot, then means over the last ones (TM-GCN, Malik et al. 2021; as ESDG trains it)."""

from typing import ClassVar

import torch

from trainer.models.convolutions import LaplacianConvolution
from trainer.models.interface import MODELS, ModelShape
from trainer.models.layered import LayeredModel, one_of
from trainer.models.recurrences import MovingMean
from trainer.nn.csr_graph import CSRGraph
from trainer.nn.mean_operator import MeanOperator


@MODELS.register
class TmGcn(LayeredModel):
    """TM-GCN: time has no parameters; rows of all layers are means, by the M-product with M_tk = 1 / min(b, t).

    Args:
        shape: Widths and window.
        hidden: Width of all embeddings.
        layers: Pairs of convolution and mean.
        bandwidth: b, snapshots that a mean is over; null: the window.
        normalise: ``after``: convolutions are by the graphs as the timeline has them, normalised, so smoothing comes first,
            as in ESDG; ``before``: each snapshot's operator is the mean of the last b normalised ones and inputs are means,
            too, as in the authors' code. The timeline should not smooth then.
        signature: Width of the nodes' random signatures, at most 64.
        encounters: Whether the head also sees what is known without the graph: how long ago and how often two nodes met,
            or what a node's target was.
    """

    name: ClassVar[str] = "tmgcn"

    def __init__(
        self,
        shape: ModelShape,
        *,
        hidden: int = 64,
        layers: int = 2,
        bandwidth: int | None = None,
        normalise: str = "after",
        signature: int = 32,
        encounters: bool = True,
    ) -> None:
        self._bandwidth = shape.window if bandwidth is None else bandwidth
        self._before = one_of("normalise", normalise, "after", "before") == "before"
        if self._bandwidth < 1:
            raise ValueError(f"bandwidth must be at least 1, found {bandwidth}")
        super().__init__(
            shape,
            lambda width: [
                LaplacianConvolution(width, hidden, bias=False, activation=torch.relu_),
                MovingMean(self._bandwidth),
            ],
            hidden=hidden,
            layers=layers,
            signature=signature,
            encounters=encounters,
        )
        if self._before:
            self.layers.insert(0, MovingMean(self._bandwidth))

    def operators(self, graphs: list[CSRGraph]) -> list[CSRGraph]:
        """See ``SnapshotModel.operators``."""
        if not self._before:
            return graphs
        return [MeanOperator(graphs[max(0, at + 1 - self._bandwidth) : at + 1]) for at in range(len(graphs))]
