"""Rows of other ranks' nodes, kept from step to step: read from the store, or asked of their owners.

A step needs the edges of nodes that are fewer than L hops away from those that it asks about, and the inputs of those up to L
hops away, in every snapshot of the window (DynaHB section 4.1; L is the number of graph stages). A sealed snapshot never changes,
so a row is right while its snapshot is in the window.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from freshet_graph.stream.arrays.kinds import Bool, Float32, Int32, Int64
from freshet_graph.stream.kernels.node_sets import locate
from freshet_graph.stream.snapshots.node_features import segment_bounds
from freshet_graph.stream.snapshots.pairs import split_keys
from freshet_graph.trainer.data.neighbours import NodeEdges
from freshet_graph.trainer.data.views import GraphView
from freshet_graph.trainer.models.stages import Stage
from freshet_graph.trainer.ranks import Ranks
from freshet_graph.trainer.strategies.request import Request
from freshet_graph.trainer.strategies.snapshots.past import STRIDE, Past, neighbours_of, stored_inputs


class KeptRows:
    """Rows by snapshot and node. A sealed snapshot never changes, so a row is right while its snapshot is in the window.

    Args:
        width: Of a row.
        budget_bytes: Beyond it, ``trim`` leaves the rows of the newest step only; None: no bound.

    Attributes:
        width: Of a row.
        counts: Rows found (``hit``), not found (``miss``) and dropped to stay within the budget (``evicted``).
    """

    def __init__(self, width: int, budget_bytes: int | None = None) -> None:
        self.width = width
        self._none = np.empty(0, np.int64), np.empty((0, width), np.float32)
        self._budget = budget_bytes
        self._rows: dict[int, tuple[Int64, Float32]] = {}
        self.counts: Counter[str] = Counter()

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(nodes.nbytes + rows.nbytes for nodes, rows in self._rows.values())

    def since_last(self) -> Counter[str]:
        """The counts since the last call."""
        counts, self.counts = self.counts, Counter()
        return counts

    def nodes(self, tau: int) -> Int64:
        """Nodes of a snapshot with a row, int64, ascending."""
        return self._rows.get(tau, self._none)[0]

    def find(self, tau: int, nodes: Int64) -> tuple[Bool, Float32]:
        """Which of some nodes, int64 (n,), ascending, have a row, bool (n,), and those rows, float32 (found, width)."""
        known, rows = self._rows.get(tau, self._none)
        place, is_kept = locate(known, nodes)
        return is_kept, rows[place[is_kept]]

    def add(self, tau: int, nodes: Int64, rows: Float32) -> None:
        """Keep rows, float32 (n, width), of nodes, int64 (n,), ascending; those that are kept already stay."""
        known, known_rows = self._rows.get(tau, self._none)
        fresh = np.flatnonzero(~locate(known, nodes)[1])
        place = np.searchsorted(known, nodes[fresh])
        self._rows[tau] = (
            np.insert(known, place, nodes[fresh]),
            np.insert(known_rows, place, rows[fresh], axis=0),
        )

    def keep(self, taus: Collection[int]) -> None:
        """Drop all other snapshots."""
        self._rows = {tau: rows for tau, rows in self._rows.items() if tau in taus}

    def trim(self, needed: Iterable[tuple[int, Int64]], beside: int = 0) -> bool:
        """Drop what the newest step did not need, if more is kept than the budget.

        Args:
            needed: By snapshot, the nodes that it needed, int64, ascending.
            beside: Bytes kept elsewhere, which count.

        Returns:
            Whether rows were dropped.
        """
        if self._budget is None or self.nbytes + beside <= self._budget:
            return False
        before, all_rows = self._count(), self._rows
        self._rows = {}
        for tau, nodes in needed:
            known, rows = all_rows.get(tau, self._none)
            chosen = locate(nodes, known)[1]
            self._rows[tau] = known[chosen], rows[chosen]
        self.counts["evicted"] += before - self._count()
        return True

    def _count(self) -> int:
        return sum(len(nodes) for nodes, _ in self._rows.values())


MIB = 1 << 20


class Reach:
    """Edges and inputs of other ranks' nodes in the snapshots of a window.

    Args:
        ranks: A single one has all rows.
        stages: The model's. Rows below a time stage are needed in all snapshots, even if they are a neighbour in one.
        features: F.
        budget_bytes: Of rows that are kept from step to step; None: no bound. Rows of the newest step are always kept.

    Attributes:
        outgrown: Whether one step needed more than the budget.
    """

    def __init__(
        self, ranks: Ranks, stages: Sequence[Stage], features: int, budget_bytes: int | None = None
    ) -> None:
        self._ranks = ranks
        along = ["graph", *(stage.along for stage in stages)]
        self._spreads = [below == "time" for below, way in pairwise(along) if way == "graph"][::-1]
        self._edges: dict[int, NodeEdges] = {}
        self._budget = budget_bytes
        self.rows = KeptRows(features + 1, budget_bytes)
        self.outgrown = False

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self._edge_bytes + self.rows.nbytes

    def ratio(self, past: Past) -> float:
        """Rows of other ranks' nodes to those of this rank's nodes, over the window."""
        num_local = sum(np.count_nonzero(snapshot.home == self._ranks.rank) for snapshot in past.snapshots)
        return sum(len(self.rows.nodes(snapshot.tau)) for snapshot in past.snapshots) / max(num_local, 1)

    def keep(self, past: Past) -> None:
        """Forget snapshots that have left the window."""
        taus = {snapshot.tau for snapshot in past.snapshots}
        self._edges = {tau: edges for tau, edges in self._edges.items() if tau in taus}
        self.rows.keep(taus)

    def cover(self, view: GraphView, past: Past, nodes: Sequence[Int64]) -> Past:
        """Read what rows of some nodes need and is missing; returns the window with all their edges.

        Args:
            view: Has the store.
            past: The window.
            nodes: Of each snapshot, int64.
        """
        if self._ranks.size == 1:
            return past
        sizes = [len(snapshot.home) for snapshot in past.snapshots]
        frontier = np.zeros((len(sizes), max(sizes, default=0)), np.bool_)  # snapshots × nodes
        for row, size, wanted in zip(frontier, sizes, nodes, strict=True):
            row[wanted[wanted < size]] = True
        reached = np.zeros_like(frontier)
        for spread in self._spreads:
            self._read(view, past, frontier, edges=True)
            reached |= frontier
            near = np.zeros_like(frontier)
            for row, of, snapshot in zip(near, frontier, self.known(past).snapshots, strict=True):
                row[snapshot.neighbours(np.flatnonzero(of), None, 0)[1]] = True
            if spread:
                near[:] = (near | reached).any(axis=0)
                for row, size in zip(near, sizes, strict=True):
                    row[size:] = False
            frontier = near & ~reached
        self._read(view, past, frontier, edges=False)
        needed = [
            (s.tau, np.flatnonzero(row)) for s, row in zip(past.snapshots, reached | frontier, strict=True)
        ]
        if self.rows.trim(needed, self._edge_bytes):
            snapshot_rows = zip(past.snapshots, reached, strict=True)
            self._edges = {
                snapshot.tau: self._edges[snapshot.tau].edges_of(np.flatnonzero(row))
                for snapshot, row in snapshot_rows
                if snapshot.tau in self._edges
            }
            assert self._budget is not None
            self.outgrown |= self.nbytes > self._budget
        return self.known(past)

    def known(self, past: Past) -> Past:
        """A window with the edges that were read, as if they were this rank's."""
        if not self._edges:
            return past
        none = NodeEdges.empty()
        return Past([replace(s, foreign=self._edges.get(s.tau, none)) for s in past.snapshots], past.length)

    def inputs(self, view: GraphView, past: Past, keys: Int64) -> Float32:
        """Rows of sorted, distinct keys that are covered: float32 (n, F + 1); zeros for nodes that had not come."""
        return known_inputs(view, past, keys, self._ranks.rank, self.rows)[0]

    def _read(self, view: GraphView, past: Past, reached: Bool, *, edges: bool) -> None:
        """Read rows of other ranks' nodes that are not held, with or without the neighbours; bool (snapshots, nodes)."""
        wanted, size = {}, {}
        for snapshot, row in zip(past.snapshots, reached, strict=True):
            nodes = np.flatnonzero(row[: len(snapshot.home)] & (snapshot.home != self._ranks.rank))
            known_nodes: Int64 | Int32 = self.rows.nodes(snapshot.tau)
            if edges:
                known_nodes = self._edges.get(snapshot.tau, NodeEdges.empty()).nodes
            missing = nodes[~locate(known_nodes, nodes)[1]]
            self.rows.counts["hit"] += len(nodes) - len(missing)
            self.rows.counts["miss"] += len(missing)
            if len(missing):
                wanted[snapshot.tau], size[snapshot.tau] = missing, len(snapshot.home)
        for tau, rows in view.rows(wanted).items():
            src, dst = split_keys(rows.keys)
            # Only nodes that had a number when the window took the snapshot, as in its own rows.
            numbered = (src < size[tau]) & (dst < size[tau])
            degree, neighbours = neighbours_of(size[tau], rows.keys[numbered], rows.nodes)
            self.rows.add(tau, rows.nodes, np.column_stack([rows.features, degree.astype(np.float32)]))
            if edges:
                had = self._edges.get(tau, NodeEdges.empty())
                self._edges[tau] = had.merged(rows.nodes, degree, neighbours)

    @property
    def _edge_bytes(self) -> int:
        return sum(edges.nbytes for edges in self._edges.values())


