"""Who holds which cells of a block, the grid of its snapshots × nodes, and which of them cross ranks."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from stream.arrays.kinds import Bool, Int64


def divided(steps: int, parts: int) -> list[range]:
    """Consecutive snapshots of each part, as equally many as can be; the last part always has the newest."""
    ends = [steps * part // parts for part in range(parts + 1)]
    return [range(first, end) for first, end in pairwise(ends)]


@dataclass(frozen=True, slots=True)
class Crossing:
    """The cells that cross when a piece of a block goes from snapshots to nodes; on the way back they cross the other way.

    A rank holds whole snapshots, ``divided`` among ranks, or whole nodes: those whose number is its own modulo the ranks.
    Every rank's snapshots are divided into the same number of pieces.

    Attributes:
        mine: Places in the block of this rank's snapshots of the piece.
        of_snapshots: int64, places in their (snapshots, nodes) table, by rank that has the node.
        to_ranks: How many for each rank.
        of_nodes: int64, places in this rank's (steps, own nodes) table, by rank that has the snapshot.
        from_ranks: How many from each rank.
    """

    mine: range
    of_snapshots: Int64
    to_ranks: list[int]
    of_nodes: Int64
    from_ranks: list[int]


def crossings(moving: Bool, rank: int, ranks: int, pieces: int) -> list[Crossing]:
    """The cells of a block that cross, piece by piece.

    Args:
        moving: Of each snapshot of the block, bool (steps, n): the nodes whose rows cross; equal on all ranks.
        rank: This one.
        ranks: How many.
        pieces: How many.
    """
    n, own = moving.shape[1], moving[:, rank::ranks]
    width, found = own.shape[1], []
    shares = [
        [range(share.start + each.start, share.start + each.stop) for each in divided(len(share), pieces)]
        for share in divided(len(moving), ranks)
    ]
    for number in range(pieces):
        mine = shares[rank][number]
        out, into = [], []
        for other in range(ranks):
            at, node = np.nonzero(moving[mine.start : mine.stop, other::ranks])
            out.append(at * n + other + node * ranks)
            theirs = shares[other][number]
            into.append(theirs.start * width + np.flatnonzero(own[theirs.start : theirs.stop]))
        found.append(
            Crossing(
                mine,
                np.concatenate(out),
                [len(part) for part in out],
                np.concatenate(into),
                [len(part) for part in into],
            )
        )
    return found
