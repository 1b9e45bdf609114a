"""``evolvegcn-o`` and ``evolvegcn-h``: convolutions whose weights evolve (EvolveGCN, Pareja et al. 2020)."""

from collections.abc import Sequence
from typing import Any, ClassVar

from trainer.models.evolving import CELLS, EvolvingConvolution, SummarisedConvolution
from trainer.models.interface import MODELS, ModelShape
from trainer.models.layered import LayeredModel, one_of
from trainer.models.stages import Stage


@MODELS.register
class EvolveGcnO(LayeredModel):
    """EvolveGCN-O: weights evolve by themselves, so only the newest snapshot's graph is needed for its embeddings.

    Args:
        shape: Widths and window.
        cell: Recurrent cell of the weights: ``gru``, as in the authors' code, or ``lstm``, as in the paper.
        common: See ``LayeredModel``.
    """

    name: ClassVar[str] = "evolvegcn-o"
    convolution: ClassVar[type[EvolvingConvolution]] = EvolvingConvolution

    def __init__(self, shape: ModelShape, *, cell: str = "gru", **common: Any) -> None:
        self._cell = one_of("cell", cell, *CELLS)
        super().__init__(shape, **common)

    def layer(self, inputs: int) -> Sequence[Stage]:
        """See ``LayeredModel.layer``."""
        return [self.convolution(inputs, self.width, self._cell)]


@MODELS.register
class EvolveGcnH(EvolveGcnO):
    """EvolveGCN-H: weights evolve by a summary of each snapshot: the rows of its ``hidden`` best nodes.

    Here ``gru`` is the cell of both the paper and the authors' code.
    """

    name: ClassVar[str] = "evolvegcn-h"
    convolution: ClassVar[type[EvolvingConvolution]] = SummarisedConvolution
