"""``dygformer``: a transformer over patches of both ends' latest events and their common neighbours (Yu et al. 2023)."""

from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn.functional import gelu, pad, scaled_dot_product_attention
from typing_extensions import override

from freshet_graph.schemas.section import Section
from freshet_graph.trainer.models.event_model import (
    Dropout,
    EventDecoder,
    EventModel,
    Hop,
    PairHistory,
    Question,
    Roles,
    TimeEncoding,
    TimeWidth,
)
from freshet_graph.trainer.models.interface import MODELS, ModelShape
from freshet_graph.trainer.nn.products import Dense
from freshet_graph.trainer.nn.rows import rows
from freshet_graph.trainer.nn.time_encoding import TIME_ENCODERS


class DyGFormerOptions(Section):
    """Options of ``dygformer``."""

    hidden: int = Field(100, ge=1, le=4096, description="Width of embeddings.")
    channels: int = Field(50, ge=1, le=1024, description="d, width of each of the three parts of a token.")
    time_width: TimeWidth = 100
    time: TimeEncoding = "cosine"
    neighbours: int = Field(
        31, ge=1, le=1000, description="Latest events of a sequence, after the node itself."
    )
    patch: int = Field(4, ge=1, le=1000, description="P, events of a token.")
    layers: int = Field(2, ge=1, le=16, description="Of the transformer.")
    heads: int = Field(2, ge=1, le=64, description="Of each layer; they divide 3 · channels.")
    dropout: Dropout = 0.1
    roles: Roles = False
    history: PairHistory = False

    @model_validator(mode="after")
    def _heads_divide_a_token(self) -> Self:
        if 3 * self.channels % self.heads:
            raise ValueError(f"heads must divide 3 · channels = {3 * self.channels}, found {self.heads}")
        return self


PAIRS_AT_ONCE = 1024
"""Pairs embedded at once without gradient, which bounds memory."""


@dataclass(frozen=True, slots=True)
class Sequences:
    """The sequences of R rows, each the node itself and then its latest events; L of them, missing ones last.

    Attributes:
        node: int64 (R, L), the other ends; equal numbers are equal nodes, among rows of one moment.
        valid: bool (R, L).
        patches: (R, P, 2 · channels), tokens of edges and times, before those of co-occurrence.
        whole: bool (R, P), which patches have an event.
    """

    node: Tensor
    valid: Tensor
    patches: Tensor
    whole: Tensor

    def pick(self, chosen: Tensor) -> "Sequences":
        """Sequences of the rows at some places."""
        return Sequences(self.node[chosen], self.valid[chosen], rows(self.patches.flatten(1), chosen).view(
            len(chosen), *self.patches.shape[1:]), self.whole[chosen])  # fmt: skip


