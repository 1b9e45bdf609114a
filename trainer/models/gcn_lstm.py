"""``cdgcn`` and ``wdgcn``: a convolution in each snapshot, then one LSTM for all nodes (Manessi et al. 2020)."""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from trainer.models.convolutions import ConcatenatedConvolution, LaplacianConvolution
from trainer.models.interface import MODELS, ModelShape
from trainer.models.layered import LayeredModel, one_of
from trainer.models.recurrences import Lstm
from trainer.models.stages import Stage


@MODELS.register
class CdGcn(LayeredModel):
    """CD-GCN: the LSTM sees the convolution beside its inputs (ESDG section 2.2).

    Args:
        shape: Widths and window.
        skip: Rows beside the convolution: ``aggregated`` ones, as in ESDG, or ``inputs``, as in Manessi et al.
        common: See ``LayeredModel``.
    """

    name: ClassVar[str] = "cdgcn"

    def __init__(self, shape: ModelShape, *, skip: str = "aggregated", **common: Any) -> None:
        self._skip = one_of("skip", skip, "aggregated", "inputs")
        super().__init__(shape, **common)

    def layer(self, inputs: int) -> Sequence[Stage]:
        """See ``LayeredModel.layer``."""
        convolution = ConcatenatedConvolution(inputs, self.width, skip=self._skip)
        return [convolution, Lstm(inputs + self.width, self.width)]


@MODELS.register
class WdGcn(LayeredModel):
    """WD-GCN: the LSTM sees the convolution alone (as DyGNeX trains it)."""

    name: ClassVar[str] = "wdgcn"

    def layer(self, inputs: int) -> Sequence[Stage]:
        """See ``LayeredModel.layer``."""
        convolution = LaplacianConvolution(inputs, self.width, bias=False, activation=torch.relu_)
        return [convolution, Lstm(self.width, self.width)]
