"""Distribution of a block's cells, the grid of its snapshots × nodes, and the cells that cross ranks."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from stream.arrays.kinds import Bool, Int64


def divided(steps: int, parts: int) -> list[range]:
    """Consecutive snapshots of each part, in numbers as equal as possible; the last part always has the newest."""
    ends = [steps * part // parts for part in range(parts + 1)]
    return [range(first, end) for first, end in pairwise(ends)]


@dataclass(frozen=True, slots=True)
class Crossing:
    """The cells that cross when a piece of a block turns from snapshots to nodes; on the way back they cross in reverse.

    A rank holds whole snapshots, ``divided`` among ranks, or whole nodes: those whose number modulo the ranks is its own.
    Every rank's snapshots are divided into the same number of pieces.

    Attributes:
        mine: Places in the block of this rank's snapshots of the piece.
        of_snapshots: int64, places in their (snapshots, nodes) table, in order of the rank with the node.
        to_ranks: Number for each rank.
        of_nodes: int64, places in this rank's (steps, own nodes) table, in order of the rank with the snapshot.
        from_ranks: Number from each rank.
    """

    mine: range
    of_snapshots: Int64
    to_ranks: list[int]
    of_nodes: Int64
    from_ranks: list[int]


def crossings(moving: Bool, rank: int, ranks: int, pieces: int) -> list[Crossing]:
    """The cells of a block that cross, piece by piece.

    Args:
        moving: bool (steps, n): the nodes whose rows cross, in each snapshot; equal on all ranks.
        rank: This rank.
        ranks: Number of ranks.
        pieces: Number of pieces.
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
        to_ranks, from_ranks = ([len(part) for part in parts] for parts in (out, into))
        found.append(Crossing(mine, np.concatenate(out), to_ranks, np.concatenate(into), from_ranks))
    return found
