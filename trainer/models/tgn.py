"""The memory architecture of TGN and its kin, module by module, and its presets.

*Message*: of an event, to each of its ends (TGN equations 1 and 2, SPEED section II-C). *Aggregator*: one mail per node from the
mails of a group of events (equation 3). *Updater*: a node's next state from its mail (equation 4). *Embedding*: of a node at a
time, from states (section 3.1). The decoder is that of all event models.

The mail's row [own ‖ other ‖ e] begins with the state itself, and most weights of a cell meet it twice: as the state
and, with ``with_state``, as part of the message. So W_i · message + W_h · state is one product of the row with the sum of both
weights, a sixth of the work less.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import pad
from typing_extensions import override

from freshet_graph.schemas.section import Section
from freshet_graph.stream.arrays.kinds import Int64
from freshet_graph.trainer.data.walks import walk_width
from freshet_graph.trainer.device import to_device
from freshet_graph.trainer.models.event_model import (
    Dropout,
    EventDecoder,
    EventModel,
    Hop,
    PairHistory,
    Roles,
    TimeEncoding,
    TimeWidth,
)
from freshet_graph.trainer.models.interface import MODELS, ModelShape
from freshet_graph.trainer.nn.products import dense
from freshet_graph.trainer.nn.rows import rows
from freshet_graph.trainer.nn.temporal_attention import Merge, TemporalAttention
from freshet_graph.trainer.nn.time_encoding import TIME_ENCODERS, TimeEncoder


@dataclass(frozen=True, slots=True)
class Mail:
    """The mails of n nodes from their latest events. A node's state follows from its mail alone.

    Attributes:
        row: (n, d + other + edges): the node itself and the other end just before the events, and the events' inputs.
        gap_s: (n,), seconds from the node's former events to these, 0 if these are its first.
    """

    row: Tensor
    gap_s: Tensor


def pooled(states: Tensor, place: Tensor, valid: Tensor) -> Tensor:
    """A node's neighbourhood: the largest σ(s) among its neighbours (DyRep's localized embedding, h_struct).

    Args:
        states: (n, d).
        place: int64 (R, K), neighbours among the states.
        valid: bool (R, K), which exist.

    Returns:
        (R, d), zeros where there is no neighbour.
    """
    neighbours = rows(states, place).masked_fill(~valid.unsqueeze(2), -torch.inf)
    return torch.sigmoid(neighbours.amax(dim=1))  # σ grows, so the largest is that of the largest


class Message(nn.Module):
    """[own ‖ other ‖ e ‖ φ(Δt)], the first only ``with_state``; concatenation, as TGN's identity message.

    It stays in two parts, the mail's row, which has no gradient, and φ(Δt), which may have one. So the updater's
    backward pass does not compute the gradient of the larger part.

    Args:
        memory: d.
        other: Of what the other end sends.
        edges: Of e.
        time: The time encoder.
        with_state: Whether the node's own vector is part of it.

    Attributes:
        width: Of the message.
    """

    def __init__(self, memory: int, other: int, edges: int, time: TimeEncoder, *, with_state: bool) -> None:
        super().__init__()
        self.time = time
        self.width = (memory if with_state else 0) + other + edges + time.width

    def forward(self, mail: Mail) -> tuple[Tensor, Tensor]:
        """The mail's whole row (n, d + other + edges), even if only a part belongs to the message, and φ (n, T)."""
        return mail.row, self.time(mail.gap_s)


Aggregate = Callable[[Tensor, Int64, int], Tensor]


def latest(node: Int64, count: int) -> Int64:
    """The place of each node's latest mail, int64 (count,); see ``last``."""
    newest = np.empty(count, np.int64)
    newest[node] = np.arange(len(node))  # the last value of a repeated place stays
    return newest


def last(mails: Tensor, node: Int64, count: int) -> Tensor:
    """The latest mail of each node.

    Args:
        mails: (m, width) in order of time.
        node: int64 (m,), the node of each, 0 … count − 1; every one occurs.
        count: Nodes.

    Returns:
        (count, width).
    """
    if len(mails) == count and (node[1:] > node[:-1]).all():
        return mails  # one per node, in order
    return mails[to_device(latest(node, count), mails.device)]


def mean(mails: Tensor, node: Int64, count: int) -> Tensor:
    """The mean of each node's mails; see ``last``."""
    sums = mails.new_zeros(count, mails.shape[1]).index_add(0, to_device(node, mails.device), mails)
    counts = to_device(np.bincount(node, minlength=count), mails.device)
    return sums / counts.to(mails.dtype).unsqueeze(1)


AGGREGATORS: dict[str, Aggregate] = {"last": last, "mean": mean}


