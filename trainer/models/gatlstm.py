"""``gatlstm``: graph attention in each snapshot and a long short-term memory over them, layer by layer (as DyGNeX trains it)."""

from collections.abc import Sequence
from typing import Any, ClassVar

from trainer.models.attention import GraphAttention
from trainer.models.interface import MODELS, ModelShape
from trainer.models.layered import LayeredModel
from trainer.models.recurrences import Lstm
from trainer.models.stages import Stage


@MODELS.register
class GatLstm(LayeredModel):
    """GAT-LSTM: a layer is a graph attention and a memory that all nodes share.

    Args:
        shape: Widths and window.
        heads: Of attention; they divide ``hidden``.
        common: See ``LayeredModel``.
    """

    name: ClassVar[str] = "gatlstm"

    def __init__(self, shape: ModelShape, *, heads: int = 8, **common: Any) -> None:
        self._heads = heads
        super().__init__(shape, **common)

    def layer(self, inputs: int) -> Sequence[Stage]:
        """See ``LayeredModel.layer``."""
        return [GraphAttention(inputs, self.width, self._heads), Lstm(self.width, self.width)]
