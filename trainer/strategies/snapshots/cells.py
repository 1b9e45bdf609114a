"""Who holds which cells of a block, the grid of its snapshots × nodes, and which of them cross ranks."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]
Bool = NDArray[np.bool_]


def divided(steps: int, parts: int) -> list[range]:
    """Consecutive snapshots of each part, as equally many as can be; the last part always has the newest."""
    ends = [steps * part // parts for part in range(parts + 1)]
    return [range(first, end) for first, end in pairwise(ends)]


@dataclass(frozen=True, slots=True)
class Crossing:
    """The cells that cross when a block goes from snapshots to nodes; on the way back they cross the other way.

    A rank holds whole snapshots, ``divided`` among ranks, or whole nodes: those whose number is its own modulo the ranks.

    Attributes:
        of_snapshots: int64, places in this rank's (snapshots, nodes) table, by rank that has the node.
        to_ranks: How many for each rank.
        of_nodes: int64, places in this rank's (steps, own nodes) table, by rank that has the snapshot.
        from_ranks: How many from each rank.
        alone: int64, the other places of the (steps, own nodes) table, whose rows never cross, ascending.
    """

    of_snapshots: Int64
    to_ranks: list[int]
    of_nodes: Int64
    from_ranks: list[int]
    alone: Int64

    @classmethod
    def of(cls, moving: Sequence[Bool], rank: int, ranks: int) -> "Crossing":
        """The cells that cross.

        Args:
            moving: Of each snapshot of the block, bool (n,): the nodes whose rows cross; equal on all ranks.
            rank: This one.
            ranks: How many.
        """
        steps, n = len(moving), len(moving[0])
        table = np.stack(moving)
        shares = divided(steps, ranks)
        here = table[shares[rank].start : shares[rank].stop]
        out = []
        for other in range(ranks):
            at, node = np.nonzero(here[:, other::ranks])
            out.append(at * n + other + node * ranks)
        own = table[:, rank::ranks].ravel()
        width = len(range(rank, n, ranks))
        return cls(
            np.concatenate(out),
            [len(part) for part in out],
            np.flatnonzero(own),
            [int(own[share.start * width : share.stop * width].sum()) for share in shares],
            np.flatnonzero(~own),
        )
