"""Rows of other ranks' nodes, read from the store: a rank then computes alone, and only gradients cross ranks.

A step needs the edges of nodes that are fewer than L hops away from those that it asks about, and the inputs of those up to L
hops away, in every snapshot of the window (DynaHB section 4.1; L is the number of graph stages). A sealed snapshot never changes,
so what was read is kept while its snapshot is in the window.
"""

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np

from stream.arrays.kinds import Float32, Int64
from stream.snapshots.pairs import split_keys
from trainer.data.neighbours import NodeEdges
from trainer.data.views import GraphView
from trainer.strategies.snapshots.past import Past, neighbours_of, stored_inputs

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class _Inputs:
    """Inputs of some nodes of a snapshot: int64 (n,), ascending, and float32 (n, F + 1)."""

    nodes: Int64
    rows: Float32

    def merged(self, nodes: Int64, rows: Float32) -> "_Inputs":
        """Also of other nodes, some of which may be among these."""
        fresh = np.flatnonzero(~np.isin(nodes, self.nodes, assume_unique=True))
        at = np.searchsorted(self.nodes, nodes[fresh])
        return _Inputs(np.insert(self.nodes, at, nodes[fresh]), np.insert(self.rows, at, rows[fresh], axis=0))

    def of(self, nodes: Int64) -> "_Inputs":
        """Of those among ``nodes``."""
        kept = np.isin(self.nodes, nodes, assume_unique=True)
        return _Inputs(self.nodes[kept], self.rows[kept])


class ForeignRows:
    """Edges and inputs of other ranks' nodes in the snapshots of a window.

    Args:
        rank: This rank.
        hops: L, graph stages of the model.
        features: F.
        budget_bytes: Of rows that are kept from step to step; None: no bound. Rows of the newest step are always kept.
    """

    def __init__(self, rank: int, hops: int, features: int, budget_bytes: int | None = None) -> None:
        self._rank, self._hops, self._features, self._budget = rank, hops, features, budget_bytes
        self._edges: dict[int, NodeEdges] = {}
        self._inputs: dict[int, _Inputs] = {}
        self.counts: Counter[str] = Counter()

    @property
    def held_bytes(self) -> int:
        """Bytes of the rows."""
        edges = sum(each.nbytes for each in self._edges.values())
        return edges + sum(each.nodes.nbytes + each.rows.nbytes for each in self._inputs.values())

    def since_last(self) -> Counter[str]:
        """Rows of snapshots that steps found (``hit``), read (``miss``) and dropped (``evicted``), since the last call."""
        counts, self.counts = self.counts, Counter()
        return counts

    def ratio(self, past: Past) -> float:
        """Rows of other ranks' nodes to those of this rank's nodes, over the window."""
        own = sum(np.count_nonzero(snapshot.home == self._rank) for snapshot in past.snapshots)
        return sum(len(self._inputs[s.tau].nodes) for s in past.snapshots if s.tau in self._inputs) / max(
            own, 1
        )

    def keep(self, past: Past) -> None:
        """Forget snapshots that have left the window."""
        taus = {snapshot.tau for snapshot in past.snapshots}
        self._edges = {tau: edges for tau, edges in self._edges.items() if tau in taus}
        self._inputs = {tau: inputs for tau, inputs in self._inputs.items() if tau in taus}

    def cover(self, view: GraphView, past: Past, roots: Int64) -> None:
        """Read what is missing for questions about nodes, int64, ascending."""
        keys = past.keys(roots).ravel()
        frontier = keys[past.homes(keys) >= 0]
        reached = frontier[:0]
        for _ in range(self._hops):
            self._read(view, past, self._foreign(past, frontier), edges=True)
            reached = np.union1d(reached, frontier)
            frontier = np.setdiff1d(self.alone(past).sample(frontier, None, 0)[1], reached)
        self._read(view, past, self._foreign(past, frontier), edges=False)
        if self._budget is not None and self.held_bytes > self._budget:
            self._trim(past, reached, np.union1d(reached, frontier))

    def alone(self, past: Past) -> Past:
        """The same window as of a single rank that owns all nodes; valid for nodes that are covered."""
        none = NodeEdges.empty()
        zero = np.zeros(1, np.int8)
        snapshots = [
            replace(s, home=np.broadcast_to(zero, s.home.shape), foreign=self._edges.get(s.tau, none))
            for s in past.snapshots
        ]
        return Past(snapshots, past.length)

    def inputs(self, view: GraphView, past: Past, keys: Int64) -> Float32:
        """Rows of sorted, distinct keys that are covered: float32 (n, F + 1); zeros for nodes that had not come."""
        homes = past.homes(keys)
        out = np.zeros((len(keys), self._features + 1), np.float32)
        own = homes == self._rank
        out[own] = stored_inputs(view, past, keys[own], self._features)
        foreign = np.flatnonzero((homes >= 0) & ~own)
        for snapshot, here, nodes in past.by_snapshot(keys[foreign]):
            if len(nodes):
                held = self._inputs[snapshot.tau]
                out[foreign[here]] = held.rows[np.searchsorted(held.nodes, nodes)]
        return out

    def _foreign(self, past: Past, keys: Int64) -> Int64:
        homes = past.homes(keys)
        return keys[(homes >= 0) & (homes != self._rank)]

    def _read(self, view: GraphView, past: Past, keys: Int64, *, edges: bool) -> None:
        """Read rows that are not held, with or without the neighbours."""
        wanted, size = {}, {}
        for snapshot, _, nodes in past.by_snapshot(keys):
            held = self._edges if edges else self._inputs
            known = held[snapshot.tau].nodes if snapshot.tau in held else nodes[:0]
            missing = np.setdiff1d(nodes, known, assume_unique=True)
            self.counts["hit"] += len(nodes) - len(missing)
            self.counts["miss"] += len(missing)
            if len(missing):
                wanted[snapshot.tau], size[snapshot.tau] = missing, len(snapshot.home)
        for tau, rows in view.rows(wanted).items():
            src, dst = split_keys(rows.keys)
            # Only nodes that had a number when the window took the snapshot, as in its own rows.
            numbered = (src < size[tau]) & (dst < size[tau])
            degree, neighbours = neighbours_of(size[tau], rows.keys[numbered], rows.nodes)
            inputs = np.concatenate([rows.features, np.log1p(degree, dtype=np.float64)[:, None]], axis=1)
            inputs = inputs.astype(np.float32)
            before = self._inputs.get(tau, _Inputs(rows.nodes[:0], inputs[:0]))
            self._inputs[tau] = before.merged(rows.nodes, inputs)
            if edges:
                had = self._edges.get(tau, NodeEdges.empty())
                self._edges[tau] = had.merged(rows.nodes, degree, neighbours)

    def _trim(self, past: Past, reached: Int64, needed: Int64) -> None:
        """Drop the rows that the newest step did not need."""
        held = sum(len(inputs.nodes) for inputs in self._inputs.values())
        edges, inputs = {}, {}
        for snapshot, _, nodes in past.by_snapshot(reached):
            if snapshot.tau in self._edges:
                edges[snapshot.tau] = self._edges[snapshot.tau].of(nodes)
        for snapshot, _, nodes in past.by_snapshot(needed):
            if snapshot.tau in self._inputs:
                inputs[snapshot.tau] = self._inputs[snapshot.tau].of(nodes)
        self._edges, self._inputs = edges, inputs
        self.counts["evicted"] += held - sum(len(each.nodes) for each in inputs.values())
