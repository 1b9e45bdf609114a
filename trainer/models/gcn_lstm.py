"""``cdgcn`` and ``wdgcn``: a convolution in each snapshot, then one LSTM for all nodes (Manessi et al. 2020)."""

from typing import ClassVar

import torch

from trainer.models.convolutions import ConcatenatedConvolution, LaplacianConvolution
from trainer.models.interface import MODELS, ModelShape
from trainer.models.layered import LayeredModel, one_of
from trainer.models.recurrences import Lstm


@MODELS.register
class CdGcn(LayeredModel):
    """CD-GCN: the LSTM sees the convolution beside what it was made from (ESDG section 2.2).

    Args:
        shape: Widths and window.
        hidden: Width of all embeddings, and of convolutions.
        layers: Pairs of convolution and recurrence.
        skip: What stands beside the convolution: ``aggregated`` rows, as in ESDG, or ``inputs``, as in Manessi et al.
        signature: Width of the nodes' random signatures, at most 64.
        encounters: Whether the head also sees what is known without the graph: how long ago and how often two nodes met,
            or what a node's target was.
    """

    name: ClassVar[str] = "cdgcn"

    def __init__(
        self,
        shape: ModelShape,
        *,
        hidden: int = 64,
        layers: int = 2,
        skip: str = "aggregated",
        signature: int = 32,
        encounters: bool = True,
    ) -> None:
        one_of("skip", skip, "aggregated", "inputs")
        super().__init__(
            shape,
            lambda width: [ConcatenatedConvolution(width, hidden, skip=skip), Lstm(width + hidden, hidden)],
            hidden=hidden,
            layers=layers,
            signature=signature,
            encounters=encounters,
        )


@MODELS.register
class WdGcn(LayeredModel):
    """WD-GCN: the LSTM sees the convolution alone (as DyGNeX trains it).

    Args:
        shape: Widths and window.
        hidden: Width of all embeddings, and of convolutions.
        layers: Pairs of convolution and recurrence.
        signature: Width of the nodes' random signatures, at most 64.
        encounters: Whether the head also sees what is known without the graph: how long ago and how often two nodes met,
            or what a node's target was.
    """

    name: ClassVar[str] = "wdgcn"

    def __init__(
        self,
        shape: ModelShape,
        *,
        hidden: int = 64,
        layers: int = 2,
        signature: int = 32,
        encounters: bool = True,
    ) -> None:
        super().__init__(
            shape,
            lambda width: [
                LaplacianConvolution(width, hidden, bias=False, activation=torch.relu_),
                Lstm(hidden, hidden),
            ],
            hidden=hidden,
            layers=layers,
            signature=signature,
            encounters=encounters,
        )