def known_inputs(
    view: GraphView, past: Past, keys: Int64, rank: int, cache: KeptRows
) -> tuple[Float32, Bool, int]:
    """Stored inputs of sorted, distinct keys, features and degree, of a rank's own nodes and from kept rows.

    Returns:
        float32 (n, F + 1), zeros where there is none; bool (n,), other ranks' rows that are not kept; how many are.
    """
    homes = past.homes(keys)
    out, is_local = np.zeros((len(keys), cache.width), np.float32), homes == rank
    out[is_local] = stored_inputs(view, past, keys[is_local], cache.width - 1)
    missing = (homes >= 0) & ~is_local
    others = int(missing.sum())
    for snapshot, here, nodes in past.by_snapshot(keys) if others else ():
        foreign = np.flatnonzero(missing[here])
        known, rows = cache.find(snapshot.tau, nodes[foreign])
        out[here][foreign[known]] = rows
        missing[here][foreign[known]] = False
    return out, missing, others - int(missing.sum())


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
        self, ranks: Ranks, features: int, segments: int = 1, budget_bytes: int | None = None
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
        out, missing, hits = known_inputs(window, past, keys, self._ranks.rank, self.cache)
        if self._ranks.size == 1:
            return out
        self.cache.counts["hit"] += hits
        if self._ranks.any(bool(missing.any()))[0]:
            out[missing] = self._fetched(window, past, keys[missing])
        self.cache.trim((snapshot.tau, nodes) for snapshot, _, nodes in past.by_snapshot(keys))
        return out

    def _fetched(self, window: GraphView, past: Past, wanted: Int64) -> Float32:
        """Missing rows from their owners, whole or as changes since the snapshot before."""
        homes = past.homes(wanted)
        self.cache.counts["miss"] += len(wanted)
        request = Request(wanted, homes, self._ranks)
        had, before = self._had(past, wanted, homes)
        changed, lengths, values = self._changed(window, past, request.requested, request.tell(had))
        flags = request.answer_array(np.packbits(changed, axis=1), "features")
        came = np.unpackbits(flags, axis=1, count=len(self._segments) - 1).astype(np.bool_)
        sent = np.repeat(came, np.diff(self._segments), axis=1)
        delta = np.zeros_like(before)
        delta[sent] = request.answer_runs(values, lengths, sent.sum(axis=1), "features")
        before_place, fetched_before = locate(wanted, wanted - STRIDE)
        chained = had & fetched_before
        fetched = np.empty_like(before)
        for snapshot, here, nodes in past.by_snapshot(wanted):
            base = np.where(chained[here, None], fetched[before_place[here] * chained[here]], before[here])
            fetched[here] = np.where(sent[here], delta[here], base)
            self.cache.add(snapshot.tau, nodes, fetched[here])
        return fetched

    def _had(self, past: Past, wanted: Int64, homes: Int32) -> tuple[Bool, Float32]:
        """Whether rows of the snapshot before, with the same owner, are or will be present; and the present ones."""
        same = (wanted >= STRIDE) & (past.homes(np.maximum(wanted - STRIDE, 0)) == homes)
        had = same & locate(wanted, wanted - STRIDE)[1]
        before = np.zeros((len(wanted), self._width), np.float32)
        for place, (_, here, nodes) in enumerate(past.by_snapshot(wanted)):
            if place:
                earlier = past.snapshots[place - 1]
                is_kept, rows = self.cache.find(earlier.tau, nodes)
                mine = is_kept & same[here]
                before[here][mine] = rows[mine[is_kept]]
                had[here] |= mine
        return had, before

    def _changed(
        self, window: GraphView, past: Past, requested: Int64, had: Bool
    ) -> tuple[Bool, Int64, Float32]:
        """Segments of asked rows that differ from the asking rank's, bool (asked, S + 1); lengths by row; values."""
        now = self._stored_any(window, past, requested)
        then = np.zeros_like(now)
        then[had] = self._stored_any(window, past, requested[had] - STRIDE)
        differ = now.view(np.uint32) != then.view(np.uint32)
        widths = np.diff(self._segments)
        starts = self._segments[:-1][widths > 0]
        changed = np.zeros((len(requested), len(widths)), np.bool_)
        changed[:, widths > 0] = np.logical_or.reduceat(differ, starts, axis=1)
        sent = np.repeat(changed, widths, axis=1)
        return changed, sent.sum(axis=1), now[sent]

    def _stored_any(self, window: GraphView, past: Past, keys: Int64) -> Float32:
        """As ``stored_inputs``, of keys in any order."""
        distinct, place = np.unique(keys, return_inverse=True)
        return stored_inputs(window, past, distinct, self._features)[place]
