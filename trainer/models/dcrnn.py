"""``dcrnn``: diffusion along directed edges inside the gates of a recurrent cell (DCRNN, Li et al. 2018; as DynaHB trains it)."""

from collections.abc import Sequence
from typing import Any, ClassVar

from trainer.models.cells import DiffusionCell
from trainer.models.interface import MODELS, ModelShape
from trainer.models.layered import LayeredModel
from trainer.models.stages import Stage


@MODELS.register
class Dcrnn(LayeredModel):
    """DCRNN's encoder: states are convolved with inputs, so a layer is one cell.

    Args:
        shape: Widths and window.
        terms: K, the terms of a diffusion: 1 looks at no neighbour; the authors' ``max_diffusion_step`` is K − 1.
        common: See ``LayeredModel``.
    """

    name: ClassVar[str] = "dcrnn"

    def __init__(self, shape: ModelShape, *, terms: int = 2, **common: Any) -> None:
        if terms < 1:
            raise ValueError(f"terms must be at least 1, found {terms}")
        self._terms = terms
        super().__init__(shape, **common)

    def layer(self, inputs: int) -> Sequence[Stage]:
        """See ``LayeredModel.layer``."""
        return [DiffusionCell(inputs, self.width, self._terms)]
