"""Running quality of a partition, as ``docs/semantics.md`` ("Partition quality") defines each figure.

Means over snapshots count the snapshots in which the figure has a meaning. Balances are those of the latest
snapshot: the largest part over the mean part.
"""

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

from stream.partition.interface import Quality
from stream.partition.pair_totals import PairTotals
from stream.snapshots.delta import Float64, Int32, Int64, Rows

DEFAULT_FANOUT = 10
"""Neighbours that a trainer samples a node; fixes the edge weights of the utility (DistDy section 3.4)."""


class Mean:
    """Mean over the snapshots that have a value."""

    def __init__(self) -> None:
        self.total, self.count = 0.0, 0

    def add(self, value: float) -> None:
        """Take in a snapshot's value; NaN: it has none."""
        if not math.isnan(value):
            self.total += value
            self.count += 1

    def value(self, of_none: float = math.nan) -> float:
        """The mean so far, ``of_none`` before the first value."""
        return self.total / self.count if self.count else of_none


class VertexQuality:
    """Quality of a vertex partition: every live node has one owner.

    ``cut_final`` is the latest snapshot's cut. Each node is present in its owner's part only, so both
    replication factors are 1. ``edge_balance`` counts the pairs stored with a part: those with an end in it.
    """

    def __init__(self) -> None:
        self._cut, self._utility, self._moved = Mean(), Mean(), Mean()
        self._snapshots = 0
        self._last_cut = self._node_balance = self._edge_balance = math.nan

    def observe(self, totals: PairTotals, held: Int64, moved: int) -> None:
        """Take in a snapshot.

        Args:
            totals: Pairs and weights under the owners after it.
            held: int64 (K,) nodes a part.
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

    def state(self) -> NDArray[np.float64]:
        """What the next figures depend on, float64 (10,)."""
        means = [x for mean in (self._cut, self._utility, self._moved) for x in (mean.total, mean.count)]
        return np.array([*means, self._snapshots, self._last_cut, self._node_balance, self._edge_balance])

    def restore(self, state: NDArray[np.float64]) -> None:
        """Continue from a ``state()``."""
        for i, mean in enumerate((self._cut, self._utility, self._moved)):
            mean.total, mean.count = float(state[2 * i]), int(state[2 * i + 1])
        self._snapshots = int(state[6])
        self._last_cut, self._node_balance, self._edge_balance = (float(x) for x in state[7:])


class EdgeQuality:
    """Quality of an edge partition: every insert event has a part or is discarded, nodes have sets of parts.

    ``cut`` counts discards over all insert events so far; ``cut_final`` needs the events again and is left
    to ``uncovered_share``. The training replication factor copies shared nodes to every part (SPEED
    Alg. 1 line 20). ``edge_balance`` counts assigned insert events.

    Args:
        parts: K.
    """

    def __init__(self, parts: int) -> None:
        self.parts = parts
        self._moved = Mean()
        self._snapshots = self._inserts = self._discarded = 0
        self._shared_share = self._replication = self._training = math.nan
        self._node_balance = self._edge_balance = math.nan

    def observe(
        self,
        *,
        inserts: int,
        discarded: int,
        seen: int,
        shared: int,
        placements: Int64,
        placed_nodes: int,
        assigned: Int64,
        moved: int,
        live: int,
    ) -> None:
        """Take in a snapshot.

        Args:
            inserts: Insert events of the snapshot.
            discarded: Those that got no part.
            seen: Distinct nodes in all events so far.
            shared: Nodes in more than one part.
            placements: int64 (K,) nodes in each part, copies included.
            placed_nodes: Nodes in at least one part; the rest of the seen ones count as in one.
            assigned: int64 (K,) insert events assigned so far.
            moved: Nodes whose home changed.
            live: Live nodes.
        """
        self._inserts += inserts
        self._discarded += discarded
        shared_share = share(shared, seen)
        self._shared_share = float(np.fmax(self._shared_share, shared_share))
        self._replication = share(int(placements.sum()) + seen - placed_nodes, seen)
        self._training = 1 + shared_share * (self.parts - 1)
        self._node_balance, self._edge_balance = balance(placements), balance(assigned)
        if self._snapshots:
            self._moved.add(share(moved, live))
        self._snapshots += 1

    def quality(self) -> Quality:
        """All snapshots so far."""
        return Quality(
            cut=share(self._discarded, self._inserts),
            cut_final=math.nan,
            replication_factor=self._replication,
            training_replication_factor=self._training,
            shared_share=self._shared_share,
            node_balance=self._node_balance,
            edge_balance=self._edge_balance,
            utility=math.nan,
            moved_share=self._moved.value(of_none=0.0),
        )

    def state(self) -> NDArray[np.float64]:
        """What the next figures depend on, float64 (10,)."""
        return np.array(
            [
                self._moved.total,
                self._moved.count,
                self._snapshots,
                self._inserts,
                self._discarded,
                self._shared_share,
                self._replication,
                self._training,
                self._node_balance,
                self._edge_balance,
            ]
        )

    def restore(self, state: NDArray[np.float64]) -> None:
        """Continue from a ``state()``."""
        self._moved.total, self._moved.count = float(state[0]), int(state[1])
        self._snapshots, self._inserts, self._discarded = (int(x) for x in state[2:5])
        self._shared_share, self._replication, self._training = (float(x) for x in state[5:8])
        self._node_balance, self._edge_balance = (float(x) for x in state[8:])


def share(part: float, whole: float) -> float:
    """``part / whole``, NaN for an empty whole."""
    return float(part / whole) if whole else math.nan


def balance(sizes: NDArray[np.integer]) -> float:
    """Largest over mean size, NaN where all are empty."""
    return share(float(sizes.max()) * len(sizes), float(sizes.sum()))


def uncovered_share(src: Int64, dst: Int64, home: Int32, shared: NDArray[np.bool_]) -> float:
    """Share of events that no final node list covers, shared nodes being in all of them.

    Args:
        src: int64 (E,) ends of the insert events.
        dst: int64 (E,).
        home: int32 (num_nodes,).
        shared: bool (num_nodes,) nodes in more than one part.
    """
    uncovered = ~shared[src] & ~shared[dst] & (home[src] != home[dst])
    return share(int(uncovered.sum()), len(src))


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
    """Sum over nodes of λ, the parts other than a node's own that have a neighbour of it. O(pairs).

    It is the number of rows that a vertex partition sends for one convolution of the snapshot, each row once to each
    part that asks for it: km1 of the hypergraph whose nets are nodes with their neighbours (ESDG section 4.1).

    Args:
        rows: Neighbours of every node.
        home: int32 (≥ nodes,) owners; −1 for nodes without a row only.
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