class Gated(nn.GRUCell):
    """A gated recurrent unit over [own ‖ other ‖ e ‖ φ(Δt)]; TGN and TIGE use it.

    Args:
        message: Width of the message.
        memory: d, width of states.
        with_state: Whether the state is part of the message.

    Attributes:
        products: Type of matrix products while training; None: that of the states.
    """

    products: torch.dtype | None = None

    def __init__(self, message: int, memory: int, *, with_state: bool) -> None:
        super().__init__(message, memory)
        self.with_state = with_state

    def forward(self, message: tuple[Tensor, Tensor]) -> Tensor:  # type: ignore[override]
        """Next states (n, d) from mails' rows (n, d + other + edges) and φ (n, T)."""
        d, state = self.hidden_size, message[0][:, : self.hidden_size]
        # the new gate's part of W_h is separate, because its product is multiplied by the reset gate
        gates = _products(self, message, self.weight_hh[: 2 * d], self.bias_hh[: 2 * d])
        halved = self.products if self.training else None
        hidden = dense(state, self.weight_hh[2 * d :], self.bias_hh[2 * d :], halved)
        reset, keep = torch.sigmoid(gates[:, : 2 * d]).chunk(2, dim=1)
        new = torch.tanh(torch.addcmul(gates[:, 2 * d :], reset, hidden))
        return torch.lerp(new, state, keep)


class Plain(nn.RNNCell):
    """A recurrent unit with tanh over a message; JODIE and DyRep use it. See ``Gated``."""

    products: torch.dtype | None = None

    def __init__(self, message: int, memory: int, *, with_state: bool) -> None:
        super().__init__(message, memory)
        self.with_state = with_state

    def forward(self, message: tuple[Tensor, Tensor]) -> Tensor:  # type: ignore[override]
        """Next states (n, d) from mails' rows (n, d + other + edges) and φ (n, T)."""
        return torch.tanh(_products(self, message, self.weight_hh, self.bias_hh))


def _products(
    cell: Gated | Plain, message: tuple[Tensor, Tensor], weight_hh: Tensor, bias_hh: Tensor
) -> Tensor:
    """W_i · message + b_i, plus W_h · state + b_h in its first columns, all in one product with the mail's row."""
    (row, timed), halved = message, cell.products if cell.training else None
    row_width = cell.input_size - timed.shape[1]
    by_row, by_time = cell.weight_ih[:, :row_width], cell.weight_ih[:, row_width:]
    if not cell.with_state:
        by_row = pad(by_row, (cell.hidden_size, 0))
    outputs = len(by_row) - len(weight_hh)
    by_row = by_row + pad(weight_hh, (0, row.shape[1] - cell.hidden_size, 0, outputs))
    bias = cell.bias_ih + pad(bias_hh, (0, outputs))
    return dense(row, by_row, bias, halved) + dense(timed, by_time, None, halved)


UPDATERS: dict[str, type[Gated] | type[Plain]] = {"gru": Gated, "rnn": Plain}


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


EmbeddingMoment = Annotated[
    Literal["event", "batch"],
    Field(
        description="When a node is embedded: at the time of each event that asks for it, or once per batch, at its first time: "
        "a third of the work at 200 events, and less in larger batches."
    ),
]
Walks = Annotated[
    bool, Field(description="Whether the decoder sees counts of temporal walks between the two.")
]

# The upper bounds limit a step's tables, which grow with their product, neighbours to the power of layers.


class MemoryOptions(Section):
    """Options of all models with a memory."""

    memory: int = Field(100, ge=1, le=4096, description="d, width of states and embeddings.")
    time_width: TimeWidth = 100
    time: TimeEncoding = "cosine"
    aggregator: Literal["last", "mean"] = Field(
        "last", description="The mail of a node, of those of a group of events."
    )
    moment: EmbeddingMoment = "event"
    roles: Roles = False
    history: PairHistory = False
    walks: Walks = False


class NeighbourOptions(MemoryOptions):
    """Options of those that look up neighbours."""

    neighbours: int = Field(10, ge=1, le=1000, description="K, interactions sampled per node.")
    how: Literal["recent", "uniform"] = Field(
        "recent", description="Which: the latest, or drawn among all earlier ones."
    )


class AttentionOptions(NeighbourOptions):
    """Options of those whose embeddings are made by attention."""

    layers: int = Field(1, ge=1, le=4, description="Of attention.")
    heads: int = Field(2, ge=1, le=64, description="Of each layer; they divide memory.")
    dropout: Dropout = 0.1
    merge: Merge = Field("mlp", description="Module over attention and the node's own vector.")


