"""Inputs of nodes that other ranks own: fetched once, and kept while they cannot change."""

import numpy as np
from numpy.typing import NDArray

from trainer.data.views import GraphView
from trainer.ranks import Ranks
from trainer.strategies.request import Request
from trainer.strategies.snapshots.past import Past

Int64 = NDArray[np.int64]
Float32 = NDArray[np.float32]


class InputRows:
    """Stored inputs of nodes: features and log(1 + degree), from this rank's parts or from their owner.

    A snapshot in the window never changes, so a remote row is fetched once while its snapshot is in the window.

    Args:
        ranks: All ranks ask together.
        features: F.
    """

    def __init__(self, ranks: Ranks, features: int) -> None:
        self._ranks = ranks
        self._width = features + 1
        self._caches: dict[int, _Cache] = {}

    def keep(self, past: Past) -> None:
        """Forget snapshots that have left the window."""
        alive = {snapshot.tau for snapshot in past.snapshots}
        self._caches = {tau: cache for tau, cache in self._caches.items() if tau in alive}

    def rows(self, window: GraphView, past: Past, keys: Int64) -> Float32:
        """Rows of sorted, distinct keys: float32 (n, F + 1); zeros for nodes that had not come."""
        homes = past.homes(keys)
        out = np.zeros((len(keys), self._width), np.float32)
        own = homes == self._ranks.rank
        out[own] = self._stored(window, past, keys[own])
        if self._ranks.size == 1:
            return out
        missing = (homes >= 0) & ~own
        for snapshot, here, nodes in past.by_snapshot(keys):
            cache = self._caches.setdefault(snapshot.tau, _Cache(len(snapshot.home), self._width))
            remote = np.nonzero(missing[here])[0]
            cached = cache.slots[nodes[remote]] >= 0
            out[here][remote[cached]] = cache.rows[cache.slots[nodes[remote[cached]]]]
            missing[here.start + remote[cached]] = False
        self._fetch(window, past, keys, homes, missing, out)
        return out

    @property
    def memory_bytes(self) -> int:
        """Bytes of cached remote rows."""
        return sum(cache.rows.nbytes + cache.slots.nbytes for cache in self._caches.values())

    def _fetch(
        self,
        window: GraphView,
        past: Past,
        keys: Int64,
        homes: NDArray[np.int32],
        missing: NDArray[np.bool_],
        out: Float32,
    ) -> None:
        request = Request(keys[missing], homes[missing], self._ranks)
        distinct, place = np.unique(request.asked, return_inverse=True)
        fetched = request.answer_array(self._stored(window, past, distinct)[place], "features")
        out[missing] = fetched
        for snapshot, here, nodes in past.by_snapshot(keys[missing]):
            self._caches[snapshot.tau].add(nodes, fetched[here])

    def _stored(self, window: GraphView, past: Past, keys: Int64) -> Float32:
        out = np.empty((len(keys), self._width), np.float32)
        for snapshot, here, nodes in past.by_snapshot(keys):
            indptr = snapshot.graph.indptr
            if self._width > 1:
                out[here, :-1] = window.features(nodes, snapshot.tau)
            out[here, -1] = np.log1p(indptr[nodes + 1] - indptr[nodes])
        return out


class _Cache:
    """Fetched rows of one snapshot, in doubling room."""

    def __init__(self, num_nodes: int, width: int) -> None:
        self.slots = np.full(num_nodes, -1, np.int32)
        self.rows: Float32 = np.empty((0, width), np.float32)
        self._size = 0

    def add(self, nodes: Int64, rows: Float32) -> None:
        end = self._size + len(nodes)
        if end > len(self.rows):
            room = np.empty((max(end, 2 * len(self.rows)), rows.shape[1]), np.float32)
            room[: self._size] = self.rows[: self._size]
            self.rows = room
        self.rows[self._size : end] = rows
        self.slots[nodes] = np.arange(self._size, end, dtype=np.int32)
        self._size = end
