"""Random signatures of nodes: inputs that need no storage and no fetching."""

import numpy as np

from stream.arrays.kinds import Float32, Int64
from trainer.data.neighbours import mix64_array

MAX_WIDTH = 64


def signatures(nodes: Int64, width: int, seed: int) -> Float32:
    """Pseudo-random ±1/√width vectors, a pure function of node and seed: the same on every rank.

    Distinct nodes have nearly orthogonal signatures, so a mean of neighbours' signatures identifies the neighbours (a
    random projection of the adjacency, as in Johnson and Lindenstrauss).

    Args:
        nodes: int64 (n,) dense ids.
        width: At most ``MAX_WIDTH``; 0 gives none.
        seed: Any non-negative integer.

    Returns:
        float32 (n, width).
    """
    bits = mix64_array(nodes.astype(np.uint64) ^ mix64_array(np.array([seed + 1], np.uint64)))
    shifts = np.arange(width, dtype=np.uint64)
    signs = (bits[:, None] >> shifts) & np.uint64(1)
    vectors: Float32 = (signs.astype(np.float32) * 2 - 1) / np.float32(np.sqrt(max(width, 1)))
    return vectors