class MemoryModel(EventModel):
    """A node's state follows from its latest events; embeddings are made of states on demand.

    A state before any event is zero. s(u) after a group of events = UPD(MSG(mail), state before), where the mail is
    the aggregate of the group's mails to u. States are never stored, because they follow from the mail.

    Args:
        shape: Gives the width of edge features and the seed.
        options: Its ``Options``.

    Attributes:
        source: Content of a mail: ``memory``, states of both ends; ``neighbourhood``, these and the other end's
            neighbourhood; ``embedding``, embeddings of both.
        with_state: Whether the message has the node's own vector beside the updater's.
        cell: Of the updater.
        embeds: How embeddings are made of states.
    """

    remembers: ClassVar[bool] = True
    dense: ClassVar[tuple[str, ...]] = ("states", "answer")
    source: ClassVar[Literal["memory", "neighbourhood", "embedding"]] = "memory"
    with_state: ClassVar[bool]
    cell: ClassVar[Literal["gru", "rnn"]]
    embeds: ClassVar[Literal["identity", "projection", "attention"]]

    def __init__(self, shape: ModelShape, options: MemoryOptions) -> None:
        memory, walks = options.memory, options.walks
        super().__init__(shape, memory)
        if isinstance(options, NeighbourOptions):
            self.neighbours, self.how = options.neighbours, options.how
        self.once_a_batch = options.moment == "batch"
        self.roles, self.walks = options.roles, walks
        self.aggregate = AGGREGATORS[options.aggregator]
        encoder = TIME_ENCODERS[options.time](options.time_width)
        other = 2 * memory if self.source == "neighbourhood" else memory
        self.mail_width = memory + other + self.edges
        self.message = Message(memory, other, self.edges, encoder, with_state=self.with_state)
        self.updater = UPDATERS[self.cell](self.message.width, memory, with_state=self.with_state)
        self.attention: AttentionEmbedding | None = None
        if isinstance(options, AttentionOptions):
            self.attention = AttentionEmbedding(
                memory, self.edges, encoder, layers=options.layers, heads=options.heads, dropout=options.dropout,
                merge=options.merge,
            )  # fmt: skip
        self.embedding: nn.Module | None = None
        if self.embeds != "attention":
            self.embedding = Identity() if self.embeds == "identity" else TimeProjection(memory)
        self.decoder = EventDecoder(memory, history=options.history, walks=walk_width() if walks else 0)

    @property
    @override
    def layers(self) -> int:
        return 0 if self.embedding is not None or self.attention is None else self.attention.layers

    @property
    def mail_layers(self) -> int:
        """Hops of interactions in a mail."""
        if self.source == "embedding" and self.attention is not None:
            return self.attention.layers
        return 1 if self.source == "neighbourhood" else 0

    def mails(self, node: Int64, count: int) -> Int64:
        """Places of the mails of a group that ``aggregate`` reads; the others need not be made.

        Args:
            node: int64 (m,), the node of each, 0 … count − 1; every one occurs.
            count: Nodes.
        """
        return latest(node, count) if self.aggregate is last else np.arange(len(node))

    def states(self, mail: Mail) -> Tensor:
        """States (n, d) after the events of the mails."""
        updated: Tensor = self.updater(self.message(mail))
        return updated

    def embed(self, below: Tensor, hops: list[Hop]) -> Tensor:
        """Embeddings (R, d) of single rows, from states; see ``EventModel.embed``."""
        module = self.embedding if self.embedding is not None else self.attention
        assert module is not None
        embedded: Tensor = module(below, hops)
        return embedded

    def tell(self, states: Tensor, hops: list[Hop]) -> Tensor:
        """What each end of an event sends to the other, (R, other), for mails with more than states.

        It begins with what the end itself keeps as its own in its mail.
        """
        if self.source == "neighbourhood":
            hop = hops[0]
            return torch.cat([rows(states, hop.own), pooled(states, hop.place, hop.there)], dim=1)
        assert self.attention is not None
        embedded: Tensor = self.attention(states, hops)
        return embedded


@MODELS.register
class Jodie(MemoryModel):
    """JODIE (Kumar et al. 2019): a recurrent cell per node, embeddings projected in time."""

    name: ClassVar[str] = "jodie"
    Options: ClassVar[type[Section]] = MemoryOptions
    with_state, cell, embeds, neighbours = False, "rnn", "projection", 1


class DyRepOptions(NeighbourOptions):
    """Options of ``dyrep``."""

    # The paper's Δt is linear. Cosines of seconds look like noise to a plain cell, which has no gate to keep it out.
    time: TimeEncoding = "log"


@MODELS.register
class DyRep(MemoryModel):
    """DyRep (Trivedi et al. 2019): messages carry the other end and its neighbourhood into a recurrent cell."""

    name: ClassVar[str] = "dyrep"
    Options: ClassVar[type[Section]] = DyRepOptions
    source, with_state, cell, embeds = "neighbourhood", False, "rnn", "identity"


@MODELS.register
class Tgn(MemoryModel):
    """TGN (Rossi et al. 2020): a gated cell per node, embeddings by attention over recent neighbours."""

    name: ClassVar[str] = "tgn"
    Options: ClassVar[type[Section]] = AttentionOptions
    with_state, cell, embeds = True, "gru", "attention"


@MODELS.register
class Tige(Tgn):
    """TIGE (Zhang et al. 2023): two memories; embeddings just before events make the messages."""

    name: ClassVar[str] = "tige"
    source = "embedding"


class TgnHistoryOptions(AttentionOptions):
    """Options of ``tgn-history``."""

    time_width: TimeWidth = 24
    time: TimeEncoding = "log"
    moment: EmbeddingMoment = "batch"
    roles: Roles = True
    history: PairHistory = True
    walks: Walks = True


@MODELS.register
class TgnHistory(Tgn):
    """TGN with the pair's history, temporal walks, roles and log-spaced time: the recommended event model."""

    name: ClassVar[str] = "tgn-history"
    Options: ClassVar[type[Section]] = TgnHistoryOptions
