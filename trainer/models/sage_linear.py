"""``sage-linear``: GraphSAGE a snapshot, then a linear model over the window (DistDy section 5.1)."""

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from trainer.data.signatures import MAX_WIDTH, signatures
from trainer.device import to_device
from trainer.models.interface import STRUCTURE, ModelShape, NodeInputs, SnapshotModel, register
from trainer.models.link_decoder import LinkDecoder
from trainer.nn.csr_graph import CSRGraph
from trainer.nn.sage import SageLayer


@register
class SageLinear(SnapshotModel):
    """DistDy's model; its published setting is hidden 128 and fan-outs 5, 10 (or 5, 10, 15).

    Inputs are features ⊕ signature ⊕ structure, so that graphs without node features have inputs too.

    Args:
        shape: Feature width and window.
        hidden: Width of all embeddings.
        fanouts: Neighbours sampled a hop, from the target outwards; null takes all.
        signature: Width of the nodes' random signatures, at most 64.
        encounters: Whether the decoder also sees how long ago and how often the two nodes met.
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
        super().__init__()
        if hidden < 1:
            raise ValueError(f"hidden must be at least 1, found {hidden}")
        if not fanouts or any(fanout is not None and fanout < 1 for fanout in fanouts):
            raise ValueError(f"fanouts must name at least one hop of at least 1 each, found {list(fanouts)}")
        if not 0 <= signature <= MAX_WIDTH:
            raise ValueError(f"signature must be in 0 … {MAX_WIDTH}, found {signature}")
        self.fanouts = tuple(reversed(fanouts))
        self.window = shape.window
        self.width = hidden
        self._signature = signature
        self._seed = shape.seed
        inputs = shape.features + signature + STRUCTURE
        self.layers = nn.ModuleList(
            SageLayer(inputs if layer == 0 else hidden, hidden) for layer in range(len(self.fanouts))
        )
        self.temporal = nn.Linear(shape.window * hidden, hidden)
        self.decoder = LinkDecoder(hidden, hidden, encounters=encounters)

    def encode(self, inputs: NodeInputs) -> Tensor:
        """Features ⊕ signature ⊕ structure."""
        drawn = signatures(inputs.nodes.numpy(), self._signature, self._seed)
        signature = to_device(drawn, inputs.features.device)
        return torch.cat([inputs.features, signature, inputs.structure], dim=1)

    def message_pass(self, layer: int, graph: CSRGraph, own: Tensor, x: Tensor) -> Tensor:
        """One GraphSAGE layer with ReLU."""
        return torch.relu(self.layers[layer](graph, own, x))

    def combine(self, structural: Tensor) -> Tensor:
        """The linear temporal model over the concatenated structural embeddings."""
        result: Tensor = self.temporal(structural.permute(1, 0, 2).flatten(1))
        return result

    def score(self, src: Tensor, dst: Tensor, encounters: Tensor) -> Tensor:
        """Logits from the link decoder."""
        logits: Tensor = self.decoder(src, dst, encounters)
        return logits
