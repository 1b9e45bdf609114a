"""``dysat``: attention over neighbours in each snapshot, then over a node's own snapshots (DySAT, Sankar et al. 2020)."""

from collections.abc import Sequence
from typing import ClassVar

from torch import nn

from trainer.models.attention import GraphAttention, SnapshotAttention
from trainer.models.interface import MODELS, ModelShape, SnapshotModel
from trainer.models.layered import require_fanouts


@MODELS.register
class Dysat(SnapshotModel):
    """DySAT; its published setting is the default: 128 wide, one hop over all neighbours, 16 heads in both attentions.

    Args:
        shape: Widths and window.
        hidden: Width of all embeddings.
        fanouts: Neighbours sampled per hop, from the target outwards; null takes all. Strategies that hold whole snapshots
            take all anyway.
        heads: Of attention over neighbours; divide ``hidden``.
        temporal_heads: Of attention over snapshots; divide ``hidden``.
        signature: See ``LayeredModel``.
        encounters: See ``LayeredModel``.
    """

    name: ClassVar[str] = "dysat"

    def __init__(
        self,
        shape: ModelShape,
        *,
        hidden: int = 128,
        fanouts: Sequence[int | None] = (None,),
        heads: int = 16,
        temporal_heads: int = 16,
        signature: int = 32,
        encounters: bool = True,
    ) -> None:
        super().__init__(shape, hidden, signature)
        require_fanouts(fanouts)
        hops = [
            GraphAttention(self.inputs if layer == 0 else hidden, hidden, heads, fanout)
            for layer, fanout in enumerate(reversed(fanouts))
        ]
        self.layers = nn.ModuleList([*hops, SnapshotAttention(shape.window, hidden, temporal_heads)])
        self.decoder = shape.head(hidden, hidden, encounters=encounters)
