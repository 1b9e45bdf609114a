"""The head of node regression: from an embedding, and what was known of the target, to a number."""

import torch
from torch import Tensor, nn

KNOWN = 2
"""Columns of what is known of a target: its last value, and that value less what is about to expire."""


class NodeRegressor(nn.Module):
    """A two-layer perceptron over z(u) and, if wanted, what was known of its target, added to age-aware persistence.

    With what is known it begins as age-aware persistence: the last layer's weights are zero, so all that is learned is
    what the embedding says beyond it.

    Args:
        width: Of embeddings.
        hidden: Of the perceptron.
        encounters: Whether to look at what is known; without, the head knows the window's graphs only.
    """

    def __init__(self, width: int, hidden: int, *, encounters: bool) -> None:
        super().__init__()
        self._known = encounters
        self.perceptron = nn.Sequential(
            nn.Linear(width + (KNOWN if encounters else 0), hidden), nn.ReLU(), nn.Linear(hidden, 1)
        )
        if encounters:
            for weights in self.perceptron[2].parameters():
                nn.init.zeros_(weights)

    def forward(self, z: Tensor, known: Tensor) -> Tensor:
        """Values (n,) of embeddings (n, width) and what is known (n, KNOWN)."""
        if not self._known:
            values: Tensor = self.perceptron(z).squeeze(1)
            return values
        learned: Tensor = self.perceptron(torch.cat([z, known.to(z.dtype)], dim=1)).squeeze(1)
        return known[:, 1].to(z.dtype) + learned
