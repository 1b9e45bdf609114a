"""``sep``: SPEED's streaming edge partitioning (SPEED, section II-B), with two rules to choose shared nodes.

``need``, the default, is the sealed-snapshot need cover; ``centrality`` is the paper's rule with a sealed snapshot as its batch.
``foresee`` first gives the whole file to the paper's rule: SPEED's two passes. Both rules keep at most ⌊k · nodes seen⌋ nodes
in more than one part, so ``RF ≤ k·P + (1 − k)`` (Theorem 1) always holds.
"""

import math
from typing import ClassVar, Literal

import pyarrow as pa

from stream.arrays.kinds import Int32, Int64
from stream.partition.edge.need_cover import NeedCover
from stream.partition.edge.two_pass import TwoPassSep
from stream.partition.interface import Assignment, Kind, PartitionError, Quality, register
from stream.snapshots.delta import SnapshotDelta

Rule = Literal["need", "centrality"]


@register
class Sep:
    """SPEED's SEP.

    Args:
        parts: P.
        seed: Seed of the draws that break ties.
        window: Unused.
        hubs: k, share of the seen nodes that may be in more than one part.
        time_constant: 1/β in seconds of event time: an event counts 1/e of one this much later, half of one ln 2 times this
            later. None: all count the same (β = 0).
        balance_weight: λ of eq. 6, in (0, 1], for the rule ``centrality``.
        rule: How shared nodes are chosen: by the edges saved, or by centrality.
        past_weight: For the rule ``need``, in [0, 1]: weight of the need of past snapshots, relative to the edges of the
            sealed one. 1 keeps the shared set steady, 0 discards least on arrival.

    Attributes:
        used: The partitioner of the rule in force.
    """

    name: ClassVar[str] = "sep"
    kind: ClassVar[Kind] = "edge"

    def __init__(
        self,
        *,
        parts: int,
        seed: int = 0,
        window: int = 4,
        hubs: float = 0.05,
        time_constant: float | None = None,
        balance_weight: float = 1.0,
        rule: Rule = "need",
        past_weight: float = 0.25,
    ) -> None:
        if not 0 <= hubs <= 1:
            raise PartitionError(f"{self.name} takes hubs, a share of the nodes, in [0, 1], found {hubs}")
        if not balance_weight > 0 or (balance_weight > 1 and hubs < 1):
            raise PartitionError(
                f"{self.name} takes balance_weight (λ) in (0, 1], found {balance_weight}: "
                "above 1, nodes that are no hubs would be copied, and the bound on copies would not hold"
            )
        if time_constant is not None and not 0 < time_constant < math.inf:
            raise PartitionError(
                f"{self.name} takes a positive time_constant in seconds, found {time_constant}"
            )
        if not 0 <= past_weight <= 1:
            raise PartitionError(f"{self.name} takes past_weight in [0, 1], found {past_weight}")
        self.parts, self.seed, self.window, self.rule = parts, seed, window, rule
        self._paper = TwoPassSep(
            parts=parts, seed=seed, hubs=hubs, time_constant=time_constant, balance_weight=balance_weight
        )
        self.used: TwoPassSep | NeedCover = self._paper
        if rule == "need":
            self.used = NeedCover(
                parts=parts, seed=seed, hubs=hubs, time_constant=time_constant, past_weight=past_weight
            )

    def foresee(self, src: Int64, dst: Int64, t: Int64, num_nodes: int) -> None:
        """Take pass 1 over all inserts of a file before its first update: SPEED's two passes.

        Switches to the rule ``centrality``, with the hubs of the whole file, whose nodes all count as seen.

        Args:
            src: int64 (E,) dense ids of the inserts' ends.
            dst: int64 (E,).
            t: int64 (E,) microseconds.
            num_nodes: Distinct nodes of the file.
        """
        self.used = self._paper
        self._paper.foresee(src, dst, t, num_nodes)

    def update(self, delta: SnapshotDelta) -> Assignment:
        """See ``EdgePartitioner.update``."""
        return self.used.update(delta)

    def home(self) -> Int32:
        """See ``EdgePartitioner.home``."""
        return self.used.home()

    def quality(self) -> Quality:
        """See ``EdgePartitioner.quality``."""
        return self.used.quality()

    def state(self) -> pa.Table:
        """See ``EdgePartitioner.state``."""
        return self.used.state()

    def restore(self, table: pa.Table) -> None:
        """Continue from a ``state()``.

        Raises:
            PartitionError: The state is from the other rule, or from a lane before there were two rules.
        """
        of: Rule = "need" if "need" in table.column_names else "centrality"
        if of == "centrality" and "masks" in table.column_names:
            self._paper.restore(table)
            if self._paper.foresees:
                self.used = self._paper
                return
        if of != self.rule or "masks" not in table.column_names:
            raise PartitionError(
                f"this state is of {self.name} with rule: {of}, or of a release before this shape, not with rule: "
                f"{self.rule}. Remove the lane's folder and let the stream job build it again"
            )
        self.used.restore(table)
