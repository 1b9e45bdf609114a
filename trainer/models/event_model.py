"""The interface of event models: what a query looks up among the events before a moment, and its answer from that.

``EventDecoder`` is their head: from two embeddings, and the pair's history, to the logit of an event.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from freshet_graph.stream.arrays.kinds import Float32, Int64
from freshet_graph.trainer.data.temporal_sampler import How
from freshet_graph.trainer.models.interface import Kind, Model, ModelShape
from freshet_graph.trainer.models.link_decoder import EncounterEncoder
from freshet_graph.trainer.nn.products import dense
from freshet_graph.trainer.nn.rows import rows


class EventDecoder(nn.Module):
    """A perceptron over [z(u) ‖ z(v)], as TGN's; with the pair's history a deeper one over that and z(u) ∘ z(v).

    Args:
        width: Of embeddings.
        history: Whether it sees encounters.
        walks: Width of the walk features; 0 without.

    Attributes:
        products: Type of its first product while training; None: that of embeddings.
    """

    products: torch.dtype | None = None

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

    def forward(
        self, z: Tensor, at_src: Tensor, at_dst: Tensor, encounters: Tensor, walks: Tensor | None
    ) -> Tensor:
        """Logits (q,) that the events (u, v) happen.

        A node is in many queries, so the first layer's product with it as either end is computed once.

        Args:
            z: (n, width), embeddings.
            at_src: int64 (q,), places of the u.
            at_dst: int64 (q,), places of the v.
            encounters: float32 (q, len(Encounter)).
            walks: (q, walk_width()), or None for a model without them.
        """
        first, width = self.perceptron[0], z.shape[1]
        assert isinstance(first, nn.Linear)
        by_end = torch.cat([first.weight[:, :width], first.weight[:, width : 2 * width]])
        either = dense(z, by_end, None, self.products if self.training else None).view(
            2 * len(z), first.out_features
        )
        src, dst = rows(either, torch.cat([2 * at_src, 2 * at_dst + 1])).chunk(2)
        hidden = src + dst + first.bias
        if self._looks_back:
            parts = [rows(z, at_src) * rows(z, at_dst)]
            if self.encounters is not None:
                parts.append(self.encounters(encounters).to(z.dtype))
            if walks is not None:
                parts.append(walks.to(z.dtype))
            hidden = hidden + nn.functional.linear(torch.cat(parts, dim=1), first.weight[:, 2 * width :])
        logits: Tensor = self.perceptron[1:](hidden).squeeze(1)
        return logits


EVENT_INPUTS = 4
"""Edge inputs beside the event's features: weight, label, whether it has a label, and which end the node was."""


@dataclass(frozen=True, slots=True)
class Hop:
    """R rows (node, time) and their K sampled interactions; names point into a table of the n nodes below.

    Attributes:
        own: int64 (R,), each row's node.
        place: int64 (R, K), each interaction's other end; anything if it does not exist.
        age_s: (R, K), seconds from each interaction to the row's time; 0 if it does not exist.
        edge: (R, K, edges).
        there: bool (R, K), which interactions exist.
        gap_s: (R,), seconds since the node's latest event, 0 without one; 0 for models without a memory.
    """

    own: Tensor
    place: Tensor
    age_s: Tensor
    edge: Tensor
    there: Tensor
    gap_s: Tensor


@dataclass(frozen=True, slots=True)
class PairQueries:
    """Pairs among embeddings, and further inputs of them.

    Attributes:
        at_src: int64 (q,), place of u.
        at_dst: int64 (q,), place of v.
        encounters: float32 (q, len(Encounter)).
        walks: (q, walk_width()); None for a model without.
    """

    at_src: Tensor
    at_dst: Tensor
    encounters: Tensor
    walks: Tensor | None


@dataclass(frozen=True, slots=True)
class Question:
    """Queries, and all inputs of their answers except weights.

    Attributes:
        below: (n, d), of the nodes below the last hop, and maybe of others: their states, or their ``EventModel.inputs``.
        hops: From the embedded rows down to these nodes.
        pairs: Pairs among the embedded rows.
    """

    below: Tensor
    hops: list[Hop]
    pairs: PairQueries

    def __len__(self) -> int:
        """Number of embedded rows."""
        return len(self.hops[0].own)

    @classmethod
    def join(cls, questions: "Sequence[Question]", below: Tensor | None = None) -> "Question":
        """Several questions as one, whose differing states or times stay apart.

        Args:
            questions: At least one.
            below: The table whose rows all of them name; None: each has its own.
        """
        if len(questions) == 1:
            return questions[0]
        layers = list(zip(*(question.hops for question in questions), strict=True))
        sizes = [[len(hop.own) for hop in hops] for hops in layers]
        offsets = [0 if below is not None else len(question.below) for question in questions]
        pairs = [question.pairs for question in questions]
        walks = [queries.walks for queries in pairs if queries.walks is not None]
        return cls(
            torch.cat([question.below for question in questions]) if below is None else below,
            [_joined(hops, of) for hops, of in zip(layers, [*sizes[1:], offsets], strict=True)],
            PairQueries(
                at_src=_moved([queries.at_src for queries in pairs], sizes[0]),
                at_dst=_moved([queries.at_dst for queries in pairs], sizes[0]),
                encounters=torch.cat([queries.encounters for queries in pairs]),
                walks=torch.cat(walks) if walks else None,
            ),
        )


