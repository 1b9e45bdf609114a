"""``gatlstm``: graph attention in each snapshot and a long short-term memory over them, layer by layer (as DyGNeX trains it)."""

from typing import ClassVar

from trainer.models.attention import GraphAttention
from trainer.models.interface import MODELS, ModelShape
from trainer.models.layered import LayeredModel
from trainer.models.recurrences import Lstm


@MODELS.register
class GatLstm(LayeredModel):
    """GAT-LSTM: a layer is a graph attention and a memory that all nodes share.

    Args:
        shape: Widths and window.
        hidden: Width of all embeddings.
        layers: Pairs of attention and memory.
        heads: Of attention; they divide ``hidden``.
        signature: Width of the nodes' random signatures, at most 64.
        encounters: Whether the head also sees what is known without the graph: how long ago and how often two nodes met,
            or what a node's target was.
    """

    name: ClassVar[str] = "gatlstm"

    def __init__(
        self,
        shape: ModelShape,
        *,
        hidden: int = 64,
        layers: int = 2,
        heads: int = 8,
        signature: int = 32,
        encounters: bool = True,
    ) -> None:
        super().__init__(
            shape,
            lambda width: [GraphAttention(width, hidden, heads), Lstm(hidden, hidden)],
            hidden=hidden,
            layers=layers,
            signature=signature,
            encounters=encounters,
        )
