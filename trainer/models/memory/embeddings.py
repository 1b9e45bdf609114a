"""The embedding module: embeddings of nodes at a time, from states (TGN section 3.1)."""

from typing import ClassVar

import torch
from torch import Tensor, nn

from trainer.models.event_model import Hop
from trainer.nn.rows import rows
from trainer.nn.temporal_attention import Merge, TemporalAttention
from trainer.nn.time_encoding import TimeEncoder

DAY_S = 86_400.0


class Identity(nn.Module):
    """z(u, t) = s(u)."""

    layers: ClassVar[int] = 0

    def forward(self, states: Tensor, hops: list[Hop]) -> Tensor:
        """See ``AttentionEmbedding.forward``; one hop without interactions."""
        return rows(states, hops[0].own)


class TimeProjection(nn.Module):
    """z(u, t) = (1 + w Δt) ∘ s(u), Δt in days since u's latest event (JODIE equation 3).

    Args:
        width: Of states.
    """

    layers: ClassVar[int] = 0

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width) / width**0.5)

    def forward(self, states: Tensor, hops: list[Hop]) -> Tensor:
        """See ``AttentionEmbedding.forward``; one hop without interactions."""
        days = (hops[0].gap_s / DAY_S).unsqueeze(1)
        return (1 + days * self.weight) * rows(states, hops[0].own)


class AttentionEmbedding(nn.Module):
    """Layers of temporal graph attention; h⁰ = s (TGN equations 8 to 11).

    Args:
        width: Of states.
        edges: Of edge inputs.
        time: The time encoder.
        layers: How many.
        heads: Of each.
        dropout: Of attention weights.
        merge: See ``TemporalAttention``.
    """

    def __init__(
        self,
        width: int,
        edges: int,
        time: TimeEncoder,
        *,
        layers: int,
        heads: int,
        dropout: float,
        merge: Merge,
    ) -> None:
        super().__init__()
        if layers < 1:
            raise ValueError(f"layers must be at least 1, found {layers}")
        self.layers = layers
        self.time = time
        self.attention = nn.ModuleList(
            TemporalAttention(width, edges, time.width, heads, dropout, merge) for _ in range(layers)
        )

    def forward(self, states: Tensor, hops: list[Hop]) -> Tensor:
        """Embeddings of the first hop's rows.

        Args:
            states: (n, width), of the nodes below the last hop, and maybe of others.
            hops: From the wanted rows down to the states; the nodes of each are the rows of the next.

        Returns:
            (R, width).
        """
        x = states
        for attention, hop in zip(self.attention, reversed(hops), strict=True):
            x = attention(x, hop.own, hop.place, hop.edge, hop.age_s, hop.there, self.time)
        return x
