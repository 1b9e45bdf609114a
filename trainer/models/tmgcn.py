"""``tmgcn``: a convolution in each snapshot, then means over the last ones (TM-GCN, Malik et al. 2021; as ESDG trains it)."""

from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field
from typing_extensions import override

from freshet_graph.schemas.section import Section
from freshet_graph.trainer.models.convolutions import LaplacianAggregation
from freshet_graph.trainer.models.interface import MODELS, ModelShape
from freshet_graph.trainer.models.layered import LayeredModel, LayeredOptions
from freshet_graph.trainer.models.recurrences import MovingMean, RectifiedMean
from freshet_graph.trainer.models.stages import Stage
from freshet_graph.trainer.nn.graph import CSRGraph, MeanOperator


class TmGcnOptions(LayeredOptions):
    """Options of ``tmgcn``."""

    bandwidth: int | None = Field(
        None, ge=1, le=2**31, description="b, snapshots that a mean is over; null: the window."
    )
    normalise: Literal["after", "before"] = Field(
        "after",
        description="after: convolutions use the graphs of the timeline, normalised, so smoothing comes first, as in ESDG. "
        "before: each snapshot's operator is the mean of the last b normalised ones and inputs are means, too, as in the "
        "authors' code. The timeline should not smooth then.",
    )


@MODELS.register
class TmGcn(LayeredModel):
    """TM-GCN: time has no parameters; rows of all layers are means, by the M-product with M_tk = 1 / min(b, t)."""

    name: ClassVar[str] = "tmgcn"
    Options: ClassVar[type[Section]] = TmGcnOptions

    def __init__(self, shape: ModelShape, options: TmGcnOptions) -> None:
        self._bandwidth = shape.window if options.bandwidth is None else options.bandwidth
        self._before = options.normalise == "before"
        super().__init__(shape, options)
        if self._before:
            self.layers.insert(0, MovingMean(self._bandwidth))

    @override
    def layer(self, inputs: int) -> Sequence[Stage]:
        return [LaplacianAggregation(), RectifiedMean(inputs, self.width, self._bandwidth)]

    @override
    def operators(self, graphs: list[CSRGraph]) -> list[CSRGraph]:
        if not self._before:
            return graphs
        return [
            MeanOperator(graphs[max(0, step + 1 - self._bandwidth) : step + 1]) for step in range(len(graphs))
        ]
