"""``tmgcn``: a convolution in each snapshot, then means over the last ones (TM-GCN, Malik et al. 2021; as ESDG trains it)."""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from trainer.models.convolutions import LaplacianConvolution
from trainer.models.interface import MODELS, ModelShape
from trainer.models.layered import LayeredModel, one_of
from trainer.models.recurrences import MovingMean
from trainer.models.stages import Stage
from trainer.nn.graph import CSRGraph, MeanOperator


@MODELS.register
class TmGcn(LayeredModel):
    """TM-GCN: time has no parameters; rows of all layers are means, by the M-product with M_tk = 1 / min(b, t).

    Args:
        shape: Widths and window.
        bandwidth: b, snapshots that a mean is over; null: the window.
        normalise: ``after``: convolutions use the graphs of the timeline, normalised, so smoothing comes first, as in ESDG.
            ``before``: each snapshot's operator is the mean of the last b normalised ones and inputs are means, too, as in
            the authors' code. The timeline should not smooth then.
        common: See ``LayeredModel``.
    """

    name: ClassVar[str] = "tmgcn"

    def __init__(
        self, shape: ModelShape, *, bandwidth: int | None = None, normalise: str = "after", **common: Any
    ) -> None:
        self._bandwidth = shape.window if bandwidth is None else bandwidth
        self._before = one_of("normalise", normalise, "after", "before") == "before"
        if self._bandwidth < 1:
            raise ValueError(f"bandwidth must be at least 1, found {bandwidth}")
        super().__init__(shape, **common)
        if self._before:
            self.layers.insert(0, MovingMean(self._bandwidth))

    def layer(self, inputs: int) -> Sequence[Stage]:
        """See ``LayeredModel.layer``."""
        convolution = LaplacianConvolution(inputs, self.width, bias=False, activation=torch.relu_)
        return [convolution, MovingMean(self._bandwidth)]

    def operators(self, graphs: list[CSRGraph]) -> list[CSRGraph]:
        """See ``SnapshotModel.operators``."""
        if not self._before:
            return graphs
        return [MeanOperator(graphs[max(0, at + 1 - self._bandwidth) : at + 1]) for at in range(len(graphs))]
