"""The perceptron of node classification: from an embedding, and what was seen of the pair, to a label's logit."""

import torch
from torch import Tensor, nn

from trainer.models.link_decoder import EncounterEncoder


class NodeClassifier(nn.Module):
    """A perceptron from a source's embedding, and for models with history what was seen of the pair, to a logit.

    Widths 80 and 10 and the dropout are TGN's.

    Args:
        width: Of embeddings.
        history: Whether encounters are looked at.
    """

    def __init__(self, width: int, *, history: bool) -> None:
        super().__init__()
        self.encounters = EncounterEncoder() if history else None
        inputs = width + (EncounterEncoder.width if history else 0)
        self.perceptron = nn.Sequential(
            nn.Linear(inputs, 80), nn.ReLU(), nn.Dropout(0.1),
            nn.Linear(80, 10), nn.ReLU(), nn.Dropout(0.1), nn.Linear(10, 1),
        )  # fmt: skip

    def forward(self, embeddings: Tensor, encounters: Tensor) -> Tensor:
        """Logits (n,) of embeddings (n, width) and encounters (n, len(Encounter))."""
        parts = [embeddings]
        if self.encounters is not None:
            parts.append(self.encounters(encounters))
        logits: Tensor = self.perceptron(torch.cat(parts, dim=1)).squeeze(1)
        return logits
