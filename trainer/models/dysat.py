"""``dysat``: attention over neighbours in each snapshot, then over a node's own snapshots (DySAT, Sankar et al. 2020)."""

from typing import ClassVar

from pydantic import Field
from torch import nn

from freshet_graph.schemas.section import Section
from freshet_graph.trainer.models.attention import GraphAttention, SnapshotAttention
from freshet_graph.trainer.models.interface import MODELS, ModelShape, ResidualOptions, SnapshotModel
from freshet_graph.trainer.models.sage_linear import Fanouts, SageLinearOptions


class DysatOptions(SageLinearOptions, ResidualOptions):
    """Options of ``dysat``."""

    fanouts: Fanouts = Field([None])
    heads: int = Field(16, ge=1, le=4096, description="Of attention over neighbours; they divide hidden.")
    temporal_heads: int = Field(
        16, ge=1, le=4096, description="Of attention over snapshots; they divide hidden."
    )


@MODELS.register
class Dysat(SnapshotModel):
    """DySAT; its published setting is the default: 128 wide, one hop over all neighbours, 16 heads in both attentions."""

    name: ClassVar[str] = "dysat"
    Options: ClassVar[type[Section]] = DysatOptions

    def __init__(self, shape: ModelShape, options: DysatOptions) -> None:
        super().__init__(shape, options)
        hops = [
            self.convolution(GraphAttention(inputs, self.width, options.heads, fanout), inputs, self.width)
            for layer, fanout in enumerate(reversed(options.fanouts))
            for inputs in [self.width if layer else self.inputs]
        ]
        time = SnapshotAttention(shape.window, self.width, options.temporal_heads)
        self.layers = nn.ModuleList([*hops, time])
        self.decoder = shape.head(self.width, self.width, encounters=options.encounters)
