"""Smoothing of snapshots: the intervals of a smoothed snapshot, and the sums over their raw events.

A raw snapshot has the pairs of two nodes that an interval's events insert, whatever is deleted and whatever was live
before: each pair once, with the sum of its events' weights (their number, if every weight is 1). Edge life adds up the
raw snapshots of the last ℓ intervals; the M-product takes the mean of the last ℓ raw snapshots, or of all so far.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from schemas.trainer_config import Smoothing
from stream.arrays.kinds import Float32, Int64
from stream.snapshots.pairs import pair_keys


@dataclass(frozen=True, slots=True)
class Entries:
    """Pairs with values: keys int64 (n,) as ``pair_keys``, ascending and distinct, and values float32 (n,)."""

    keys: Int64
    values: Float32

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def ends(self) -> Int64:
        """Both ends of each, int64 (2 n,)."""
        return np.concatenate([self.keys >> 32, self.keys & 0xFFFFFFFF])

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.keys.nbytes + self.values.nbytes


def raw_entries(src: Int64, dst: Int64, weight: Float32, *, directed: bool) -> Entries:
    """A raw snapshot.

    Args:
        src: int64 (E,), of inserts in log order.
        dst: int64 (E,).
        weight: float32 (E,); only their magnitude counts, because a Laplacian has no negative weights.
        directed: Whether u → v and v → u are two pairs; otherwise one, the lower id first.

    Returns:
        The pairs of two nodes, with sums in order of the log.
    """
    linked = src != dst
    src, dst, weight = src[linked], dst[linked], np.abs(weight[linked])
    keys = pair_keys(src, dst) if directed else pair_keys(np.minimum(src, dst), np.maximum(src, dst))
    distinct, place = np.unique(keys, return_inverse=True)
    return Entries(distinct, np.bincount(place, weight, len(distinct)).astype(np.float32))


def members(smoothing: Smoothing, taus: Sequence[int], place: int) -> range:
    """Places of the raw snapshots of the smoothed one at ``place``.

    Args:
        smoothing: Of a kind other than none.
        taus: Interval indices, ascending.
        place: In ``taus``.
    """
    first = max(0, place - smoothing.length + 1)
    if smoothing.kind == "edge-life":
        while taus[first] <= taus[place] - smoothing.length:
            first += 1
    return range(first, place + 1)


def totals(keys: Int64, parts: Sequence[Entries]) -> Float32:
    """The sum of parts' values by key, float32, in the order of the parts; NaN where no part has the key.

    Args:
        keys: int64 (n,).
        parts: Oldest first.
    """
    found = np.full(len(keys), np.nan, np.float32)
    for part in parts:
        at = np.searchsorted(part.keys, keys)
        has = at < len(part)
        has[has] = part.keys[at[has]] == keys[has]
        found[has] = np.where(np.isnan(found[has]), np.float32(0), found[has]) + part.values[at[has]]
    return found


def union(parts: Sequence[Entries]) -> Entries:
    """All keys of parts, with ``totals``."""
    keys = np.unique(np.concatenate([np.empty(0, np.int64), *(part.keys for part in parts)]))
    return Entries(keys, totals(keys, parts))
