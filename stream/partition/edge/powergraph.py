"""PowerGraph's greedy vertex cut (Gonzalez and others, OSDI 2012, section 5.1)."""

from typing import ClassVar

from stream.partition.edge.copying import CopyingPartitioner
from stream.partition.interface import register


@register
class PowergraphGreedy(CopyingPartitioner):
    """The least loaded part that both ends are in, or else of the end with more edges left, or else of all.

    1. A part that both ends are in. 2. If both are in parts without a common one: a part of the end with more unassigned edges.
    3. If one is in parts: one of them. 4. Otherwise any part. Among several, the least loaded. Unassigned edges are those left
    in the sealed snapshot; if both ends have equally many, the parts of both count.

    Args:
        parts: P.
        seed: Seed of the draws that break ties.
        window: Unused.
    """

    name: ClassVar[str] = "powergraph-greedy"
    greedy: ClassVar[bool] = True
