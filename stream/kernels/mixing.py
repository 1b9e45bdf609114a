"""Seeded bits that depend on a key alone: draws without a generator's state."""

import numpy as np

from freshet_graph.stream.arrays.kinds import Int64, UInt64
from freshet_graph.stream.kernels import njit

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


@njit(cache=True, nogil=True)
def splitmix64(key: np.uint64) -> np.uint64:
    """The finaliser of SplitMix64 (Steele, Lea, Flood 2014): every input bit changes half of the output bits."""
    z = key + _GOLDEN
    z = (z ^ (z >> np.uint64(30))) * _FIRST
    z = (z ^ (z >> np.uint64(27))) * _SECOND
    return z ^ (z >> np.uint64(31))


@njit(cache=True, nogil=True)
def mixed(seed: int, keys: Int64) -> UInt64:
    """Uniform 64-bit draws for non-negative keys under a seed, uint64 of the shape of ``keys``."""
    start = splitmix64(np.uint64(seed))
    out = np.empty(len(keys), np.uint64)
    for i in range(len(keys)):
        out[i] = splitmix64(start ^ np.uint64(keys[i]))
    return out


@njit(cache=True, nogil=True)
def mixed_part(seed: int, key: int, parts: int) -> np.int64:
    """A uniform part in [0, parts) for a non-negative key under a seed."""
    bits = splitmix64(splitmix64(np.uint64(seed)) ^ np.uint64(key)) >> np.uint64(32)
    part: np.int64 = np.int64((bits * np.uint64(parts)) >> np.uint64(32))
    return part
