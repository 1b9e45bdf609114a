"""``sage-linear``: GraphSAGE in each snapshot, then a linear model over the window (DistDy section 5.1)."""

from typing import Annotated, ClassVar

from pydantic import Field
from torch import nn
from typing_extensions import override

from freshet_graph.schemas.section import Section
from freshet_graph.trainer.models.convolutions import Sage
from freshet_graph.trainer.models.interface import (
    MODELS,
    Hidden,
    ModelShape,
    SnapshotModel,
    SnapshotModelOptions,
)
from freshet_graph.trainer.models.recurrences import LastLinear
from freshet_graph.trainer.models.stages import Stage

Fanouts = Annotated[
    list[Annotated[int, Field(ge=1)] | None],
    Field(
        min_length=1,
        description="Neighbours sampled per hop, from the target outwards; null takes all. Strategies that hold whole snapshots "
        "take all anyway.",
    ),
]


class SageLinearOptions(SnapshotModelOptions):
    """Options of ``sage-linear``."""

    hidden: Hidden = 128
    fanouts: Fanouts = Field([5, 10])


@MODELS.register
class SageLinear(SnapshotModel):
    """DistDy's model; its published setting is hidden 128 and fan-outs 5, 10 (or 5, 10, 15)."""

    name: ClassVar[str] = "sage-linear"
    Options: ClassVar[type[Section]] = SageLinearOptions

    def __init__(self, shape: ModelShape, options: SageLinearOptions) -> None:
        super().__init__(shape, options)
        self.layers = nn.ModuleList(
            Sage(self.width if layer else self.inputs, self.width, fanout)
            for layer, fanout in enumerate(reversed(options.fanouts))
        )
        self.temporal = LastLinear(shape.window, self.width)
        self.decoder = shape.head(self.width, self.width, encounters=options.encounters)

    @property
    @override
    def stages(self) -> list[Stage]:
        return [*super().stages, self.temporal]
