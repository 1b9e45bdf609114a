"""The memory architecture: message, aggregator, updater, embedding and decoder put together."""

from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn

from stream.arrays.kinds import Int64
from trainer.data.temporal_sampler import HOWS, How
from trainer.data.walks import walk_width
from trainer.models.event_model import EventModel, Hop
from trainer.models.interface import ModelShape
from trainer.models.memory.aggregators import AGGREGATORS, last, latest
from trainer.models.memory.decoder import EventDecoder
from trainer.models.memory.embeddings import AttentionEmbedding, Identity, TimeProjection
from trainer.models.memory.messages import SOURCES, Mail, Message, Source, pooled
from trainer.models.memory.updaters import UPDATERS
from trainer.nn.rows import rows
from trainer.nn.temporal_attention import MERGES, Merge
from trainer.nn.time_encoding import TIME_ENCODERS

MOMENTS = ("event", "batch")

LARGEST = {"memory": 4096, "time_width": 4096, "neighbours": 1000, "layers": 4, "heads": 64}
"""Limits of a step's tables, which grow with the product of these, ``neighbours`` to the power of ``layers``."""

EmbeddingName = Literal["identity", "projection", "attention"]


class MemoryModel(EventModel):
    """A node's state follows from its latest events; embeddings are made of states on demand.

    A state before any event is zero. s(u) after a group of events = UPD(MSG(mail), state before), where the mail is
    the aggregate of the group's mails to u. States are never stored, because they follow from the mail.

    Args:
        shape: Gives the width of edge features and the seed.
        memory: Width d of states and embeddings.
        time_width: Numbers per time span.
        time: ``cosine`` (learned) or ``log`` (fixed bumps on a logarithmic scale).
        message: Content of a mail: ``memory``, states of both ends; ``neighbourhood``, these and the other end's
            neighbourhood; ``embedding``, embeddings of both.
        own: Whether the message has the node's own vector beside the updater's.
        aggregator: ``last`` or ``mean``.
        updater: ``gru`` or ``rnn``.
        embedding: ``identity``, ``projection`` or ``attention``.
        neighbours: K, interactions sampled per node.
        how: ``recent`` or ``uniform``.
        layers: Of attention.
        heads: Of attention.
        dropout: Of attention weights.
        merge: Module over attention and the node's own vector, ``mlp`` or ``linear``.
        moment: When a node is embedded: at the time of each ``event`` that asks for it, or once per ``batch``, at its
            first time: a third of the work at 200 events, and less in larger batches.
        roles: Whether an edge input says which end of the event a node was.
        history: Whether the decoder sees encounters of the pair.
        walks: Whether the decoder sees counts of temporal walks between the two.
    """

    name: ClassVar[str] = "memory"
    remembers: ClassVar[bool] = True
    dense: ClassVar[tuple[str, ...]] = ("states", "answer")

    def __init__(
        self,
        shape: ModelShape,
        *,
        memory: int,
        time_width: int,
        time: str,
        message: Source,
        own: bool,
        aggregator: str,
        updater: str,
        embedding: EmbeddingName,
        neighbours: int,
        how: How,
        layers: int,
        heads: int,
        dropout: float,
        merge: Merge,
        moment: str,
        roles: bool,
        history: bool,
        walks: bool,
    ) -> None:
        super().__init__(shape, memory)
        for key, value, known in (
            ("time", time, TIME_ENCODERS),
            ("message", message, SOURCES),
            ("aggregator", aggregator, AGGREGATORS),
            ("updater", updater, UPDATERS),
            ("embedding", embedding, ("identity", "projection", "attention")),
            ("how", how, HOWS),
            ("merge", merge, MERGES),
            ("moment", moment, MOMENTS),
        ):
            if value not in known:
                raise ValueError(f"{key} must be one of {', '.join(known)}, found {value!r}")
        numbers = (memory, time_width, neighbours, layers, heads)
        for (key, largest), number in zip(LARGEST.items(), numbers, strict=True):
            if not 1 <= number <= largest:
                raise ValueError(f"{key} must be in 1 … {largest}, found {number}")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must be at least 0 and below 1, found {dropout}")
        self.neighbours = neighbours
        self.how = how
        self.once_a_batch = moment == "batch"
        self.roles, self.walks, self.source = roles, walks, message
        self.aggregate = AGGREGATORS[aggregator]
        encoder = TIME_ENCODERS[time](time_width)
        other = 2 * memory if message == "neighbourhood" else memory
        self.mail_width = memory + other + self.edges
        self.message = Message(memory, other, self.edges, encoder, own=own)
        self.updater = UPDATERS[updater](self.message.width, memory, own=own)
        self.attention: AttentionEmbedding | None = None
        if embedding == "attention" or message == "embedding":
            self.attention = AttentionEmbedding(
                memory, self.edges, encoder, layers=layers, heads=heads, dropout=dropout, merge=merge
            )
        self.embedding: nn.Module | None = None
        if embedding != "attention":
            self.embedding = Identity() if embedding == "identity" else TimeProjection(memory)
        self.decoder = EventDecoder(memory, history=history, walks=walk_width() if walks else 0)

    @property
    def layers(self) -> int:
        """See ``EventModel.layers``."""
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
