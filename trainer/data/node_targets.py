"""One number per node and snapshot as a model's target: the next in-degree, or the next feature."""

from typing import Any, Literal, Self

import numpy as np
import pyarrow as pa
from pydantic import Field, model_validator

from schemas.section import Section
from stream.arrays.kinds import Float32
from stream.snapshots.graph import LiveGraph
from stream.snapshots.pairs import Change
from stream.snapshots.state_table import pack, unpack


class Target(Section):
    """Options of ``node-regression``: the number to predict for each node, after the next snapshot."""

    next: Literal["in_degree", "feature"] = Field(
        "in_degree",
        description="in_degree: log(1 + live pairs that lead to the node); feature: one of its features.",
    )
    of: int | None = Field(None, ge=0, description="With feature: its number, from 0.")

    @model_validator(mode="after")
    def _names_a_feature(self) -> Self:
        if self.next == "feature" and self.of is None:
            raise ValueError("next: feature needs the feature's number. Give it in the key of")
        if self.next != "feature" and self.of is not None:
            raise ValueError("of is the number of a feature. Leave it out, or set next: feature")
        return self


class NodeTargets:
    """The newest value of every node of the whole live graph, on every rank, advanced snapshot by snapshot.

    ``in_degree``: log(1 + live directed pairs that lead to the node), as in DynaHB. ``feature``: one node feature.

    Args:
        target: The kind of value.
        node_features: F of the lane.
        edge_life: Of the lane.

    Attributes:
        values: float32 (num_nodes,), after the newest snapshot.
    """

    def __init__(self, target: Target, *, node_features: int, edge_life: int | None) -> None:
        self._feature = target.of if target.next == "feature" else None
        wide = node_features if self._feature is not None else 0
        self._graph = LiveGraph(node_features=wide, edge_life=edge_life)
        self._counts = np.zeros(0, np.int64)
        self.values: Float32 = np.zeros(0, np.float32)

    def take_in(self, tau: int, events: pa.Table) -> None:
        """Advance to a snapshot.

        Args:
            tau: Interval index, larger than all before.
            events: Of the log (``log_event_schema``), node events included.
        """
        delta = self._graph.apply(tau, events)
        nodes = delta.num_nodes
        if self._feature is not None:
            self.values = self._graph.features(np.arange(nodes))[:, self._feature]
            return
        changed = self._graph.changed()
        self._counts = np.concatenate([self._counts, np.zeros(nodes - len(self._counts), np.int64)])
        for change, sign in ((Change.ADDED, 1), (Change.REMOVED, -1)):
            np.add.at(self._counts, changed.dst[changed.change == change], sign)
        self.values = np.log1p(self._counts).astype(np.float32)

    def without_ending(self, tau: int) -> Float32:
        """The values after a later snapshot ``tau`` that only ended edge lives: age-aware persistence."""
        if self._feature is not None or self._graph.edge_life is None:
            return self.values
        _, dst = self._graph.ending(tau)
        left = self._counts - np.bincount(dst, minlength=len(self._counts))
        return np.log1p(left).astype(np.float32)

    def state(self) -> dict[str, Any]:
        """The state that ``restore`` continues from, as arrays."""
        return unpack(self._graph.state())

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a ``state()``."""
        self._graph.restore(pack({name: np.asarray(array) for name, array in state.items()}))
        nodes = self._graph.num_nodes
        if self._feature is not None:
            self.values = self._graph.features(np.arange(nodes))[:, self._feature]
            return
        self._counts = np.bincount(self._graph.pairs().dst, minlength=nodes)
        self.values = np.log1p(self._counts).astype(np.float32)

    @property
    def memory_bytes(self) -> int:
        """Bytes held."""
        return self._graph.nbytes + self._counts.nbytes + self.values.nbytes
