"""``tgcn``: graph convolutions inside the gates of a recurrent cell (T-GCN, Zhao et al. 2020; as DyGNeX and DynaHB train it)."""

from typing import ClassVar

from trainer.models.convolutions import LaplacianConvolution
from trainer.models.interface import MODELS, ModelShape
from trainer.models.layered import LayeredModel, one_of
from trainer.models.recurrences import GatedConvolution


@MODELS.register
class Tgcn(LayeredModel):
    """T-GCN: only inputs are convolved, never the state, so a layer is a graph stage and a time stage.

    Args:
        shape: Widths and window.
        hidden: Width of all embeddings.
        layers: Pairs of convolution and recurrence.
        gates: ``each``: a convolution of its own in every gate, as PyTorch Geometric Temporal has it; ``shared``: one for
            all three, as the paper has it.
        signature: Width of the nodes' random signatures, at most 64.
        encounters: Whether the head also sees what is known without the graph: how long ago and how often two nodes met,
            or what a node's target was.
    """

    name: ClassVar[str] = "tgcn"

    def __init__(
        self,
        shape: ModelShape,
        *,
        hidden: int = 64,
        layers: int = 2,
        gates: str = "each",
        signature: int = 32,
        encounters: bool = True,
    ) -> None:
        shared = one_of("gates", gates, "each", "shared") == "shared"
        super().__init__(
            shape,
            lambda width: [
                LaplacianConvolution(width, hidden if shared else 3 * hidden),
                GatedConvolution(hidden, shared=shared),
            ],
            hidden=hidden,
            layers=layers,
            signature=signature,
            encounters=encounters,
        )
