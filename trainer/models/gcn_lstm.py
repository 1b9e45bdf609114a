"""``cdgcn`` and ``wdgcn``: a convolution in each snapshot, then one LSTM for all nodes (Manessi et al. 2020)."""

from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from pydantic import Field
from typing_extensions import override

from freshet_graph.schemas.section import Section
from freshet_graph.trainer.models.convolutions import ConcatenatedConvolution, LaplacianConvolution
from freshet_graph.trainer.models.interface import MODELS, ModelShape
from freshet_graph.trainer.models.layered import ConvolvedOptions, LayeredModel, LayeredOptions
from freshet_graph.trainer.models.recurrences import Lstm
from freshet_graph.trainer.models.stages import Stage


class CdGcnOptions(LayeredOptions):
    """Options of ``cdgcn``."""

    skip: Literal["aggregated", "inputs"] = Field(
        "aggregated",
        description="Rows beside the convolution: aggregated ones, as in ESDG, or inputs, as in Manessi et al.",
    )


@MODELS.register
class CdGcn(LayeredModel):
    """CD-GCN: the LSTM sees the convolution beside its inputs (ESDG section 2.2)."""

    name: ClassVar[str] = "cdgcn"
    Options: ClassVar[type[Section]] = CdGcnOptions

    def __init__(self, shape: ModelShape, options: CdGcnOptions) -> None:
        self._skip = options.skip
        super().__init__(shape, options)

    @override
    def layer(self, inputs: int) -> Sequence[Stage]:
        convolution = ConcatenatedConvolution(inputs, self.width, skip=self._skip)
        return [convolution, Lstm(inputs + self.width, self.width)]


@MODELS.register
class WdGcn(LayeredModel):
    """WD-GCN: the LSTM sees the convolution alone (as DyGNeX trains it)."""

    name: ClassVar[str] = "wdgcn"
    Options: ClassVar[type[Section]] = ConvolvedOptions

    @override
    def layer(self, inputs: int) -> Sequence[Stage]:
        convolution = LaplacianConvolution(inputs, self.width, bias=False, activation=torch.relu_)
        return [self.convolution(convolution, inputs, self.width), Lstm(self.width, self.width)]
