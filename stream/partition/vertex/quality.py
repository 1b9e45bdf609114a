"""Running quality of a vertex partition."""

import math

import numpy as np

from stream.arrays.kinds import Float64, Int32, Int64
from stream.kernels import njit
from stream.partition.interface import Quality
from stream.partition.quality import Mean, balance, share
from stream.partition.vertex.pair_totals import PairTotals
from stream.snapshots.delta import Rows

DEFAULT_FANOUT = 10
"""Neighbours that a trainer samples per node; determines the edge weights of the utility (DistDy section 3.4)."""


class VertexQuality:
    """Quality of a vertex partition: every live node has one owner.

    ``cut_final`` is the latest snapshot's cut. Each node is in its owner's part only, so both replication factors are 1.
    ``edge_balance`` counts the pairs stored with a part: those with an end in it.
    """

    def __init__(self) -> None:
        self._cut, self._utility, self._moved = Mean(), Mean(), Mean()
        self._snapshots = 0
        self._last_cut = self._node_balance = self._edge_balance = math.nan

    def observe(self, totals: PairTotals, held: Int64, moved: int) -> None:
        """Add a snapshot.

        Args:
            totals: Pairs and weights under the owners after it.
            held: int64 (K,) nodes per part.
            moved: Nodes that changed their owner.
        """
        self._last_cut = share(totals.cross, totals.pairs)
        self._cut.add(self._last_cut)
        self._utility.add(share(totals.inside, totals.weight))
        if self._snapshots:
            self._moved.add(share(moved, int(held.sum())))
        self._snapshots += 1
        self._node_balance = balance(held)
        self._edge_balance = balance(totals.stored)

    def quality(self) -> Quality:
        """All snapshots so far."""
        present = 1.0 if self._snapshots else math.nan
        return Quality(
            cut=self._cut.value(),
            cut_final=self._last_cut,
            replication_factor=present,
            training_replication_factor=present,
            shared_share=0.0 if self._snapshots else math.nan,
            node_balance=self._node_balance,
            edge_balance=self._edge_balance,
            utility=self._utility.value(),
            moved_share=self._moved.value(of_none=0.0),
        )

    def state(self) -> Float64:
        """The values that the next figures depend on, float64 (10,)."""
        means = [x for mean in (self._cut, self._utility, self._moved) for x in (mean.total, mean.count)]
        return np.array([*means, self._snapshots, self._last_cut, self._node_balance, self._edge_balance])

    def restore(self, state: Float64) -> None:
        """Continue from a ``state()``."""
        for i, mean in enumerate((self._cut, self._utility, self._moved)):
            mean.total, mean.count = float(state[2 * i]), int(state[2 * i + 1])
        self._snapshots = int(state[6])
        self._last_cut, self._node_balance, self._edge_balance = (float(x) for x in state[7:])


@njit(cache=True, nogil=True)
def sampled_share(rows: Rows, nodes: Int64, fanout: int) -> Float64:
    """``min(d, f) / d`` of nodes: the chance that a training node samples a given neighbour, float64 like ``nodes``."""
    out = np.zeros(len(nodes), np.float64)
    for i in range(len(nodes)):
        degree = rows.end[nodes[i]] - rows.start[nodes[i]]
        if degree > 0:
            out[i] = min(degree, fanout) / degree
    return out


@njit(cache=True, nogil=True)
def foreign_parts(rows: Rows, home: Int32, parts: int) -> int:
    """Sum over nodes of λ, the number of parts other than a node's own with a neighbour of it. O(pairs).

    A vertex partition sends this many rows for one convolution of the snapshot, each row once to each part that needs it: km1
    of the hypergraph whose nets are nodes with their neighbours (ESDG section 4.1).

    Args:
        rows: Neighbours of every node.
        home: int32 (≥ nodes,) owners; −1 only for nodes without a row.
        parts: K.
    """
    total = 0
    seen_by = np.full(parts, -1, np.int64)
    for v in range(len(rows.start)):
        own = home[v]
        for i in range(rows.start[v], rows.end[v]):
            part = home[rows.indices[i]]
            if part != own and seen_by[part] != v:
                seen_by[part] = v
                total += 1
    return total
