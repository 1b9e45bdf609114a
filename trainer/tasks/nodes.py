"""Questions about nodes, and a snapshot's examples of them."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
from torch import Tensor, nn

from freshet_graph.stream.arrays.kinds import Bool, Float32, Float64, Int64
from freshet_graph.trainer.data.views import EventsView
from freshet_graph.trainer.device import to_device
from freshet_graph.trainer.tasks.interface import Shares, learns_all


@dataclass(frozen=True, slots=True)
class NodeQueries:
    """Questions for the targets of nodes.

    Attributes:
        node: int64 (Q,).
        known: float32 (Q, k), what was known of the target before the snapshot.
    """

    node: Int64
    known: Float32

    def __len__(self) -> int:
        return len(self.node)

    @property
    def ends(self) -> tuple[Int64]:
        """See ``QueryBatch.ends``."""
        return (self.node,)

    def read(self, head: nn.Module, rows: Sequence[Tensor]) -> Tensor:
        """See ``QueryBatch.read``."""
        (z,) = rows
        values: Tensor = head(z, to_device(self.known, z.device))
        return values


@dataclass(frozen=True, slots=True)
class NodeExamples:
    """A snapshot's targets.

    Attributes:
        tau: Snapshot.
        sequence: Its number in the log.
        end_us: Its last microsecond.
        node: int64 (n,), nodes of all ranks.
        known: float32 (n, k), see ``NodeQueries``.
        target: float32 (n,), a number, or that of a class.
        past: Of all targets of earlier snapshots: their mean, (1,), or the share of each class, (K,).
        owned: bool (n,), nodes that this rank predicts.
        mine: bool (n,), nodes that it learns from.
        chosen: bool (n,), nodes of the examples.
        excluded: See ``SnapshotExamples``.
    """

    tau: int
    sequence: int
    end_us: int
    node: Int64
    known: Float32
    target: Float32
    past: Float64
    owned: Bool
    mine: Bool
    chosen: Bool
    excluded: dict[str, int] = field(default_factory=dict)
    queries_per_example: ClassVar[int] = 1

    @classmethod
    def of(
        cls,
        view: EventsView,
        strategy: Shares,
        interval_us: int,
        *,
        node: Int64,
        known: Float32,
        target: Float32,
        past: Float64,
        excluded: dict[str, int] | None = None,
    ) -> "NodeExamples":
        """Examples of a view's newest snapshot, ``interval_us`` long; for the others see ``NodeExamples``."""
        tau = view.taus[-1]
        owned = strategy.owned(view.num_nodes)[node]
        return cls(
            tau=tau,
            sequence=view.sequence,
            end_us=(tau + 1) * interval_us - 1,
            node=node,
            known=known,
            target=target,
            past=past,
            owned=owned,
            mine=np.ones_like(owned) if learns_all(strategy) else owned,
            chosen=np.ones(len(node), np.bool_),
            excluded=excluded or {},
        )

    def __len__(self) -> int:
        return int(np.count_nonzero(self.mine & self.chosen))

    @property
    def items(self) -> int:
        """See ``SnapshotExamples.items``."""
        return len(self.node)

    @property
    def times(self) -> Int64:
        """See ``SnapshotExamples.times``: the end, so that a snapshot on the border of two splits belongs to the later one."""
        return np.full(len(self.node), self.end_us)

    def of_events(self, chosen: Bool) -> "NodeExamples":
        """See ``SnapshotExamples.of_events``."""
        return replace(self, chosen=self.chosen & chosen)

    def part(self, chosen: Int64) -> tuple[NodeQueries, Float32]:
        """See ``SnapshotExamples.part``."""
        return self._queries_of(np.flatnonzero(self.mine & self.chosen)[chosen])

    def all_queries(self) -> tuple[NodeQueries, Float32]:
        """Questions that this rank predicts, and the true answers."""
        return self._queries_of(np.flatnonzero(self.owned & self.chosen))

    def _queries_of(self, rows: Int64) -> tuple[NodeQueries, Float32]:
        return NodeQueries(self.node[rows], self.known[rows]), self.target[rows]
