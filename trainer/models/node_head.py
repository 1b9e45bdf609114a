"""The head of node regression: from an embedding, and what was known of the target, to a number."""

import torch
from torch import Tensor, nn

KNOWN = 2
"""Columns of what is known of a target: its last value, and that value less what is about to expire."""


class NodeRegressor(nn.Module):
    """A two-layer perceptron over z(u) and what was known of its target, added to a floor's prediction.

    The last layer's weights begin at zero, so the head begins as that floor, and all that is learned is what the embedding
    says beyond it: age-aware persistence or, without ``encounters``, persistence. A target's last value is one of the inputs
    in the published models (an in-degree, or a feature), though not what is about to expire.

    Args:
        width: Of embeddings.
        hidden: Of the perceptron.
        encounters: Whether to look at what is about to expire, too.
    """

    def __init__(self, width: int, hidden: int, *, encounters: bool) -> None:
        super().__init__()
        self._columns = KNOWN if encounters else 1
        self.perceptron = nn.Sequential(
            nn.Linear(width + self._columns, hidden), nn.ReLU(), nn.Linear(hidden, 1)
        )
        for weights in self.perceptron[2].parameters():
            nn.init.zeros_(weights)

    def forward(self, z: Tensor, known: Tensor) -> Tensor:
        """Values (n,) of embeddings (n, width) and what is known (n, KNOWN)."""
        seen = known[:, : self._columns].to(z.dtype)
        learned: Tensor = self.perceptron(torch.cat([z, seen], dim=1)).squeeze(1)
        return seen[:, -1] + learned
