"""HDRF: edge partitioning that copies any node, high degrees first (Petroni and others 2015)."""

from typing import ClassVar

from stream.partition.interface import Kind, PartitionError, register
from stream.partition.two_pass import TwoPassSep


@register
class Hdrf(TwoPassSep):
    """SEP by centrality with every node a hub and plain degrees: nothing is discarded, and nothing bounds the copies.

    SPEED section III names this limit of SEP. Degrees are those after the snapshot, not those so far within it.

    Args:
        parts: P.
        seed: Seed of the draws that break ties.
        window: Unused.
        balance_weight: λ > 0; above 1 balance goes before copies.
    """

    name: ClassVar[str] = "hdrf"
    kind: ClassVar[Kind] = "edge"

    def __init__(self, *, parts: int, seed: int = 0, window: int = 4, balance_weight: float = 1.0) -> None:
        if not balance_weight > 0:
            raise PartitionError(f"{self.name} takes a positive balance_weight (λ), found {balance_weight}")
        super().__init__(parts=parts, seed=seed, hubs=1.0, time_constant=None, balance_weight=balance_weight)
