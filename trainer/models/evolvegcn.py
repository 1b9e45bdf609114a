"""``evolvegcn-o`` and ``evolvegcn-h``: convolutions whose weights evolve (EvolveGCN, Pareja et al. 2020)."""

from typing import ClassVar

from trainer.models.evolving import CELLS, EvolvingConvolution, SummarisedConvolution
from trainer.models.interface import MODELS, ModelShape
from trainer.models.layered import LayeredModel, one_of


@MODELS.register
class EvolveGcnO(LayeredModel):
    """EvolveGCN-O: weights evolve by themselves, so nothing but the newest snapshot's graph is needed for its embeddings.

    Args:
        shape: Widths and window.
        hidden: Width of all embeddings.
        layers: Convolutions.
        cell: What weights evolve by: ``gru``, as in the authors' code, or ``lstm``, as in the paper.
        signature: Width of the nodes' random signatures, at most 64.
        encounters: Whether the head also sees what is known without the graph: how long ago and how often two nodes met,
            or what a node's target was.
    """

    name: ClassVar[str] = "evolvegcn-o"
    convolution: ClassVar[type[EvolvingConvolution]] = EvolvingConvolution

    def __init__(
        self,
        shape: ModelShape,
        *,
        hidden: int = 64,
        layers: int = 2,
        cell: str = "gru",
        signature: int = 32,
        encounters: bool = True,
    ) -> None:
        one_of("cell", cell, *CELLS)
        super().__init__(
            shape,
            lambda width: [self.convolution(width, hidden, cell)],
            hidden=hidden,
            layers=layers,
            signature=signature,
            encounters=encounters,
        )


@MODELS.register
class EvolveGcnH(EvolveGcnO):
    """EvolveGCN-H: weights evolve by a summary of each snapshot's rows, those of the best nodes.

    Args:
        shape: Widths and window.
        hidden: Width of all embeddings, and how many nodes a summary has.
        layers: Convolutions.
        cell: What weights evolve by: ``gru``, as in paper and authors' code, or ``lstm``.
        signature: Width of the nodes' random signatures, at most 64.
        encounters: Whether the head also sees what is known without the graph: how long ago and how often two nodes met,
            or what a node's target was.
    """

    name: ClassVar[str] = "evolvegcn-h"
    convolution: ClassVar[type[EvolvingConvolution]] = SummarisedConvolution
