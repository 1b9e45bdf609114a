"""The embedding module: embeddings of nodes at a time, from states (TGN section 3.1)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from trainer.nn.rows import rows
from trainer.nn.temporal_attention import Merge, TemporalAttention
from trainer.nn.time_encoding import TimeEncoder

DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Hop:
    """R rows (node, time) and their K sampled interactions; names point into a table of the n nodes below.

    Attributes:
        own: int64 (R,), each row's node.
        place: int64 (R, K), each interaction's other end; anything if it does not exist.
        age_s: (R, K), seconds from each interaction to the row's time; 0 if it does not exist.
        edge: (R, K, edges).
        there: bool (R, K), which interactions exist.
        gap_s: (R,), seconds since the node's latest event, 0 without one.
    """

    own: Tensor
    place: Tensor
    age_s: Tensor
    edge: Tensor
    there: Tensor
    gap_s: Tensor


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
