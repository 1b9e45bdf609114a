"""Inputs of other ranks' nodes: rows are kept, and for rows that a rank already has only changed segments are sent."""

import numpy as np

from stream.arrays.kinds import Bool, Float32, Int32, Int64
from stream.snapshots.node_features import segment_bounds
from trainer.data.views import GraphView
from trainer.ranks import Ranks
from trainer.strategies.request import Request
from trainer.strategies.snapshots.kept_rows import KeptRows
from trainer.strategies.snapshots.past import STRIDE, Past, stored_inputs


class InputRows:
    """Stored inputs of nodes: features and degree, from this rank's parts or from their owner.

    A snapshot in the window never changes, so a row of another rank is kept while its snapshot is in the window and the
    budget allows. A row that is also wanted of the next snapshot travels as its changes.

    Args:
        ranks: All ranks ask together.
        features: F.
        segments: Of features, which are compared one by one.
        budget_bytes: Of kept rows; None: no bound.

    Attributes:
        cache: Rows of other ranks' nodes.
    """

    def __init__(
        self,
        ranks: Ranks,
        features: int,
        segments: int = 1,
        budget_bytes: int | None = None,
    ) -> None:
        self._ranks = ranks
        self._features, self._width = features, features + 1
        bounds = segment_bounds(features, segments) if features else np.zeros(1, np.int64)
        self._segments = np.append(bounds, self._width)  # the degree is one more
        self.cache = KeptRows(self._width, budget_bytes)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.cache.nbytes

    def keep(self, past: Past) -> None:
        """Forget snapshots that have left the window."""
        self.cache.keep({snapshot.tau for snapshot in past.snapshots})

    def rows(self, window: GraphView, past: Past, keys: Int64) -> Float32:
        """Rows of sorted, distinct keys: float32 (n, F + 1); zeros for nodes that had not come. A collective."""
        homes = past.homes(keys)
        out = np.zeros((len(keys), self._width), np.float32)
        own = homes == self._ranks.rank
        out[own] = stored_inputs(window, past, keys[own], self._features)
        if self._ranks.size == 1:
            return out
        missing = (homes >= 0) & ~own
        for snapshot, here, _ in past.by_snapshot(keys):
            remote = here.start + np.flatnonzero(missing[here])
            there, rows = self.cache.find(snapshot.tau, keys[remote] % STRIDE)
            out[remote[there]] = rows
            missing[remote[there]] = False
            self.cache.counts["hit"] += int(there.sum())
        if self._ranks.any(bool(missing.any()))[0]:
            self._fetch(window, past, keys, homes, missing, out)
        self.cache.trim((snapshot.tau, nodes) for snapshot, _, nodes in past.by_snapshot(keys))
        return out

    def _fetch(
        self,
        window: GraphView,
        past: Past,
        keys: Int64,
        homes: Int32,
        missing: Bool,
        out: Float32,
    ) -> None:
        """Fetch missing rows from their owners, whole or as changes since the snapshot before."""
        wanted = keys[missing]
        self.cache.counts["miss"] += len(wanted)
        request = Request(wanted, homes[missing], self._ranks)
        had, before = self._had(past, wanted, homes[missing])
        changed, lengths, values = self._changed(window, past, request.asked, request.tell(had))
        flags = request.answer_array(np.packbits(changed, axis=1), "features")
        came = np.unpackbits(flags, axis=1, count=len(self._segments) - 1).astype(np.bool_)
        sent = np.repeat(came, np.diff(self._segments), axis=1)
        delta = np.zeros_like(before)
        delta[sent] = request.answer_runs(values, lengths, sent.sum(axis=1), "features")
        at = np.searchsorted(wanted, wanted - STRIDE)
        chained = had & (wanted[np.minimum(at, len(wanted) - 1)] == wanted - STRIDE)
        fetched = np.empty_like(before)
        for snapshot, here, nodes in past.by_snapshot(wanted):
            base = np.where(chained[here, None], fetched[at[here] * chained[here]], before[here])
            fetched[here] = np.where(sent[here], delta[here], base)
            self.cache.add(snapshot.tau, nodes, fetched[here])
        out[missing] = fetched

    def _had(self, past: Past, wanted: Int64, homes: Int32) -> tuple[Bool, Float32]:
        """Whether rows of the snapshot before, with the same owner, are or will be present; and the present ones."""
        same = (wanted >= STRIDE) & (past.homes(np.maximum(wanted - STRIDE, 0)) == homes)
        had = same & np.isin(wanted - STRIDE, wanted, assume_unique=True)
        before = np.zeros((len(wanted), self._width), np.float32)
        for place, (_, here, nodes) in enumerate(past.by_snapshot(wanted)):
            if place:
                earlier = past.snapshots[place - 1]
                there, rows = self.cache.find(earlier.tau, nodes)
                mine = there & same[here]
                before[here][mine] = rows[mine[there]]
                had[here] |= mine
        return had, before

    def _changed(self, window: GraphView, past: Past, asked: Int64, had: Bool) -> tuple[Bool, Int64, Float32]:
        """Segments of asked rows that differ from the asking rank's, bool (asked, S + 1); lengths by row; values."""
        now = self._stored_any(window, past, asked)
        then = np.zeros_like(now)
        then[had] = self._stored_any(window, past, asked[had] - STRIDE)
        differ = now.view(np.uint32) != then.view(np.uint32)
        widths = np.diff(self._segments)
        starts = self._segments[:-1][widths > 0]
        changed = np.zeros((len(asked), len(widths)), np.bool_)
        changed[:, widths > 0] = np.logical_or.reduceat(differ, starts, axis=1)
        sent = np.repeat(changed, widths, axis=1)
        return changed, sent.sum(axis=1), now[sent]

    def _stored_any(self, window: GraphView, past: Past, keys: Int64) -> Float32:
        """As ``stored_inputs``, of keys in any order."""
        distinct, place = np.unique(keys, return_inverse=True)
        return stored_inputs(window, past, distinct, self._features)[place]
