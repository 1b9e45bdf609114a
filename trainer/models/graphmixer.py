"""``graphmixer``: a multi-layer perceptron over a node's latest events, and the mean of its neighbours (Cong et al. 2023)."""

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import embedding_bag, gelu
from typing_extensions import override

from freshet_graph.schemas.section import Section
from freshet_graph.stream.arrays.kinds import Float32, Int64
from freshet_graph.trainer.data.neighbours import MAX_WIDTH, signatures
from freshet_graph.trainer.models.event_model import (
    EventDecoder,
    EventModel,
    Hop,
    PairHistory,
    Roles,
    TimeWidth,
)
from freshet_graph.trainer.models.interface import MODELS, ModelShape
from freshet_graph.trainer.nn.products import Dense
from freshet_graph.trainer.nn.rows import rows


class GraphMixerOptions(Section):
    """Options of ``graphmixer``."""

    hidden: int = Field(100, ge=1, le=4096, description="Width of the link encoder.")
    time_width: TimeWidth = 100
    neighbours: int = Field(20, ge=1, le=1000, description="K, events of the link encoder.")
    around: int = Field(100, ge=1, le=1000, description="Latest events of the node encoder, at most.")
    gap_s: float = Field(30 * 86_400.0, gt=0, description="T, how far back these reach, seconds.")
    signature: int = Field(32, ge=0, le=MAX_WIDTH, description="Width of x; 0: no node encoder.")
    roles: Roles = False
    history: PairHistory = False


ROWS_AT_ONCE = 1024
"""Rows mixed at once without gradient, which bounds memory."""


class FixedTime(nn.Module):
    """cos(Δt ω) with ω_i = √d ^ −((i − 1)/√d), i = 1 … d, which is not trained (section 3.1)."""

    frequency: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        base = float(width) ** 0.5
        frequency = base ** (-torch.arange(width, dtype=torch.float64) / base)
        self.register_buffer("frequency", frequency.float(), persistent=False)

    def forward(self, seconds: Tensor) -> Tensor:
        """Spans (…) in seconds → (…, width)."""
        return torch.cos(seconds.unsqueeze(-1) * self.frequency)


class Mixer(nn.Module):
    """One layer of an MLP-Mixer (section 3.1): tokens are mixed, then channels, each with a residual.

    H' = H + W₂ GELU(W₁ LN(H)) along the tokens, and H' + GELU(LN(H') W₃) W₄ along the channels.

    Args:
        tokens: K.
        width: Of a token.
    """

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        inner = max(tokens // 2, 1)  # the authors' factors are a half and four
        self.token_norm, self.channel_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.token_in, self.token_out = Dense(tokens, inner), Dense(inner, tokens)
        self.channel_in, self.channel_out = Dense(width, 4 * width), Dense(4 * width, width)

    def forward(self, h: Tensor) -> Tensor:
        """(R, K, width) → the same."""
        mixed = self.token_out(gelu(self.token_in(self.token_norm(h).transpose(1, 2))))
        h = h + mixed.transpose(1, 2)
        mixed = self.channel_out(gelu(self.channel_in(self.channel_norm(h))))
        return h + mixed


@MODELS.register
class GraphMixer(EventModel):
    """z(u, t) = [t(u) ‖ s(u)], the link encoder's row beside the node encoder's; no memory, no attention.

    t(u) = mean over the K latest events of mixer(W [cos(Δt ω) ‖ e]), a missing event being zeros.
    s(u) = x(u) + mean of x(v) over the other ends of u's events in the last ``gap_s`` seconds. The streams have no table of
    node features for event models, so x(v) is a random signature, a projection of the one-hot vectors that the authors use.
    """

    name: ClassVar[str] = "graphmixer"
    Options: ClassVar[type[Section]] = GraphMixerOptions

    def __init__(self, shape: ModelShape, options: GraphMixerOptions) -> None:
        hidden, signature = options.hidden, options.signature
        super().__init__(shape, hidden + signature)
        self._links, self._around = options.neighbours, options.around
        self._gap_s, self._signature = options.gap_s, signature
        self.neighbours = max(self._links, self._around if signature else 0)
        self.roles = options.roles
        self.time = FixedTime(options.time_width)
        self.project = Dense(options.time_width + self.edges, hidden)
        self.mixer = Mixer(self._links, hidden)
        self.decoder = EventDecoder(self.width, history=options.history, walks=0)

    def inputs(self, born: Int64) -> Float32:
        """See ``EventModel.inputs``: x, signatures."""
        return signatures(born, self._signature, self.seed)

    @override
    def embed(self, below: Tensor, hops: list[Hop]) -> Tensor:
        (hop,) = hops
        k = self._links
        columns = hop.age_s[:, :k], hop.edge[:, :k], hop.there[:, :k]
        size = max(len(hop.own), 1) if torch.is_grad_enabled() else ROWS_AT_ONCE
        parts = zip(*(column.split(size) for column in columns), strict=True)  # type: ignore[no-untyped-call]  # torch's
        links = torch.cat([self._links_of(*part) for part in parts])
        return torch.cat([links, self._node_of(below, hop)], dim=1) if self._signature else links

    def _links_of(self, age_s: Tensor, edge: Tensor, valid: Tensor) -> Tensor:
        """t(u), (R, hidden)."""
        timed = self.time(age_s) * valid.unsqueeze(2)
        mixed: Tensor = self.mixer(self.project(torch.cat([timed, edge], dim=2)))
        return mixed.mean(dim=1)

    def _node_of(self, below: Tensor, hop: Hop) -> Tensor:
        """s(u), (R, signature)."""
        place, age_s = hop.place[:, : self._around], hop.age_s[:, : self._around]
        near = (hop.there[:, : self._around] & (age_s <= self._gap_s)).to(below.dtype)
        weight = near / near.sum(dim=1, keepdim=True).clamp(min=1)
        around = embedding_bag(place, below, per_sample_weights=weight, mode="sum")
        return rows(below, hop.own) + around
