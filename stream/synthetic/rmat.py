"""R-MAT edges (Chakrabarti, Zhan, Faloutsos 2004): a skewed graph, fast."""

import numpy as np

from stream.arrays.kinds import Int64, UInt64
from stream.kernels import njit

A, B, C = 0.57, 0.19, 0.19
"""Graph500's quadrant probabilities; D is the rest."""
_CHUNK = 1 << 20
_LEVELS_A_WORD = 4
"""One 64-bit draw decides four levels with 16 bits each."""


def rmat_edges(nodes: int, edges: int, rng: np.random.Generator) -> tuple[Int64, Int64]:
    """Draw edges over ids 0 … nodes − 1 in random order of ids; many ids of a large range never occur.

    Returns:
        src and dst, int64 [edges], with R-MAT's repeats and self-loops.
    """
    levels = max(1, int(nodes - 1).bit_length())
    words = -(-levels // _LEVELS_A_WORD)
    label = rng.permutation(nodes)
    src, dst = np.empty(edges, np.int64), np.empty(edges, np.int64)
    for first in range(0, edges, _CHUNK):
        end = min(first + _CHUNK, edges)
        draws = rng.integers(0, 2**64, (end - first, words), np.uint64)
        _descend(draws, levels, label, src[first:end], dst[first:end])
    return src, dst


@njit(cache=True, nogil=True)
def _descend(draws: UInt64, levels: int, label: Int64, src: Int64, dst: Int64) -> None:
    """Walk down the adjacency matrix, a quadrant per level; ids beyond the range are folded into it.

    Args:
        draws: uint64 [n, ceil(levels / 4)], random bits.
        levels: Bits of an id.
        label: int64 [nodes], a permutation.
        src: Written, [n].
        dst: Written, [n].
    """
    a, ab, abc = int(A * 65_536), int((A + B) * 65_536), int((A + B + C) * 65_536)
    for i in range(len(draws)):
        row = column = 0
        for level in range(levels):
            part = draws[i, level // _LEVELS_A_WORD] >> np.uint64(16 * (level % _LEVELS_A_WORD))
            draw = int(part & np.uint64(0xFFFF))
            row = 2 * row + (draw >= ab)
            column = 2 * column + ((a <= draw < ab) or draw >= abc)
        src[i] = label[row % len(label)]
        dst[i] = label[column % len(label)]
