"""The inputs of answers to a batch of event queries: mails, sampled neighbours, and pairs."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from trainer.models.memory.embeddings import Hop
from trainer.models.memory.messages import Mail


@dataclass(frozen=True, slots=True)
class Asked:
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
        states: (n, d), of the nodes below the last hop, and maybe of others.
        hops: From the embedded rows down to the states.
        asked: Pairs among the embedded rows.
    """

    states: Tensor
    hops: list[Hop]
    asked: Asked

    def __len__(self) -> int:
        """Number of embedded rows."""
        return len(self.hops[0].own)

    @classmethod
    def join(cls, questions: "Sequence[Question]", states: Tensor | None = None) -> "Question":
        """Several questions as one, whose differing states or times stay apart.

        Args:
            questions: At least one.
            states: The table whose rows all of them name; None: each has its own.
        """
        if len(questions) == 1:
            return questions[0]
        layers = list(zip(*(question.hops for question in questions), strict=True))
        rows = [[len(hop.own) for hop in hops] for hops in layers]
        own = [0 if states is not None else len(question.states) for question in questions]
        below = [*rows[1:], own]
        asked = [question.asked for question in questions]
        walks = [each.walks for each in asked if each.walks is not None]
        return cls(
            torch.cat([question.states for question in questions]) if states is None else states,
            [_joined(hops, of) for hops, of in zip(layers, below, strict=True)],
            Asked(
                at_src=_moved([each.at_src for each in asked], rows[0]),
                at_dst=_moved([each.at_dst for each in asked], rows[0]),
                encounters=torch.cat([each.encounters for each in asked]),
                walks=torch.cat(walks) if walks else None,
            ),
        )


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


@dataclass(slots=True)
class LookedUp:
    """A recorder: while it is a stream's ``looked_up``, it keeps the last value of each kind that the stream looked up.

    Attributes:
        states: Number of nodes whose states were looked up, int64 those with mail, and the mails.
        hops: Sampled neighbours.
        asked: Pairs.
    """

    states: tuple[int, Tensor, Mail] | None = None
    hops: list[Hop] = field(default_factory=list)
    asked: Asked | None = None
