"""Random signatures of nodes: inputs that need no storage and no fetching."""

import numpy as np

from stream.arrays.kinds import Float32, Int64
from stream.kernels import njit
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
    vectors: Float32 = _signs(bits, width, np.float32(1) / np.float32(np.sqrt(max(width, 1))))
    return vectors


@njit(cache=True, nogil=True)
def _signs(bits, width, size):  # type: ignore[no-untyped-def]  # compiled
    """A row of ±size per number, float32 (n, width): its lowest bits."""
    found = np.empty((len(bits), width), np.float32)
    for i in range(len(bits)):
        for j in range(width):
            found[i, j] = size if (bits[i] >> np.uint64(j)) & np.uint64(1) else -size
    return found
