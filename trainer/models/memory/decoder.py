"""From two embeddings, and what was seen of the pair, to the logit of an event."""

import torch
from torch import Tensor, nn

from trainer.models.link_decoder import EncounterEncoder


class EventDecoder(nn.Module):
    """A perceptron over [z(u) ‖ z(v)], as TGN's; with the pair's history a deeper one over that and z(u) ∘ z(v), too.

    Args:
        width: Of embeddings.
        history: Whether encounters are looked at.
        walks: Width of the walk features; 0 without.
    """

    def __init__(self, width: int, *, history: bool, walks: int) -> None:
        super().__init__()
        self.encounters = EncounterEncoder() if history else None
        self._looks_back = history or walks > 0
        if self._looks_back:
            inputs = 3 * width + (EncounterEncoder.width if history else 0) + walks
            self.perceptron = nn.Sequential(
                nn.Linear(inputs, width), nn.ReLU(), nn.Dropout(0.2),
                nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1),
            )  # fmt: skip
        else:
            self.perceptron = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, src: Tensor, dst: Tensor, encounters: Tensor, walks: Tensor | None) -> Tensor:
        """Logits (q,); see ``MemoryModel.score``."""
        parts = [src, dst, src * dst] if self._looks_back else [src, dst]
        if self.encounters is not None:
            parts.append(self.encounters(encounters).to(src.dtype))
        if walks is not None:
            parts.append(walks.to(src.dtype))
        logits: Tensor = self.perceptron(torch.cat(parts, dim=1)).squeeze(1)
        return logits
