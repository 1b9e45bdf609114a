"""``tgcn``: graph convolutions inside the gates of a recurrent cell (T-GCN, Zhao et al. 2020; as DyGNeX and DynaHB train it)."""

from collections.abc import Sequence
from typing import Any, ClassVar

from trainer.models.convolutions import LaplacianConvolution
from trainer.models.interface import MODELS, ModelShape
from trainer.models.layered import LayeredModel, one_of
from trainer.models.recurrences import GatedConvolution
from trainer.models.stages import Stage


@MODELS.register
class Tgcn(LayeredModel):
    """T-GCN: only inputs are convolved, never the state, so a layer is a graph stage and a time stage.

    Args:
        shape: Widths and window.
        gates: ``each``: a convolution of its own in every gate, as PyTorch Geometric Temporal has it; ``shared``: one for
            all three, as the paper has it.
        common: See ``LayeredModel``.
    """

    name: ClassVar[str] = "tgcn"

    def __init__(self, shape: ModelShape, *, gates: str = "each", **common: Any) -> None:
        self._shared = one_of("gates", gates, "each", "shared") == "shared"
        super().__init__(shape, **common)

    def layer(self, inputs: int) -> Sequence[Stage]:
        """See ``LayeredModel.layer``."""
        convolution = LaplacianConvolution(inputs, self.width if self._shared else 3 * self.width)
        return [convolution, GatedConvolution(self.width, shared=self._shared)]
