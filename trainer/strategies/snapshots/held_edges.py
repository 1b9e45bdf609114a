"""Edges of one snapshot as a rank has them: its own nodes', and those of other ranks' nodes that it was sent."""

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
        held: bool (nodes,): other ranks' nodes whose edges are here.
        born: int64 (nodes,): the number of the snapshot that their edges are of.
    """

    def __init__(self, snapshot: PastSnapshot, rank: int) -> None:
        own = snapshot.home == rank
        self._snapshot = snapshot
        self._own = own
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
        """Bytes of edges and of what is kept a node."""
        return self._indices.nbytes + len(self.held) * (3 * 8 + 3 + 4)

    def exact(self, nodes: Int64) -> Bool:
        """Whose edges are here and are those of this snapshot, bool of the shape of ``nodes``."""
        return self.held[nodes] & (self.born[nodes] == self._snapshot.number)

    @property
    def oldest(self) -> int:
        """The number of the oldest snapshot that any of them is of."""
        return int(self.born.min(initial=self._snapshot.number, where=self.held))

    def bytes_of(self, nodes: Int64) -> int:
        """Bytes of some nodes' edges."""
        return int((self._end[nodes] - self._start[nodes]).sum()) * self._indices.itemsize

    def add(self, nodes: Int64, lengths: Int64, neighbours: Int32, born: int | Int64) -> None:
        """Have edges of nodes that are not held.

        Args:
            nodes: int64 (n,), distinct.
            lengths: int64 (n,), how many neighbours each has.
            neighbours: Of one node after the other.
            born: Number of the snapshot that they are of.
        """
        ends = len(self._indices) + np.cumsum(lengths)
        self._start[nodes], self._end[nodes] = ends - lengths, ends
        self._indices = np.concatenate([self._indices, neighbours.astype(np.int32, copy=False)])
        self.born[nodes], self.held[nodes] = born, True

    def take_over(self, before: "HeldEdges", nodes: Int64, since: int, *, as_new: bool = False) -> None:
        """Have edges as they were in another snapshot.

        Args:
            before: Of that snapshot.
            nodes: int64, ascending, not held here; those that it does not hold are left out.
            since: Nor are those that are of a snapshot before this number.
            as_new: They are known to be the same in this snapshot.
        """
        if not as_new:
            nodes = nodes[nodes < len(before.held)]
            nodes = nodes[before.held[nodes] & (before.born[nodes] >= since)]
        starts, lengths = before._start[nodes], before._end[nodes] - before._start[nodes]
        born = before.born[nodes] if not as_new else np.full(len(nodes), self._snapshot.number)
        self.add(nodes, lengths, before._indices[runs(starts, lengths)], born)

    def settle(self, closure: Int64, needed: Int64) -> Int64:
        """Drop what was in the closure of this rank's nodes and is no more.

        Args:
            closure: int64: other ranks' nodes whose edges it has.
            needed: int64: other ranks' nodes whose inputs it has.

        Returns:
            int64, nodes whose inputs it does not have any more, ascending.
        """
        kept, wanted = np.zeros_like(self._closure), np.zeros_like(self._needed)
        kept[closure], wanted[needed] = True, True
        dropped, gone = self._closure & ~kept, np.flatnonzero(self._needed & ~wanted)
        self._closure, self._needed = kept, wanted
        self._start[dropped] = self._end[dropped] = 0
        self.held[dropped] = False
        lengths = self._end - self._start
        if 2 * lengths.sum() < len(self._indices):  # what was dropped takes more room than what is left
            self._indices = self._indices[runs(self._start, lengths)]
            self._end = np.cumsum(lengths)
            self._start = self._end - lengths
        return gone


def changed_edges(past: Past, asked: Int64, had: Bool) -> tuple[Int32, Int32]:
    """Edges of nodes of this rank that somebody asks for.

    Args:
        past: The window.
        asked: int64 (n,), keys, in any order.
        had: bool (n,), whether the asker has the edges of the snapshot before.

    Returns:
        int32 (n,), how many neighbours follow for each, −1 where they are as they were; and the neighbours.
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
    """Which nodes have the same neighbours in both, bool (n,)."""
    lengths = one.end[nodes] - one.start[nodes]
    equal = lengths == other.end[nodes] - other.start[nodes]
    some = np.flatnonzero(equal)
    of, lengths = nodes[some], lengths[some]
    differ = one.indices[runs(one.start[of], lengths)] != other.indices[runs(other.start[of], lengths)]
    equal[np.repeat(some, lengths)[differ]] = False
    return equal
