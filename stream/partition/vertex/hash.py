"""Owners that depend on the node alone: the baselines ``hash`` and ``random``."""

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from freshet_graph.stream.arrays.kinds import Int32, Int64
from freshet_graph.stream.kernels.mixing import mixed
from freshet_graph.stream.partition.interface import PartitionerSetting, register
from freshet_graph.stream.partition.vertex.base import VertexPartitioner, VertexPartitionerOptions
from freshet_graph.stream.snapshots.delta import SnapshotDelta


@register
class Hash(VertexPartitioner):
    """Each node's owner is a seeded hash of its dense id, for ever (DistDy section 5.1, "Hash")."""

    name: ClassVar[str] = "hash"

    def _place(self, delta: SnapshotDelta) -> tuple[Int64, Int32]:
        high = mixed(self.seed, delta.entered) >> np.uint64(32)
        return delta.entered, (high * np.uint64(self.parts) >> np.uint64(32)).astype(np.int32)


@register
class Random(VertexPartitioner):
    """New nodes are dealt to the parts in a drawn order, and stay.

    Unlike with ``hash``, a snapshot's new nodes are spread evenly, and a node that returns is dealt again.
    """

    name: ClassVar[str] = "random"

    def __init__(self, setting: PartitionerSetting, options: VertexPartitionerOptions) -> None:
        super().__init__(setting, options)
        self._dealt = 0

    def _place(self, delta: SnapshotDelta) -> tuple[Int64, Int32]:
        new = len(delta.entered)
        draws = np.random.default_rng([self.seed, self._dealt])
        owner = (self._dealt + np.arange(new)) % self.parts
        self._dealt += new
        return draws.permutation(delta.entered), owner.astype(np.int32)

    def _memory(self) -> dict[str, NDArray[Any]]:
        return {"dealt": np.array(self._dealt)}

    def _remember(self, memory: dict[str, NDArray[Any]]) -> None:
        self._dealt = int(memory["dealt"])
