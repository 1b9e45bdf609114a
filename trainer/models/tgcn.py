"""``tgcn``: graph convolutions inside the gates of a recurrent cell (T-GCN, Zhao et al. 2020; as DyGNeX and DynaHB train it)."""

from typing import ClassVar

from torch import nn

from trainer.models.convolutions import LaplacianConvolution
from trainer.models.interface import MODELS, ModelShape, SnapshotModel
from trainer.models.recurrences import GatedConvolution


@MODELS.register
class Tgcn(SnapshotModel):
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
        super().__init__(shape, hidden, signature)
        if layers < 1:
            raise ValueError(f"layers must be at least 1, found {layers}")
        if gates not in ("each", "shared"):
            raise ValueError(f"gates must be each or shared, found {gates!r}")
        convolved = hidden if gates == "shared" else 3 * hidden
        pairs = [
            (
                LaplacianConvolution(self.inputs if layer == 0 else hidden, convolved),
                GatedConvolution(hidden, shared=gates == "shared"),
            )
            for layer in range(layers)
        ]
        self.layers = nn.ModuleList(stage for pair in pairs for stage in pair)
        self.decoder = shape.head(hidden, hidden, encounters=encounters)
