"""``sage-linear``: GraphSAGE in each snapshot, then a linear model over the window (DistDy section 5.1)."""

from collections.abc import Sequence
from typing import ClassVar

from torch import nn

from trainer.models.convolutions import Sage
from trainer.models.interface import MODELS, ModelShape, SnapshotModel
from trainer.models.layered import require_fanouts
from trainer.models.recurrences import LastLinear
from trainer.models.stages import Stage


@MODELS.register
class SageLinear(SnapshotModel):
    """DistDy's model; its published setting is hidden 128 and fan-outs 5, 10 (or 5, 10, 15).

    Args:
        shape: Feature width and window.
        hidden: Width of all embeddings.
        fanouts: Neighbours sampled per hop, from the target outwards; null takes all. Strategies that hold whole snapshots
            take all anyway.
        signature: See ``LayeredModel``.
        encounters: See ``LayeredModel``.
    """

    name: ClassVar[str] = "sage-linear"

    def __init__(
        self,
        shape: ModelShape,
        *,
        hidden: int = 128,
        fanouts: Sequence[int | None] = (5, 10),
        signature: int = 32,
        encounters: bool = True,
    ) -> None:
        super().__init__(shape, hidden, signature)
        require_fanouts(fanouts)
        self.layers = nn.ModuleList(
            Sage(self.inputs if layer == 0 else hidden, hidden, fanout)
            for layer, fanout in enumerate(reversed(fanouts))
        )
        self.temporal = LastLinear(shape.window, hidden)
        self.decoder = shape.head(hidden, hidden, encounters=encounters)

    @property
    def stages(self) -> list[Stage]:
        """See ``SnapshotModel.stages``."""
        return [*super().stages, self.temporal]
