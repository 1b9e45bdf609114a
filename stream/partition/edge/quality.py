"""Running quality of an edge partition."""

import math
from dataclasses import dataclass

import numpy as np

from stream.arrays.kinds import Bool, Float64, Int32, Int64
from stream.partition.interface import Assignment, Quality
from stream.partition.quality import Mean, balance, share


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Result of one snapshot.

    Attributes:
        assignment: Changes of nodes, and the part of each event.
        inserts: Insert events.
        discarded: Insert events without a part.
        seen: Distinct nodes in all events so far.
        shared: Nodes in more than one part.
        placed: Nodes in at least one part; the other seen ones count as in one.
        moved: Nodes whose home changed.
    """

    assignment: Assignment
    inserts: int
    discarded: int = 0
    seen: int
    shared: int
    placed: int
    moved: int = 0


class EdgeQuality:
    """Quality of an edge partition: every insert event has a part or is discarded, nodes have sets of parts.

    ``cut`` is the share of discards among all insert events so far; ``uncovered_share`` computes ``cut_final``, which needs the
    events again. The training replication factor copies shared nodes to every part (SPEED Alg. 1 line 20). ``edge_balance``
    counts assigned insert events.

    Args:
        parts: K.
    """

    def __init__(self, parts: int) -> None:
        self.parts = parts
        self._moved = Mean()
        self._snapshots = self._inserts = self._discarded = 0
        self._shared_share = self._replication = self._training = math.nan
        self._node_balance = self._edge_balance = math.nan

    def observe(self, placed: Placed, placements: Int64, assigned: Int64, *, live: int) -> None:
        """Add a snapshot.

        Args:
            placed: Its result.
            placements: int64 (K,) nodes in each part, copies included.
            assigned: int64 (K,) insert events assigned so far.
            live: Live nodes.
        """
        seen = placed.seen
        self._inserts += placed.inserts
        self._discarded += placed.discarded
        shared_share = share(placed.shared, seen)
        self._shared_share = float(np.fmax(self._shared_share, shared_share))
        self._replication = share(int(placements.sum()) + seen - placed.placed, seen)
        self._training = 1 + shared_share * (self.parts - 1)
        self._node_balance, self._edge_balance = balance(placements), balance(assigned)
        if self._snapshots:
            self._moved.add(share(placed.moved, live))
        self._snapshots += 1

    def quality(self) -> Quality:
        """All snapshots so far."""
        return Quality(
            cut=share(self._discarded, self._inserts),
            replication_factor=self._replication,
            training_replication_factor=self._training,
            shared_share=self._shared_share,
            node_balance=self._node_balance,
            edge_balance=self._edge_balance,
            moved_share=self._moved.value(of_none=0.0),
        )

    def state(self) -> Float64:
        """The values that the next figures depend on, float64 (10,)."""
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

    def restore(self, state: Float64) -> None:
        """Continue from a ``state()``."""
        self._moved.total, self._moved.count = float(state[0]), int(state[1])
        self._snapshots, self._inserts, self._discarded = (int(x) for x in state[2:5])
        self._shared_share, self._replication, self._training = (float(x) for x in state[5:8])
        self._node_balance, self._edge_balance = (float(x) for x in state[8:])


def uncovered_share(src: Int64, dst: Int64, home: Int32, shared: Bool) -> float:
    """Share of events that no final node list covers, with shared nodes in all lists.

    Args:
        src: int64 (E,) ends of the insert events.
        dst: int64 (E,).
        home: int32 (num_nodes,).
        shared: bool (num_nodes,) nodes in more than one part.
    """
    uncovered = ~shared[src] & ~shared[dst] & (home[src] != home[dst])
    return share(int(uncovered.sum()), len(src))
