"""Views of the store for training: events of the newest snapshot, or the last snapshots as graphs.

Nodes are numbers of remembered nodes, which are the stream's dense ids until a node is forgotten.
"""

from collections.abc import Mapping
from typing import Protocol

from schemas.store import LaneManifest
from stream.arrays.kinds import Bool, Float32, Int32, Int64
from stream.snapshots.delta import Csr
from stream.store.log.event_columns import EventColumns
from stream.store.window.rows import NodeRows


class EventsView(Protocol):
    """The snapshots of a stream as events; each method is about one of ``taus``."""

    @property
    def taus(self) -> list[int]:
        """Interval indices, oldest first."""
        ...

    @property
    def sequence(self) -> int:
        """Number of the newest snapshot in its log, from 0; −1 before the first."""
        ...

    @property
    def num_nodes(self) -> int:
        """Nodes after the newest snapshot."""
        ...

    def events(self, tau: int) -> EventColumns:
        """Edge events in log order."""
        ...

    def advance(self, manifest: LaneManifest) -> None:
        """Make ``manifest`` the newest snapshot."""
        ...

    @property
    def memory_bytes(self) -> int:
        """Bytes held."""
        ...


class GraphView(EventsView, Protocol):
    """The same snapshots as graphs."""

    def csr(self, tau: int) -> Csr:
        """Undirected adjacency of the edges stored with this view's parts."""
        ...

    def pairs(self, tau: int) -> tuple[Int64, Int64, Float32]:
        """Directed pairs stored with this view's parts: int64 src and dst (E,), self-loops included, and float32 weights (E,)."""
        ...

    def features(self, ids: Int64, tau: int) -> Float32:
        """float32 (n, F); zeros for nodes not stored with this view's parts."""
        ...

    def rows(self, wanted: Mapping[int, Int64]) -> dict[int, NodeRows]:
        """Rows of any nodes, int64 ascending by snapshot, over all parts of a vertex lane, read from the store."""
        ...

    def owner(self, tau: int) -> Int32:
        """Part of every node of that snapshot, over all parts; −1 for none."""
        ...

    def shared(self) -> Bool:
        """Nodes in more than one part after the newest snapshot, bool (num_nodes,); none in vertex lanes."""
        ...

    def event_parts(self, tau: int) -> Int32 | None:
        """Edge lanes: the part of every edge event, −1 for discarded ones and deletes; None in vertex lanes."""
        ...
