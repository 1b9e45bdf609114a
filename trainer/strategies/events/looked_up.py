"""What a batch of event queries is answered from: mails, sampled neighbours, and which pairs were asked about."""

from dataclasses import dataclass, field

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