TimeWidth = Annotated[int, Field(ge=1, le=4096, description="Numbers per time span.")]
TimeEncoding = Annotated[
    Literal["cosine", "log"],
    Field(description="Of time spans: cosine, learned; or log, fixed bumps on a logarithmic scale."),
]
Roles = Annotated[bool, Field(description="Whether an edge input says which end of the event a node was.")]
PairHistory = Annotated[bool, Field(description="Whether the decoder sees encounters of the pair.")]
Dropout = Annotated[
    float, Field(ge=0, lt=1, description="Share of the attention's values left out while training.")
]


class EventModel(Model):
    """A model that answers about pairs of nodes by what it looks up among the events before a moment.

    Strategies look up, models compute. A row (node, time) has ``layers`` hops of interactions, at most ``neighbours``
    each, and below the last hop a row of numbers per node. With ``layers`` 0 a node has only these numbers: without a
    memory, nothing of the stream. A ``MemoryModel`` has states there, which follow the events, and maybe walks; any other
    model has ``inputs``, which do not.

    Args:
        shape: Gives the width of edge features and the seed.
        width: Of embeddings.

    Attributes:
        seed: Of draws.
        edge_features: Width of an event's features.
        edges: Width of the edge inputs of an interaction.
        neighbours: K, interactions looked up per row.
        how: Which: the ``recent`` ones, or ``uniform`` ones among all.
        roles: Whether an edge input says which end of the event a node was.
        once_a_batch: Whether a node is embedded once per batch, at its first time, instead of once per event.
        remembers: Whether its nodes have states.
        dense: Its methods with one argument that compute from tensors alone, which the key ``compile`` compiles.
    """

    kind: ClassVar[Kind] = "event"
    remembers: ClassVar[bool] = False
    dense: ClassVar[tuple[str, ...]] = ("answer",)
    neighbours: int
    how: How = "recent"
    roles: bool = False
    once_a_batch: bool = False

    def __init__(self, shape: ModelShape, width: int) -> None:
        super().__init__()
        self.width, self.seed = width, shape.seed
        self.edge_features, self.edges = shape.edge_features, shape.edge_features + EVENT_INPUTS

    @property
    def layers(self) -> int:
        """Hops of interactions that ``embed`` needs."""
        return 1

    @property
    def sees_by_event(self) -> bool:
        """Whether each row can see all that is strictly before its own time, instead of before its batch.

        A memory moves batch by batch, and so do second hops, which are looked up once for all rows.
        """
        return not self.remembers and self.layers <= 1

    def inputs(self, born: Int64) -> Float32:
        """What is known of nodes without the stream, float32 (n, d); here d = 0.

        Args:
            born: int64 (n,), how many nodes came before each: unique, and never reused after nodes were forgotten.
        """
        return np.empty((len(born), 0), np.float32)

    def embed(self, below: Tensor, hops: list[Hop]) -> Tensor:
        """Embeddings (R, width) of single rows.

        Args:
            below: (n, d), of the nodes below the last hop, and maybe of others.
            hops: From the wanted rows down; the nodes of each are the rows of the next.
        """
        raise NotImplementedError

    def ends(self, question: Question) -> tuple[Tensor, Tensor]:
        """Embeddings (q, width) of the u and of the v that are asked about; here of each end by itself."""
        z = self.embed(question.below, question.hops)
        return rows(z, question.pairs.at_src), rows(z, question.pairs.at_dst)

    def answer(self, question: Question) -> Tensor:
        """Logits (q,) that the events (u, v) happen; here the decoder's, from the embedding of each end by itself."""
        z, pairs = self.embed(question.below, question.hops), question.pairs
        logits: Tensor = self.decoder(z, pairs.at_src, pairs.at_dst, pairs.encounters, pairs.walks)
        return logits

    def multiply_in(self, dtype: torch.dtype) -> None:
        """Compute products with weights in a smaller type while training; weights and states keep theirs."""
        for module in self.modules():
            if hasattr(module, "products"):
                module.products = dtype  # type: ignore[assignment]  # not a parameter


def _joined(hops: Sequence[Hop], below: list[int]) -> Hop:
    """Hops side by side, each over so many rows below."""
    return Hop(
        own=_moved([hop.own for hop in hops], below),
        place=_moved([hop.place for hop in hops], below),
        age_s=torch.cat([hop.age_s for hop in hops]),
        edge=torch.cat([hop.edge for hop in hops]),
        there=torch.cat([hop.there for hop in hops]),
        gap_s=torch.cat([hop.gap_s for hop in hops]),
    )


def _moved(places: Sequence[Tensor], rows: list[int]) -> Tensor:
    """Places in tables of so many rows as places where these stand one below the other."""
    firsts = [0]
    for count in rows[:-1]:
        firsts.append(firsts[-1] + count)
    return torch.cat([place + first for place, first in zip(places, firsts, strict=True)])
