"""``dcrnn``: diffusion along directed edges inside the gates of a recurrent cell (DCRNN, Li et al. 2018; as DynaHB trains it)."""

from typing import ClassVar

from trainer.models.cells import DiffusionCell
from trainer.models.interface import MODELS, ModelShape
from trainer.models.layered import LayeredModel


@MODELS.register
class Dcrnn(LayeredModel):
    """DCRNN's encoder: states are convolved with inputs, so a layer is one cell.

    Args:
        shape: Widths and window.
        hidden: Width of all embeddings.
        layers: Cells.
        terms: K, the terms of a diffusion: 1 looks at no neighbour; the authors' ``max_diffusion_step`` is K − 1.
        signature: Width of the nodes' random signatures, at most 64.
        encounters: Whether the head also sees what is known without the graph: how long ago and how often two nodes met,
            or what a node's target was.
    """

    name: ClassVar[str] = "dcrnn"

    def __init__(
        self,
        shape: ModelShape,
        *,
        hidden: int = 64,
        layers: int = 2,
        terms: int = 2,
        signature: int = 32,
        encounters: bool = True,
    ) -> None:
        if terms < 1:
            raise ValueError(f"terms must be at least 1, found {terms}")
        super().__init__(
            shape,
            lambda width: [DiffusionCell(width, hidden, terms)],
            hidden=hidden,
            layers=layers,
            signature=signature,
            encounters=encounters,
        )
