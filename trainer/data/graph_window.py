"""What training needs of the store: the last snapshots, as ``stream.store.window.view.WindowView`` offers them."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from stream.snapshots.delta import Csr
from stream.store.log.event_columns import EventColumns

Int64 = NDArray[np.int64]


class GraphWindow(Protocol):
    """The snapshots of a window; each method is about one of ``taus``."""

    @property
    def taus(self) -> list[int]:
        """Interval indices, oldest first."""
        ...

    @property
    def num_nodes(self) -> int:
        """Dense ids in use after the latest snapshot."""
        ...

    def csr(self, tau: int) -> Csr:
        """Undirected adjacency of the edges stored with this view's parts."""
        ...

    def features(self, ids: Int64, tau: int) -> NDArray[np.float32]:
        """float32 (n, F); zeros for nodes not stored with this view's parts."""
        ...

    def owner(self, tau: int) -> NDArray[np.int32]:
        """Part of every dense id of that snapshot, over all parts; −1 for none."""
        ...

    def events(self, tau: int) -> EventColumns:
        """Edge events in log order."""
        ...

    def shared(self) -> NDArray[np.bool_]:
        """Nodes that are in more than one part after the latest snapshot, bool (num_nodes,); vertex lanes have none."""
        ...

    def event_parts(self, tau: int) -> NDArray[np.int32] | None:
        """Edge lanes: the part of every edge event, −1 for discarded ones and deletes; None in vertex lanes."""
        ...
