"""Edges of one snapshot on a rank: those of its own nodes, and received ones of other ranks' nodes."""

import numpy as np

from stream.arrays.kinds import Bool, Int32, Int64
from stream.snapshots.delta import Rows
from trainer.strategies.request import runs
from trainer.strategies.snapshots.past import STRIDE, Past, PastSnapshot


class HeldEdges:
    """Rows of neighbours of own nodes and of some others.

    Args:
        snapshot: As this rank has it.
        rank: This rank.

    Attributes:
        held: bool (nodes,): other ranks' nodes with edges on this rank.
        born: int64 (nodes,): the number of the snapshot of these edges.
    """

    def __init__(self, snapshot: PastSnapshot, rank: int) -> None:
        own = snapshot.home == rank
        self._snapshot = snapshot
        self._start = np.where(own, snapshot.graph.start, 0)
        self._end = np.where(own, snapshot.graph.end, 0)
        self._indices = snapshot.graph.indices
        self.born = np.full(len(own), snapshot.number, np.int64)
        self.held = np.zeros(len(own), np.bool_)
        self._closure = np.zeros(len(own), np.bool_)
        self._needed = np.zeros(len(own), np.bool_)
        self._home = np.zeros(len(own), np.int32)

    @property
    def alone(self) -> PastSnapshot:
        """The snapshot of a rank that owns all nodes."""
        snapshot = self._snapshot
        graph = Rows(self._start, self._end, self._indices)
        return PastSnapshot(snapshot.tau, snapshot.number, graph, self._home, snapshot.activity)

    @property
    def held_bytes(self) -> int:
        """Bytes of edges and of the tables by node."""
        return self._indices.nbytes + len(self.held) * (3 * 8 + 3 + 4)

    def exact(self, nodes: Int64) -> Bool:
        """Whether nodes have present edges of this snapshot, bool of the shape of ``nodes``."""
        return self.held[nodes] & (self.born[nodes] == self._snapshot.number)

    @property
    def oldest(self) -> int:
        """The number of the oldest snapshot of any held edge."""
        return int(self.born.min(initial=self._snapshot.number, where=self.held))

    def bytes_of(self, nodes: Int64) -> int:
        """Bytes of some nodes' edges."""
        return int((self._end[nodes] - self._start[nodes]).sum()) * self._indices.itemsize

    def add(self, nodes: Int64, lengths: Int64, neighbours: Int32, born: int | Int64) -> None:
        """Add edges of nodes that are not held.

        Args:
            nodes: int64 (n,), distinct.
            lengths: int64 (n,), number of neighbours of each.
            neighbours: Of one node after the other.
            born: Number of their snapshot.
        """
        ends = len(self._indices) + np.cumsum(lengths)
        self._start[nodes], self._end[nodes] = ends - lengths, ends
        self._indices = np.concatenate([self._indices, neighbours.astype(np.int32, copy=False)])
        self.born[nodes], self.held[nodes] = born, True

    def take_over(self, before: "HeldEdges", nodes: Int64, since: int, *, as_new: bool = False) -> None:
        """Take over edges from another snapshot.

        Args:
            before: Of that snapshot.
            nodes: int64, ascending, not held here; those that the other does not hold are left out.
            since: Edges of snapshots before this number are left out, too.
            as_new: Whether they are known to be the same in this snapshot.
        """
        if not as_new:
            nodes = nodes[nodes < len(before.held)]
            nodes = nodes[before.held[nodes] & (before.born[nodes] >= since)]
        starts, lengths = before._start[nodes], before._end[nodes] - before._start[nodes]
        born = before.born[nodes] if not as_new else np.full(len(nodes), self._snapshot.number)
        self.add(nodes, lengths, before._indices[runs(starts, lengths)], born)

    def settle(self, closure: Int64, needed: Int64) -> Int64:
        """Drop edges and inputs that are no longer in the closure of this rank's nodes.

        Args:
            closure: int64: other ranks' nodes with edges in the closure.
            needed: int64: other ranks' nodes with inputs in the closure.

        Returns:
            int64, ascending nodes whose inputs are no longer in the closure.
        """
        kept, wanted = np.zeros_like(self._closure), np.zeros_like(self._needed)
        kept[closure], wanted[needed] = True, True
        dropped, gone = self._closure & ~kept, np.flatnonzero(self._needed & ~wanted)
        self._closure, self._needed = kept, wanted
        self._start[dropped] = self._end[dropped] = 0
        self.held[dropped] = False
        lengths = self._end - self._start
        if 2 * lengths.sum() < len(self._indices):  # dropped edges take more room than the others
            self._indices = self._indices[runs(self._start, lengths)]
            self._end = np.cumsum(lengths)
            self._start = self._end - lengths
        return gone


def changed_edges(past: Past, asked: Int64, had: Bool) -> tuple[Int32, Int32]:
    """Edges of this rank's nodes for other ranks.

    Args:
        past: The window.
        asked: int64 (n,), keys, in any order.
        had: bool (n,), whether the asking rank has the edges of the snapshot before.

    Returns:
        int32 (n,), number of neighbours that follow for each, −1 if unchanged; and the neighbours.
    """
    places, nodes = np.divmod(asked, STRIDE)
    lengths = np.zeros(len(asked), np.int64)
    for place, snapshot in enumerate(past.snapshots):
        here = np.flatnonzero(places == place)
        graph, of = snapshot.graph, nodes[here]
        lengths[here] = graph.end[of] - graph.start[of]
        if place:
            again = here[had[here]]
            before = past.snapshots[place - 1].graph
            lengths[again[_equal_rows(graph, before, nodes[again])]] = -1
    sent = np.maximum(lengths, 0)
    ends = np.cumsum(sent)
    found = np.empty(sent.sum(), np.int32)
    for place, snapshot in enumerate(past.snapshots):
        here = np.flatnonzero((places == place) & (sent > 0))
        into = runs(ends[here] - sent[here], sent[here])
        found[into] = snapshot.graph.indices[runs(snapshot.graph.start[nodes[here]], sent[here])]
    return lengths.astype(np.int32), found


def _equal_rows(one: Rows, other: Rows, nodes: Int64) -> Bool:
    """Whether nodes have the same neighbours in both, bool (n,)."""
    lengths = one.end[nodes] - one.start[nodes]
    equal = lengths == other.end[nodes] - other.start[nodes]
    some = np.flatnonzero(equal)
    of, lengths = nodes[some], lengths[some]
    differ = one.indices[runs(one.start[of], lengths)] != other.indices[runs(other.start[of], lengths)]
    equal[np.repeat(some, lengths)[differ]] = False
    return equal
