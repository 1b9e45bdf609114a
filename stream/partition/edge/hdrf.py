"""HDRF: edge partitioning that may copy any node, high degrees first (Petroni and others 2015)."""

from typing import ClassVar

from stream.partition.edge.copying import CopyingPartitioner
from stream.partition.interface import PartitionError, register


@register
class Hdrf(CopyingPartitioner):
    """The part with the largest ``C_REP + λ·C_BAL``, by degrees so far.

    SPEED section III describes its limit, which SEP removes: any node may be copied.

    Args:
        parts: P.
        seed: Seed of the draws that break ties.
        window: Unused.
        balance_weight: λ > 0; above 1, balance may take precedence over copies.
    """

    name: ClassVar[str] = "hdrf"
    greedy: ClassVar[bool] = False

    def __init__(self, *, parts: int, seed: int = 0, window: int = 4, balance_weight: float = 1.0) -> None:
        if not balance_weight > 0:
            raise PartitionError(f"{self.name} takes a positive balance_weight (λ), found {balance_weight}")
        super().__init__(parts=parts, seed=seed, window=window)
        self.balance_weight = balance_weight