class TransformerLayer(nn.Module):
    """A transformer's layer (section 4.1): O = Z + MSA(LN(Z)), H = O + W₂ GELU(W₁ LN(O))."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, nn.Dropout(dropout)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value = Dense(width, 3 * width, bias=False)  # a key's bias would change nothing
        self.attended = Dense(width, width)
        self.wide, self.narrow = Dense(width, 4 * width), Dense(4 * width, width)

    def forward(self, z: Tensor, valid: Tensor) -> Tensor:
        """Tokens (q, P, width), those that exist bool (q, P) → (q, P, width)."""
        shape = (*z.shape[:2], self.heads, -1)
        parts = self.query_key_value(self.first(z)).chunk(3, dim=2)
        query, key, value = (part.reshape(shape).transpose(1, 2) for part in parts)
        attention = scaled_dot_product_attention(query, key, value, valid[:, None, None, :])
        z = z + self.dropout(self.attended(attention.transpose(1, 2).reshape(z.shape)))
        return z + self.dropout(self.narrow(self.dropout(gelu(self.wide(self.second(z))))))


@MODELS.register
class DyGFormer(EventModel):
    """Both ends' sequences together, so that an embedding depends on the other end, too; no memory.

    Each event of a sequence has its inputs e, the encoding of its age, and how often its other end is in either sequence
    (neighbour co-occurrence, equation 2). ``patch`` events make one token by a linear map for each of the three, and
    layers of attention pass over the tokens of both ends. An end's embedding is a linear map of its tokens' mean.
    """

    name: ClassVar[str] = "dygformer"
    Options: ClassVar[type[Section]] = DyGFormerOptions

    def __init__(self, shape: ModelShape, options: DyGFormerOptions) -> None:
        super().__init__(shape, options.hidden)
        channels, patch = options.channels, options.patch
        self.neighbours, self.roles = options.neighbours, options.roles
        self._patch, self._length = patch, options.neighbours + 1
        self.time = TIME_ENCODERS[options.time](options.time_width)
        self.occurrence = nn.Sequential(nn.Linear(1, channels), nn.ReLU(), nn.Linear(channels, channels))
        self.of_edges = Dense(patch * self.edges, channels)
        self.of_times = Dense(patch * options.time_width, channels)
        self.of_occurrence = Dense(patch * channels, channels)
        self.transformer = nn.ModuleList(
            TransformerLayer(3 * channels, options.heads, options.dropout) for _ in range(options.layers)
        )
        self.output = Dense(3 * channels, options.hidden)
        self.decoder = EventDecoder(options.hidden, history=options.history, walks=0)

    def embed(self, below: Tensor, hops: list[Hop]) -> Tensor:
        """See ``EventModel.embed``: each beside a node that nothing is known of."""
        every = self._sequences(hops[0])
        embedded = [
            self._alone(every.pick(places))
            for places in _parts(torch.arange(len(every.node), device=below.device))
        ]
        return torch.cat(embedded)

    def ends(self, question: Question) -> tuple[Tensor, Tensor]:
        """See ``EventModel.ends``: both ends beside each other."""
        every, pairs = self._sequences(question.hops[0]), question.pairs
        parts = _parts(torch.stack([pairs.at_src, pairs.at_dst], dim=1))
        embedded = [
            self._beside(every.pick(ends_of_pairs[:, 0]), every.pick(ends_of_pairs[:, 1]))
            for ends_of_pairs in parts
        ]
        src, dst = (torch.cat(ends) for ends in zip(*embedded, strict=True))
        return src, dst

    @override
    def answer(self, question: Question) -> Tensor:
        (src, dst), pairs = self.ends(question), question.pairs
        place = torch.arange(len(src), device=src.device)
        logits: Tensor = self.decoder(
            torch.cat([src, dst]), place, place + len(place), pairs.encounters, pairs.walks
        )
        return logits

    def _sequences(self, hop: Hop) -> Sequences:
        """The node itself at its own time, as in the authors' code, then its events; tokens of edges and times."""
        node = torch.cat([hop.own.unsqueeze(1), hop.place], dim=1)
        valid = pad(hop.there, (1, 0), value=True)
        edge = pad(hop.edge, (0, 0, 1, 0))
        timed = self.time(pad(hop.age_s, (1, 0))) * valid.unsqueeze(2)
        patches = torch.cat([self.of_edges(self._patched(edge)), self.of_times(self._patched(timed))], dim=2)
        return Sequences(node, valid, patches, self._patched(valid.unsqueeze(2)).any(dim=2))

    def _patched(self, table: Tensor) -> Tensor:
        """Rows (R, L, w) in groups, (R, P, patch · w); the last is filled up with zeros."""
        missing = -self._length % self._patch
        return pad(table, (0, 0, 0, missing)).reshape(len(table), -1, self._patch * table.shape[2])

    def _tokens(self, of: Sequences, *among: Sequences) -> Tensor:
        """Tokens (q, P, 3 · channels), with how often each node occurs in some sequences; missing ones never do."""
        counts = torch.arange(self._length + 1, dtype=of.patches.dtype, device=of.patches.device)
        encoded = self.occurrence(counts.unsqueeze(1))  # a count is at most the length
        occurrences = [_occurrences(of, other) for other in among]
        occurrences += [torch.zeros_like(occurrences[0])] * (2 - len(occurrences))
        common = sum(rows(encoded, count) for count in occurrences) * of.valid.unsqueeze(2)
        return torch.cat([of.patches, self.of_occurrence(self._patched(common))], dim=2)

    def _alone(self, one: Sequences) -> Tensor:
        (embedded,) = self._embedded(self._tokens(one, one), one.whole, [one.whole])
        return embedded

    def _beside(self, one: Sequences, other: Sequences) -> tuple[Tensor, Tensor]:
        """Embeddings (q, hidden) of both ends of pairs."""
        tokens = torch.cat([self._tokens(one, one, other), self._tokens(other, other, one)], dim=1)
        src, dst = self._embedded(
            tokens, torch.cat([one.whole, other.whole], dim=1), [one.whole, other.whole]
        )
        return src, dst

    def _embedded(self, z: Tensor, whole: Tensor, ends: list[Tensor]) -> list[Tensor]:
        """The mean of each end's tokens after all layers, and a linear map."""
        for layer in self.transformer:
            z = layer(z, whole)
        parts = z.split([end.shape[1] for end in ends], dim=1)  # type: ignore[no-untyped-call]  # torch's
        means = [
            (part * end.unsqueeze(2)).sum(dim=1) / end.sum(dim=1, keepdim=True)
            for part, end in zip(parts, ends, strict=True)
        ]
        return [self.output(mean) for mean in means]


def _occurrences(of: Sequences, among: Sequences) -> Tensor:
    """How often each node of some sequences is in others beside them, int64 (q, L)."""
    same = (of.node.unsqueeze(2) == among.node.unsqueeze(1)) & among.valid.unsqueeze(1)
    return same.sum(dim=2)


def _parts(places: Tensor) -> tuple[Tensor, ...]:
    """All at once while learning, else a few at a time."""
    return (places,) if torch.is_grad_enabled() else places.split(PAIRS_AT_ONCE)  # type: ignore[no-untyped-call]  # torch's
