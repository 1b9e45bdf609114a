"""From two embeddings, and what was seen of the pair, to the logit of an event."""

import torch
from torch import Tensor, nn

from trainer.models.link_decoder import EncounterEncoder


class EventDecoder(nn.Module):
    """A two-layer perceptron over [z(u) ‖ z(v)], as TGN's, and the pair's history where that is wanted.

    Args:
        width: Of embeddings.
        history: Whether encounters are looked at.
        walks: Width of the walk features; 0 without.
    """

    def __init__(self, width: int, *, history: bool, walks: int) -> None:
        super().__init__()
        self.encounters = EncounterEncoder() if history else None
        extra = (EncounterEncoder.width if history else 0) + walks
        self.perceptron = nn.Sequential(nn.Linear(2 * width + extra, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, src: Tensor, dst: Tensor, encounters: Tensor, walks: Tensor | None) -> Tensor:
        """Logits (q,); see ``MemoryModel.score``."""
        parts = [src, dst]
        if self.encounters is not None:
            parts.append(self.encounters(encounters).to(src.dtype))
        if walks is not None:
            parts.append(walks)
        logits: Tensor = self.perceptron(torch.cat(parts, dim=1)).squeeze(1)
        return logits
