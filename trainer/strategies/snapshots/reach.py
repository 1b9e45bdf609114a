"""What a rank needs to compute rows of some nodes alone: rows of other ranks' nodes are read from the store.

A step needs the edges of nodes that are fewer than L hops away from those that it asks about, and the inputs of those up to L
hops away, in every snapshot of the window (DynaHB section 4.1; L is the number of graph stages). A sealed snapshot never changes,
so what was read is kept while its snapshot is in the window.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from stream.arrays.kinds import Bool, Float32, Int32, Int64
from stream.snapshots.pairs import split_keys
from trainer.data.neighbours import NodeEdges
from trainer.data.views import GraphView
from trainer.models.stages import Stage
from trainer.ranks import Ranks
from trainer.strategies.snapshots.kept_rows import KeptRows, among
from trainer.strategies.snapshots.past import Past, neighbours_of, stored_inputs

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
        self._ranks, self._features = ranks, features
        along = ["graph", *(stage.along for stage in stages)]
        self._spreads = [below == "time" for below, each in pairwise(along) if each == "graph"][::-1]
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
        own = sum(np.count_nonzero(snapshot.home == self._ranks.rank) for snapshot in past.snapshots)
        return sum(len(self.rows.nodes(snapshot.tau)) for snapshot in past.snapshots) / max(own, 1)

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
        for row, size, each in zip(frontier, sizes, nodes, strict=True):
            row[each[each < size]] = True
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
            kept = zip(past.snapshots, reached, strict=True)
            self._edges = {
                snapshot.tau: self._edges[snapshot.tau].of(np.flatnonzero(row))
                for snapshot, row in kept
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
        """Rows of sorted, distinct keys that are covered, see ``stored_inputs``; zeros for nodes that had not come."""
        homes = past.homes(keys)
        own = homes == self._ranks.rank
        out = np.zeros((len(keys), self._features + 1), np.float32)
        out[own] = stored_inputs(view, past, keys[own], self._features)
        foreign = np.flatnonzero((homes >= 0) & ~own)
        for snapshot, here, nodes in past.by_snapshot(keys[foreign]):
            out[foreign[here]] = self.rows.find(snapshot.tau, nodes)[1]
        return out

    def _read(self, view: GraphView, past: Past, reached: Bool, *, edges: bool) -> None:
        """Read rows of other ranks' nodes that are not held, with or without the neighbours; bool (snapshots, nodes)."""
        wanted, size = {}, {}
        for snapshot, row in zip(past.snapshots, reached, strict=True):
            nodes = np.flatnonzero(row[: len(snapshot.home)] & (snapshot.home != self._ranks.rank))
            kept: Int64 | Int32 = self.rows.nodes(snapshot.tau)
            if edges:
                kept = self._edges.get(snapshot.tau, NodeEdges.empty()).nodes
            missing = nodes[~among(nodes, kept)]
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
