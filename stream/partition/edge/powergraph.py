"""PowerGraph's greedy vertex cut (Gonzalez and others, OSDI 2012, section 5.1)."""

from typing import ClassVar

from stream.partition.edge.copying import CopyingPartitioner
from stream.partition.interface import register


@register
class PowergraphGreedy(CopyingPartitioner):
    """The least loaded part that both ends are in; else of the end with more edges left; else of all.

    1. A part that both ends are in. 2. Where both are in parts, but in no common one: a part of the end with more
    unassigned edges. 3. Where one is: a part of it. 4. Where none is: any part. Of several, the least loaded.
    Unassigned edges are those that the sealed snapshot still holds; where both ends have as many, the parts of
    both count.

    Args:
        parts: P.
        seed: Seed of the draws that break ties.
        window: Unused.
    """

    name: ClassVar[str] = "powergraph-greedy"
    greedy: ClassVar[bool] = True

    def __init__(self, *, parts: int, seed: int = 0, window: int = 4) -> None:
        super().__init__(parts=parts, seed=seed, window=window)
