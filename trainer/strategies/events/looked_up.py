"""What a batch of event queries is answered from: mails, sampled neighbours, and which pairs were asked about."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from trainer.models.memory.embeddings import Hop
from trainer.models.memory.messages import Mail


@dataclass(frozen=True, slots=True)
class Asked:
    """Pairs among embeddings, and what else is known of them.

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
    """Queries, and all that their answers are made of besides weights.

    Attributes:
        states: (n, d), of the distinct nodes below the last hop.
        hops: From what is embedded down to the states.
        asked: Pairs among what is embedded.
    """

    states: Tensor
    hops: list[Hop]
    asked: Asked

    def __len__(self) -> int:
        """Rows that are embedded."""
        return len(self.hops[0].own)

    @classmethod
    def join(cls, questions: "Sequence[Question]") -> "Question":
        """Several questions as one; each keeps its own rows, so whose states or times differ stay apart."""
        if len(questions) == 1:
            return questions[0]
        layers = list(zip(*(question.hops for question in questions), strict=True))
        rows = [[len(hop.own) for hop in hops] for hops in layers]
        below = [*rows[1:], [len(question.states) for question in questions]]
        asked = [question.asked for question in questions]
        walks = [each.walks for each in asked if each.walks is not None]
        return cls(
            torch.cat([question.states for question in questions]),
            [_joined(hops, of) for hops, of in zip(layers, below, strict=True)],
            Asked(
                at_src=_moved([each.at_src for each in asked], rows[0]),
                at_dst=_moved([each.at_dst for each in asked], rows[0]),
                encounters=torch.cat([each.encounters for each in asked]),
                walks=torch.cat(walks) if walks else None,
            ),
        )


def _joined(hops: Sequence[Hop], below: list[int]) -> Hop:
    """Hops side by side, of which each points at so many rows below."""
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
    """Told by a stream whose attribute ``looked_up`` it is; the last of each kind stays.

    Attributes:
        states: How many nodes' states were looked up, int64 which of them had mail, and the mails.
        hops: Sampled neighbours.
        asked: Pairs.
    """

    states: tuple[int, Tensor, Mail] | None = None
    hops: list[Hop] = field(default_factory=list)
    asked: Asked | None = None
