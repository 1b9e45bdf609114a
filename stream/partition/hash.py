"""Owners that depend on nothing but the node: the baselines ``hash`` and ``random``."""

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from stream.partition.interface import register
from stream.partition.mixing import mixed_parts
from stream.partition.vertex import VertexPartitioner
from stream.snapshots.delta import Int32, SnapshotDelta


@register
class Hash(VertexPartitioner):
    """Each node's owner is a seeded hash of its dense id, for ever (DistDy section 5.1, "Hash")."""

    name: ClassVar[str] = "hash"

    def _place(self, delta: SnapshotDelta) -> Int32:
        owner = self._home[delta.live]
        new = owner < 0
        owner[new] = mixed_parts(self.seed, delta.live[new], self.parts)
        return owner


@register
class Random(VertexPartitioner):
    """New nodes are dealt to the parts in a drawn order, and stay.

    Unlike ``hash``, a snapshot's new nodes are spread evenly, and a node that comes back is dealt anew.
    """

    name: ClassVar[str] = "random"

    def __init__(self, **shared: Any) -> None:
        super().__init__(**shared)
        self._dealt = 0

    def _place(self, delta: SnapshotDelta) -> Int32:
        owner = self._home[delta.live]
        new = np.flatnonzero(owner < 0)
        draws = np.random.default_rng([self.seed, self._dealt])
        owner[draws.permutation(new)] = (self._dealt + np.arange(len(new))) % self.parts
        self._dealt += len(new)
        return owner

    def _memory(self) -> dict[str, NDArray[Any]]:
        return {"dealt": np.array(self._dealt)}

    def _remember(self, memory: dict[str, NDArray[Any]]) -> None:
        self._dealt = int(memory["dealt"])
