"""``gatlstm``: graph attention in each snapshot and a long short-term memory over them, layer by layer (as DyGNeX trains it)."""

from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field
from typing_extensions import override

from freshet_graph.schemas.section import Section
from freshet_graph.trainer.models.attention import GraphAttention
from freshet_graph.trainer.models.interface import MODELS, ModelShape
from freshet_graph.trainer.models.layered import ConvolvedOptions, LayeredModel
from freshet_graph.trainer.models.recurrences import Lstm
from freshet_graph.trainer.models.stages import Stage


class GatLstmOptions(ConvolvedOptions):
    """Options of ``gatlstm``."""

    heads: int = Field(8, ge=1, le=4096, description="Of attention; they divide hidden.")


@MODELS.register
class GatLstm(LayeredModel):
    """GAT-LSTM: a layer is a graph attention and a memory that all nodes share."""

    name: ClassVar[str] = "gatlstm"
    Options: ClassVar[type[Section]] = GatLstmOptions

    def __init__(self, shape: ModelShape, options: GatLstmOptions) -> None:
        self._heads = options.heads
        super().__init__(shape, options)

    @override
    def layer(self, inputs: int) -> Sequence[Stage]:
        attention = GraphAttention(inputs, self.width, self._heads)
        return [self.convolution(attention, inputs, self.width), Lstm(self.width, self.width)]
