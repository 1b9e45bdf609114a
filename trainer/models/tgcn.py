"""``tgcn``: graph convolutions inside the gates of a recurrent cell (T-GCN, Zhao et al. 2020; as DyGNeX and DynaHB train it)."""

from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field
from typing_extensions import override

from freshet_graph.schemas.section import Section
from freshet_graph.trainer.models.convolutions import LaplacianAggregation
from freshet_graph.trainer.models.interface import MODELS, ModelShape
from freshet_graph.trainer.models.layered import LayeredModel, LayeredOptions
from freshet_graph.trainer.models.recurrences import GatedConvolution
from freshet_graph.trainer.models.stages import Stage


class TgcnOptions(LayeredOptions):
    """Options of ``tgcn``."""

    gates: Literal["each", "shared"] = Field(
        "each",
        description="each: a convolution of its own in every gate, as PyTorch Geometric Temporal has it; shared: one for all "
        "three, as the paper has it.",
    )


@MODELS.register
class Tgcn(LayeredModel):
    """T-GCN: only inputs are convolved, never the state, so a layer is a graph stage and a time stage."""

    name: ClassVar[str] = "tgcn"
    Options: ClassVar[type[Section]] = TgcnOptions

    def __init__(self, shape: ModelShape, options: TgcnOptions) -> None:
        self._shared = options.gates == "shared"
        super().__init__(shape, options)

    @override
    def layer(self, inputs: int) -> Sequence[Stage]:
        return [LaplacianAggregation(), GatedConvolution(inputs, self.width, shared=self._shared)]
